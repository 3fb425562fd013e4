from __future__ import annotations

import numpy as np
import pytest

from palmette.data import KINDS, load_data
from palmette.data.synthetic import make_queries, sentences, title_of
from palmette.errors import ConfigError, InputError
from palmette.types import Document

FRUITS = ["apple", "pear", "plum", "cherry", "quince", "medlar", "fig", "grape", "lemon", "olive"]
TEXT = (
    "The {0} tree grows slowly in {0}shire near the sea. Growers prune every {0} branch in late winter. "
    "Old {0} orchards feed many bees and {0}birds. Nobody knows who first planted {0} here."
)
BODY = "The body has quite enough words to stand alone."
DOCUMENTS = [Document(f"d{n}", TEXT.format(fruit), {"title": f"On the {fruit}"}) for n, fruit in enumerate(FRUITS)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_its_words_from_its_document(kind):
    made = make_queries(DOCUMENTS, kinds=[kind], cut=0.5)
    assert [item.document for item in made] == list(range(10))
    for item in made:
        document = DOCUMENTS[item.document]
        assert item.kind == kind
        known = f"{document.metadata['title']} {document.text}".lower()
        assert all(word in known for word in item.query.lower().split())
        if kind in ("title", "keywords"):
            assert item.rest in (None, document.text)
        elif item.rest is not None:
            assert item.query not in item.rest
            assert len(item.rest) < len(document.text) - len(item.query) + 3


def test_what_the_kinds_are():
    titles = {item.query for item in make_queries(DOCUMENTS, kinds=["title"])}
    assert titles == {f"On the {fruit}" for fruit in FRUITS}
    leads = [item.query for item in make_queries(DOCUMENTS, kinds=["lead"])]
    assert leads[0] == "The apple tree grows slowly in appleshire near the sea"
    phrases = [item.query.split() for item in make_queries(DOCUMENTS, kinds=["phrase"])]
    assert all(4 <= len(words) <= 12 for words in phrases)
    keywords = [set(item.query.split()) for item in make_queries(DOCUMENTS, kinds=["keywords"])]
    assert keywords == [{fruit, f"{fruit}shire", f"{fruit}birds"} for fruit in FRUITS]


def test_a_title_on_many_documents_gives_way_to_the_first_sentence():
    documents = [Document(d.id, d.text, {"title": "Fruit"}) for d in DOCUMENTS]
    assert {item.query.split()[0] for item in make_queries(documents, kinds=["title"])} == {"The"}


def test_where_titles_come_from():
    assert title_of(Document(text="## Heading ##\nbody")) == "Heading"
    assert title_of(Document(text="body", metadata={"title": "M"}, fields={"title": "F"})) == "F"
    assert title_of(Document(text="#tag and more", metadata={"title": 3})) == ""


@pytest.mark.parametrize(
    ("text", "metadata", "rest"),
    [
        (f"# Lamp\n\n{BODY}", {}, BODY),
        (f"Lamp {BODY}", {"title": "Lamp"}, BODY),
        (f"Lampshades: {BODY}", {"title": "Lamp"}, f"Lampshades: {BODY}"),
    ],
)
def test_a_leading_title_is_taken_off(text, metadata, rest):
    (made,) = make_queries([Document("j", text, metadata)], kinds=["title"], cut=1)
    assert (made.query, made.rest) == ("Lamp", rest)


def test_draws_depend_on_seed_and_id_alone():
    kinds = ["title", "lead", "sentence", "phrase", "sentence"]
    made = make_queries(DOCUMENTS, kinds=kinds)
    assert made == make_queries(DOCUMENTS, kinds=kinds)
    assert make_queries(DOCUMENTS[:3], kinds=kinds) == [item for item in made if item.document < 3]
    assert make_queries(DOCUMENTS, kinds=kinds, seed=1) != made


def test_a_share_is_cut_out():
    documents = [Document(str(n), TEXT.format(f"fruit{n}")) for n in range(400)]
    assert all(item.rest is None for item in make_queries(documents))
    made = make_queries(documents, kinds=["sentence"], cut=0.9)
    assert 0.85 < sum(item.rest is not None for item in made) / len(made) < 0.95
    whole = make_queries(documents, kinds=["sentence"])
    assert {(item.query, item.document) for item in made} == {(item.query, item.document) for item in whole}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One two three four. Five six seven eight!", ["One two three four. ", "Five six seven eight!"]),
        ("He met St. Peter at the gate. He left.", ["He met St. Peter at the gate. He left."]),
        ("One two three four\n\nfive six seven eight", ["One two three four\n\n", "five six seven eight"]),
        ("", []),
        (" \n ", []),
        ("short", ["short"]),
        ("苹果树很高。是的。樱桃树在夏天修剪！", ["苹果树很高。", "是的。樱桃树在夏天修剪！"]),
        ("「本当ですか？！」と言った。彼は帰った。", ["「本当ですか？！」", "と言った。", "彼は帰った。"]),
        ("दिल्ली भारत की राजधानी है। मुंबई एक शहर है।", ["दिल्ली भारत की राजधानी है। ", "मुंबई एक शहर है।"]),
        ("ما هي عاصمة فرنسا؟ إنها مدينة باريس الجميلة.", ["ما هي عاصمة فرنسا؟ ", "إنها مدينة باريس الجميلة."]),
        ("یہ ایک چھوٹا جملہ ہے۔ وہ ایک دوسرا جملہ ہے۔", ["یہ ایک چھوٹا جملہ ہے۔ ", "وہ ایک دوسرا جملہ ہے۔"]),
        ("ต้นไม้ต่างๆ ถูกตัดในฤดูหนาว ชาวนามีความสุข", ["ต้นไม้ต่างๆ ถูกตัดในฤดูหนาว ", "ชาวนามีความสุข"]),
        ("서울은 한국의 수도입니다. 부산은 큰 도시입니다.", ["서울은 한국의 수도입니다. 부산은 큰 도시입니다."]),
    ],
)
def test_sentences(text, found):
    spans = sentences(text)
    assert [text[start:end] for start, end in spans] == found


def test_loaded_data_trains_on_what_remains():
    data = load_data([*DOCUMENTS, Document("short", "tiny")], dev_fraction=0.2, cut=0.9)
    assert (data.labelled, len(data.corpus)) == (False, 11)
    held = {d for judged in data.qrels["dev"].values() for d in judged}
    trained = {d for judged in data.qrels["train"].values() for d in judged}
    assert len(held) == 2
    assert not held & trained
    assert "short" not in held | trained
    pairs = data.pairs("train")
    beyond = pairs.documents >= len(data.corpus)
    assert beyond.sum() == len(data.remainders) > 10
    source = {data.query_rows[query]: next(iter(judged)) for query, judged in data.qrels["train"].items()}
    for query, row in zip(pairs.queries[beyond], pairs.documents[beyond], strict=True):
        words = set(data.texts[row].replace(".", "").split())
        whole = data.corpus[data.rows[source[int(query)]]].text
        assert len(data.texts[row]) <= len(whole)
        assert words <= set(whole.replace(".", "").split())
    mask = data.positives_mask(pairs.queries, pairs.documents)
    same = [[source[int(a)] == source[int(b)] for b in pairs.queries] for a in pairs.queries]
    assert mask.diagonal().all()
    assert (mask == np.array(same)).all()


def test_nothing_to_learn_from():
    with pytest.raises(InputError, match=r"no training queries could be made from 2 documents: .*give pairs"):
        load_data(["tiny", "small"])
    with pytest.raises(ConfigError, match="no kind 'summary' of synthetic queries; kinds: title, lead"):
        load_data(DOCUMENTS, kinds=["summary"])
    with pytest.raises(ConfigError, match="cut must be between 0 and 1, got 2"):
        load_data(DOCUMENTS, cut=2)


def test_scripts_without_blanks_give_every_kind_of_query():
    text, fruits = ("{0}树在山上慢慢长大。农民在冬天修剪{0}树的枝。很多蜜蜂喜欢{0}花。", ("苹果", "樱桃", "柠檬"))
    documents = [Document(f"d{n}", text.format(fruit)) for n, fruit in enumerate(fruits)]
    kinds = {"lead", "sentence", "phrase", "keywords"}
    made = make_queries(documents, kinds=sorted(kinds), cut=1.0)
    assert {item.kind for item in made} == kinds
    for item in made:
        text = documents[item.document].text
        assert all(word in text for word in item.query.split())
        if item.kind in ("phrase", "keywords"):
            assert all(len(word) <= 12 for word in item.query.split())
    keywords = [item.query.split() for item in made if item.kind == "keywords"]
    assert ["苹果" in words for words in keywords] == [True, False, False]


def test_no_phrase_begins_within_a_hindi_word():
    text = "दिल्ली भारत की बहुत बड़ी और पुरानी राजधानी है। मुंबई समुद्र के किनारे एक बड़ा और सुंदर शहर है।"
    words = set(text.replace("।", " ").split())
    for seed in range(20):
        (made,) = make_queries([Document("d", text)], kinds=["phrase"], seed=seed)
        assert set(made.query.split()) <= words
