"""Queries made from fields."""

import random
import re
from dataclasses import replace

import pytest

from palmette import Document, RetrievalData, load_data
from palmette.errors import InputError
from palmette.methods.fields.queries import (
    KINDS,
    MADE,
    WORDS,
    field_queries,
    single_words,
    with_field_queries,
)
from palmette.methods.fields.reading import Reader, as_items
from support.shop import FIELDS, questions, shop

LAPTOP = {
    "brand": "HP",
    "title": "HP Pavilion dv7 Notebook Silver 17 inch",
    "attributes": "colour: Silver, processor: Intel Core 2 Duo, memory: 4 GB, ports: USB, disk: SSD",
    "text": "A large notebook for work and play. It has a bright screen and much memory.",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_its_words_from_the_fields(kind: str) -> None:
    everything = {word.lower() for text in LAPTOP.values() for word in re.findall(r"\w+", text)}
    made = {" ".join(KINDS[kind](LAPTOP, random.Random(seed))) for seed in range(40)}
    assert len(made) > 5
    for query in made:
        assert {word.lower() for word in query.split()} <= everything
        assert 1 <= len(query.split()) <= 9


def test_a_pair_has_the_short_field_and_words_of_another() -> None:
    for seed in range(20):
        first, *rest = KINDS["pair"](LAPTOP, random.Random(seed))
        assert first == "HP"
        assert rest
        assert "HP" not in rest


def test_words_are_dropped_and_shuffled() -> None:
    made = [KINDS["name"](LAPTOP, random.Random(seed)) for seed in range(60)]
    order = LAPTOP["title"].split()
    assert len({len(words) for words in made}) == 4
    assert any([order.index(w) for w in words] != sorted(order.index(w) for w in words) for words in made)


def test_documents_with_little_to_say() -> None:
    for fields in ({"text": "word"}, {"brand": "HP", "title": ""}, {"attributes": "a: b"}):
        made = field_queries(fields, random.Random(0))
        assert made
        assert len({text for _, text in made}) == len(made)
    assert field_queries({"text": ""}, random.Random(0)) == []


def test_a_catalogue_gets_queries_of_its_own() -> None:
    data, reader = load_data(shop()), Reader.of(as_items(FIELDS))
    made = with_field_queries(data, reader, 0)
    assert not made.labelled
    assert set(made.splits) == {"train", "dev", WORDS}
    assert made.qrels["dev"].keys().isdisjoint(made.qrels["train"])
    assert len(made.queries) > 100
    again, other = with_field_queries(data, reader, 0), with_field_queries(data, reader, 1)
    assert made.queries == again.queries
    assert made.queries != other.queries
    with pytest.raises(InputError, match="no queries could be made from the fields title"):
        with_field_queries(RetrievalData("d", [Document(text="!!!")], {}, {}), Reader({"title": "x"}), 0)


def test_made_queries_stand_beside_judged_ones() -> None:
    judged = load_data(questions())
    made = with_field_queries(judged, Reader.of(as_items(FIELDS)), 0)
    assert made.labelled
    assert set(made.splits) == {"train", "dev", MADE, WORDS}
    assert (made.qrels["train"], made.qrels["dev"]) == (judged.qrels["train"], judged.qrels["dev"])
    assert made.queries.items() >= judged.queries.items()
    assert len({*made.qrels[MADE], *made.qrels[WORDS]} | {*judged.queries}) == len(made.queries)


def test_a_made_query_takes_no_judged_one_s_name() -> None:
    plain = with_field_queries(load_data(questions()), Reader.of(as_items(FIELDS)), 0)
    taken = next(iter(plain.qrels[MADE]))
    judged = load_data(questions())
    first = next(iter(judged.queries))
    named = {taken if key == first else key: text for key, text in judged.queries.items()}
    qrels = {
        split: {taken if key == first else key: grades for key, grades in known.items()}
        for split, known in judged.qrels.items()
    }
    made = with_field_queries(replace(judged, queries=named, qrels=qrels), Reader.of(as_items(FIELDS)), 0)
    assert made.queries[taken] == judged.queries[first]
    assert len(made.queries) == len(plain.queries)


def test_every_word_of_any_field_is_asked_for_once() -> None:
    texts = [
        ["Asus", "ROG Mouse RTX"],
        ["Asus", "the mouse 17"],
        ["Asus", "Lamp the"],
        ["Asus", "a the"],
        ["Asus", ""],
    ]
    found = single_words(texts)
    assert found == {"the": [1, 2, 3], "mouse": [0, 1], "rog": [0], "rtx": [0], "lamp": [2]}, (
        "none that all have"
    )
    assert next(iter(found)) == "the", "the most frequent first"
    made = with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0)
    asked = [text for key, text in made.queries.items() if key.startswith(("common", "word"))]
    assert {"owl", "fox"} <= set(asked)
    assert "golden" not in asked, "a third of all have it"
    assert len(asked) == len(set(asked))
