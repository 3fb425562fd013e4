"""Questions, passages and answers from what users have."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from palmette.errors import InputError, NotFoundError
from palmette.reader import load_reading
from palmette.reader.data import occurrences

TEXT = "Rome is old. All roads lead to Rome, the city of Romans."


def test_an_answer_stands_where_it_is_a_word():
    assert occurrences(TEXT, "Rome") == [0, TEXT.index("Rome,")]
    assert occurrences(TEXT, "ROADS") == [TEXT.index("roads")]  # in another case, if not as written
    assert occurrences("costs $12 (net)", "$12") == [6]
    assert occurrences(TEXT, "oma") == occurrences(TEXT, " ") == []
    assert occurrences("snake_case Rome2 2Rome", "Rome") == occurrences("snake_case", "case") == []
    assert occurrences("北京是中国的首都，用Python3写于1998年", "北京") == [0]  # no blanks between words
    assert occurrences("用Python写于1998年", "Python") == [1]
    assert occurrences("用Python写于1998年", "199") == []
    assert occurrences("1998年", "年") == [4]


def test_squads_own_form(tmp_path):
    start = TEXT.index("Rome,")
    asked = [
        {"id": "1", "question": "Where to?", "answers": [{"text": "Rome", "answer_start": start}]},
        {"id": "2", "question": "How far?", "is_impossible": True, "answers": [], "plausible_answers": [{}]},
        {"id": "3", "question": "How old?", "answers": [{"text": "old", "answer_start": 8}]},
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": asked}]}]}))
    data = load_reading(path)
    assert data.name == "train"
    assert [one.answers for one in data.split("train")] == [("Rome",), (), ("old",)]
    assert [one.answered for one in data.split("train")] == [True, False, True]
    assert data.split("train")[0].spans(0, TEXT) == [(start, start + 4)]  # as given, not the first place
    with pytest.raises(NotFoundError, match="'test'"):
        data.split("test")
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    again = load_reading(packed)
    assert (again.name, again.splits) == ("packed", data.splits)
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(InputError, match="packed.json.gz is not in SQuAD's form"):
        load_reading(packed)
    path.write_text("{}")
    with pytest.raises(InputError, match="SQuAD's form"):
        load_reading(path)


def test_records_with_contexts_and_splits(tmp_path):
    records = [
        {"question": "Where to?", "context": TEXT, "answers": ["Rome", "the city"]},
        {"question": "How far?", "context": {"id": "a", "title": "Rome", "text": "is far."}, "answers": []},
        {"question": "And?", "context": TEXT, "answers": [{"text": "old", "start": 8}], "split": "dev"},
    ]
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    for data in (load_reading(path), load_reading(records)):
        assert [passage.text for passage in data.passages] == [TEXT, "Rome is far."]
        assert {name: len(asked) for name, asked in data.splits.items()} == {"train": 2, "dev": 1}
        assert data.split("train")[0].spans(0, TEXT)[0] == (0, 4)
        assert data.split("train")[0].spans(1, TEXT) == []  # not its passage
        assert load_reading(data) is data


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"question": " "}, "question"),
        ({"answers": "Rome"}, "must be a list"),
        ({"answers": ["Paris"]}, "'Paris' is not in its context"),
        ({"answers": ["Rome", "oman"]}, "'oman' is not in its context .* as whole words: .*'start'"),
        ({"answers": [{"text": "Rome", "start": 3}]}, "should start at character 3"),
        ({"answers": [{"text": "Rome", "start": "x"}]}, "must be an int, got 'x'"),
        ({"answers": {"text": ["Rome"], "answer_start": [3]}}, "should start at character 3"),
        ({"answers": {"text": ["Rome"], "answer_start": []}}, "of one length; got"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, changed, message):
    good = {"question": "Where to?", "context": TEXT, "answers": ["Rome"]}
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(map(json.dumps, [good, good | changed])))
    with pytest.raises(InputError, match=f"asked.jsonl:2.*{message}"):
        load_reading(path)


def test_a_beir_folder_whose_queries_have_answers(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d", "title": "Rome", "text": TEXT}))
    queries = [
        {"_id": "q", "text": "Where to?", "answers": [{"text": "Rome"}, "Rome"]},
        {"_id": "p", "text": "Why?"},
        {"_id": "r", "text": "How?", "answers": {"text": ["old"], "answer_start": [8]}},
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    for split, query in (("train", "q"), ("dev", "p"), ("test", "r")):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"{query}\td\t1\n")
    data = load_reading(tmp_path)
    (asked,), (unmarked,) = data.split("train"), data.split("dev")
    assert (asked.question, asked.answers, asked.passages) == ("Where to?", ("Rome",), (0,))
    assert asked.spans(0, data.passages[0].text)[0] == (0, 4)
    assert data.split("test")[0].answers == ("old",)
    assert (unmarked.answers, unmarked.passages) == (None, (0,))  # only its passage is known


def test_held_out_questions_share_no_passage_with_training():
    records = [{"question": f"q{n}", "context": f"text {n // 2}", "answers": ["text"]} for n in range(40)]
    data = load_reading(records)
    train, dev = ({one.passages for one in data.split(name)} for name in ("train", "dev"))
    assert len(dev) == 2
    assert not train & dev


def test_answers_as_the_hubs_copies_of_squad_have_them(tmp_path):
    start, row = TEXT.index("Rome,"), {"id": "1", "question": "Where to?", "context": TEXT}
    rows = [
        row | {"answers": {"text": ["Rome"], "answer_start": [start]}},
        row | {"question": "How far?", "answers": {"text": [], "answer_start": []}},
    ]
    # as Parquet is read
    arrays = {"text": np.array(["old"], object), "answer_start": np.array([8], np.int32)}
    data = load_reading([*rows, {"question": "How old?", "context": TEXT, "answers": arrays}])
    first, second, third = data.split("train")
    assert first.spans(0, TEXT) == [(start, start + 4)]
    assert not second.answered
    assert third.spans(0, TEXT) == [(8, 11)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert load_reading(path).split("train") == [first, second]
