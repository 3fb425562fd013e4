from __future__ import annotations

import gzip
import json
import os

import pytest

from palmette.data import RetrievalData, iter_documents, load_data
from palmette.errors import ConfigError, DuplicateIdError, InputError, NotFoundError
from palmette.types import Document, Pair

CORPUS = [{"_id": f"d{n}", "title": f"Title {n}", "text": f"Body of {n}", "lang": "en"} for n in range(4)]
QUERIES = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(20)]
TRAIN = [(f"q{n}", f"d{n % 4}", 1) for n in range(20)]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def tsv(judgements):
    return "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in judgements)


@pytest.fixture(params=["", ".gz"], ids=["plain", "gz"])
def beir(tmp_path, request):
    """A function that writes a BEIR folder."""

    def make(corpus=CORPUS, queries=QUERIES, **splits):
        folder = tmp_path / "beir"
        write(folder / f"corpus.jsonl{request.param}", lines(corpus))
        write(folder / f"queries.jsonl{request.param}", lines(queries))
        for split, judgements in splits.items():
            write(folder / "qrels" / f"{split}.tsv{request.param}", tsv(judgements))
        return folder

    return make


def test_beir_folder(beir):
    data = load_data(beir(test=[("q1", "d1", 2), ("q1", "d2", 0)], train=TRAIN, dev=[("q0", "d3", 1)]))
    assert (data.name, data.labelled, list(data.qrels)) == ("beir", True, ["train", "dev", "test"])
    title = {"title": "Title 1"}
    assert data.corpus[1] == Document("d1", "Title 1 Body of 1", {**title, "lang": "en"}, title)
    assert data.split("test").qrels == {"q1": {"d1": 2, "d2": 0}}
    assert data.split("test").queries == {"q1": "question 1"}
    assert "4 documents, 20 queries (train: 20, dev: 1, test: 1)" in repr(data)


def test_dev_is_held_out_of_train_by_hash(beir, tmp_path):
    folder = beir(train=TRAIN)
    data = load_data(str(folder), dev_fraction=0.2)
    assert len(data.qrels["dev"]) == 4
    assert {**data.qrels["train"], **data.qrels["dev"]} == {q: {d: g} for q, d, g in TRAIN}
    for file in (folder / "qrels").iterdir():  # the order of the file changes nothing
        write(file, tsv(TRAIN[::-1]))
    assert load_data(folder, dev_fraction=0.2).qrels["dev"].keys() == data.qrels["dev"].keys()
    assert load_data(folder, dev_fraction=0.2, seed=1).qrels["dev"].keys() != data.qrels["dev"].keys()
    assert list(load_data(folder, dev_fraction=0).qrels) == ["train"]
    with pytest.raises(ConfigError, match=r"dev_fraction must be between 0 and 0\.9, got 1"):
        load_data(folder, dev_fraction=1)


def test_validation_is_dev(beir):
    data = load_data(beir(train=TRAIN, validation=[("q0", "d1", 1)]))
    assert data.qrels["dev"] == {"q0": {"d1": 1}}


def test_with_only_test_there_is_nothing_to_train_on(beir):
    data = load_data(beir(test=TRAIN))
    assert list(data.qrels) == ["test"]
    assert data.judgements("test")[1].relevant.sum() == 20
    with pytest.raises(NotFoundError, match="beir has no 'train' split; splits: 'test'"):
        data.pairs("train")


def test_titles_stand_before_the_text(beir):
    lamp, title = {"title": "Lamp", "text": "It shines."}, {"title": "Only a title", "text": ""}
    corpus = [{"_id": "1"} | lamp, {"_id": "2"} | title]
    folder = beir(corpus, [{"_id": "q", "text": "light"}], test=[("q", "1", 1)])
    for documents in (load_data(folder).corpus, [*iter_documents(folder)]):
        assert [document.text for document in documents] == ["Lamp It shines.", "Only a title"]
        assert documents[0].metadata == {"title": "Lamp"}


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"train": [*TRAIN, *[(q, "gone", 1) for q in ("q1", "q2")]]}, "2 of 22 .* documents .*'gone' in 'train'"),
        ({"train": [("who", "d1", 1)]}, "1 of 1 judgements name queries .*'who'"),
        ({"train": [("q1", "d1", 1), ("q1", "d1", 0)]}, r"train.tsv.*:3: .*were judged 1, now 0; keep one"),
        ({"train": [("q1", "d1", 1), ("q1", "d2", "x")]}, r"train.tsv.*:3: the grade must be a whole .*'x'"),
        ({"train": [("q1", "d1")]}, r"train.tsv.*:2: expected query id, document id and grade"),
        ({"train": []}, "train.tsv.* holds no judgements"),
        ({}, r"queries.jsonl.* has no judgements: expected .*qrels/train.tsv"),
        ({"corpus": []}, "no documents in '.*beir'"),
        ({"corpus": [*CORPUS, {"_id": "d9"}]}, "corpus.jsonl.*:5: a document needs 'text' or 'title'"),
        ({"corpus": [*CORPUS, {"_id": "d9", "text": 7}]}, "corpus.jsonl.*:5: 'text' must be a str, got int"),
        ({"corpus": [*CORPUS, {"_id": "d9", "text": " "}]}, "corpus.jsonl.*:5: .*'d9' is empty"),
        ({"queries": [*QUERIES, {"_id": "q99"}]}, r"queries.jsonl.*:21: a query needs '_id'"),
    ],
)
def test_a_broken_folder_is_refused_with_the_place(beir, broken, text):
    splits = {} if not broken else {"train": TRAIN}
    with pytest.raises(InputError, match=text):
        load_data(beir(**splits | broken))


def test_ids_with_two_contents(beir):
    with pytest.raises(DuplicateIdError, match="document id 'd0' has two contents"):
        load_data(beir(train=TRAIN, corpus=[*CORPUS, {"_id": "d0", "text": "other"}]))
    with pytest.raises(DuplicateIdError, match=r"queries.jsonl.*:21: query id 'q0' has two texts"):
        load_data(beir(train=TRAIN, queries=[*QUERIES, {"_id": "q0", "text": "other"}]))
    assert len(load_data(beir(train=TRAIN, corpus=CORPUS + CORPUS)).corpus) == 4


def test_a_truncated_gzip_a_missing_file_and_a_corpus_alone(tmp_path):
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(os.urandom(4000).hex().encode())[:-900])
    with pytest.raises(InputError, match="cannot be read"):
        load_data(tmp_path / "p.jsonl.gz")
    with pytest.raises(NotFoundError, match=r"no file or folder '.*gone.jsonl'"):
        load_data(tmp_path / "gone.jsonl")
    text = "One sentence about red apples here. Another one about green pears there. And a last one on plums."
    write(tmp_path / "corpus.jsonl", lines([{"_id": "x", "text": text}]))
    data = load_data(tmp_path)
    assert (data.labelled, data.corpus[0].id) == (False, "x")


PAIRS = [Pair("who", "me", ("you",)), Pair("what", "this"), Pair("who", "us"), Pair("where", "me")]


@pytest.mark.parametrize(
    "pairs",
    [
        PAIRS,
        [("who", "me", "you"), ("what", "this"), ("who", "us"), ("where", "me")],
        [("who", ["me", "us"], ["you"]), ("what", "this"), ("where", {"text": "me"})],
        [
            {"query": "who", "positive": "me", "negatives": ["you"]},
            {"question": "what", "answer": "this"},
            {"query": "who", "document": Document(text="us")},
            {"query": "where", "text": "me", "source": "a column more"},
        ],
    ],
    ids=["Pair", "tuples", "lists", "dicts"],
)
def test_pairs_in_every_form(pairs):
    data = load_data(iter(pairs), dev_fraction=0)
    texts = {d.key: d.text for d in data.corpus}
    train = data.qrels["train"].items()
    judged = {data.queries[q]: {texts[d]: g for d, g in docs.items()} for q, docs in train}
    assert judged == {"who": {"me": 1, "us": 1, "you": 0}, "what": {"this": 1}, "where": {"me": 1}}
    assert sorted(texts.values()) == ["me", "this", "us", "you"]


def test_pairs_file(tmp_path):
    pairs = [{"query": f"q{n}", "positive": f"a{n}"} for n in range(30)]
    data = load_data(write(tmp_path / "faq.jsonl.gz", lines(pairs)))
    sizes = {split: len(qrels) for split, qrels in data.qrels.items()}
    assert (data.name, sizes, data.labelled) == ("faq", {"train": 27, "dev": 3}, True)
    assert [len(qrels) for qrels in load_data([("q", "a")]).qrels.values()] == [1, 0], "one is for training"


def test_a_positive_is_never_its_own_negative():
    data = load_data([("q", "a", "b"), ("q", "b", "a")], dev_fraction=0)
    assert sorted(data.qrels["train"].popitem()[1].values()) == [1, 1]


REFUSED = [
    # pairs and documents, named by their position
    ([("a", "b"), ("a",)], r"pair 1: expected a Pair, \(query, positive\)"),
    ([("a", 4)], "pair 0: cannot make a document of int 4"),
    ([(4, "a")], "pair 0: the query must be a str"),
    (["fine", ("a", "b")], "document 1: cannot make a document of tuple"),
    (["fine", {"texts": "a"}], "document 1: a document needs 'text' or 'title'; got the keys 'texts'"),
    (["fine", {"text": "a", "metadata": [1]}], "document 1: 'metadata' must be an object, got list"),
    (["fine", {"text": "a", "id": True}], "document 1: a document id must be a str or an int, got True"),
    (["fine", "\n"], "document 1: document is empty: give it a text"),
    (["fine", {"id": "x", "text": " "}], "document 1: document 'x' is empty"),
    ([], "there are no documents; give at least one"),
    (17, "expected a path or an iterable .* got int 17"),
    # lines of a file
    (b'{"query": "a", "positive": "b"}\n{"query": ', r"p.jsonl:2: not JSON"),
    (b'{"text": "a", "price": NaN}\n', r"p.jsonl:1: not JSON \(NaN is not a JSON value"),
    (b"[1, 2]\n", r"p.jsonl:1: expected a JSON object per line, got list"),
    (b'{"query": "a", "text": "b"}\n\n{"query": "a"}\n', r"p.jsonl:3: a pair needs 'positive' \(or 'ans"),
    (b'{"query": " ", "positive": "b"}\n', r"p.jsonl:1: the query must be a str .* not empty, got ' '"),
    (b'{"query": "a", "positive": []}\n', r"p.jsonl:1: query 'a' has no positive"),
    (b'{"query": "\xff"}\n', r"p.jsonl: cannot be read after line 0 .*UTF-8"),
    (b"\n", "no documents in '.*p.jsonl'"),
    # rows of a table
    ("id,text\n1,a,b\n", r"p.csv:2: more cells than the heading has columns \(id, text\)"),
    ("id,text\n1,\udcff\n", "cannot be read as a table"),
    ('id,text\n1,"open\n', "cannot be read as a table"),
    ("id,text\n1,a\n1,b\n", "document id '1' has two contents"),
    (",id,text\n0,1,a\n", "column 1 has no name"),
    ("id,text,text\n1,a,b\n", "two columns are named 'text'"),
    ("id;text\n1;a\n", "seem to be parted by ';'"),
]


@pytest.mark.parametrize(("given", "told"), REFUSED)
def test_what_is_no_data_is_refused_with_its_place(given, told, tmp_path):
    """Bytes are a file of JSON lines, a text is one of a table."""
    if isinstance(given, bytes | str):
        path = tmp_path / ("p.jsonl" if isinstance(given, bytes) else "p.csv")
        path.write_bytes(given if isinstance(given, bytes) else given.encode("utf-8", "surrogateescape"))
        given = path
    with pytest.raises(InputError, match=told):
        load_data(given)


def test_loaded_data_only_gains_a_dev_split():
    queries = {f"q{n}": f"{n}" for n in range(10)}
    data = RetrievalData("mine", [Document("d", "x")], queries, {"train": {key: {"d": 1} for key in queries}})
    assert load_data(data, dev_fraction=0) is data
    assert len(load_data(data).qrels["dev"]) == 1
    assert load_data(load_data(data)).qrels == load_data(data).qrels
