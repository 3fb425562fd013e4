"""Searching, explaining, keeping and loading a model of fields."""

import numpy as np
import pytest

from palmette import Document
from palmette.errors import ConfigError
from palmette.methods.fields import FieldsWarning
from palmette.methods.fields.search import AGGREGATE
from palmette.methods.fields.search import FIELDS as VECTORS
from support.alone import Index
from support.shop import FIELDS, index, model, shop, train

QUERY = "golden owl 22"


def test_every_way_of_searching_is_what_it_says() -> None:
    made = Index.build(shop(), train(stored="float32"))
    arrays, query = made.model.encode_documents(shop()), made.model.encode_queries([QUERY], None)[AGGREGATE][0]
    whole, best = arrays[AGGREGATE] @ query, (arrays[VECTORS] @ query).max(1)
    listed = whole >= np.sort(whole)[-20]
    for by, blend, scores in (
        ("aggregate", 0.0, whole),
        ("best", 0.0, best),
        ("two_stage", 0.0, np.where(listed, best, -np.inf)),
        ("two_stage", 0.25, np.where(listed, 0.25 * whole + 0.75 * best, -np.inf)),
    ):
        hits = made.search(QUERY, k=12, by=by, shortlist=20, blend=blend)
        order = np.argsort(-scores, kind="stable")[:12]
        assert [hit.id for hit in hits] == [shop()[row].id for row in order]
        assert [hit.score for hit in hits] == pytest.approx(scores[order].tolist(), abs=1e-5)


def test_an_explanation_names_fields_and_their_words() -> None:
    for options in ({}, {"weights": {"title": 2.5, "text": 0.5}, "fields": ["title", "text"]}, {"by": "best"}):
        hits = index().search(QUERY, k=60, **options)
        for hit in hits:
            explanation, detail = hit.explain(), hit.explain().detail
            assert sum(part.value for part in explanation.parts) == pytest.approx(hit.score, abs=1e-5)
            assert {part.name for part in explanation.parts} <= {*FIELDS, "rounding of stored vectors"}
            assert detail["similarities"].keys() == detail["weights"].keys() == FIELDS.keys()
            assert sum(detail["weights"].values()) == pytest.approx(1, abs=1e-5)
            assert detail["text"] in model().extractor.read(hit.document)
            assert detail["field"] in explanation.text
    similar = hits[0].explain().detail["similarities"]  # of a search by the best field
    assert hits[0].score == pytest.approx(max(similar.values()), abs=1e-5)


def test_the_words_that_matched_are_a_sentence_of_a_long_field() -> None:
    long = Document("long", "Nothing to see here at all. " * 12 + "The owl lives in house 22 and sings.")
    made = Index.build([long], model())
    said = made.explain("owl 22", "long", lexical=0).detail["text"]
    assert 0 < len(said) <= 200
    assert said in long.text


def test_documents_with_missing_unknown_and_odd_fields() -> None:
    odd = [
        Document(id="none", text="golden owl 22"),
        Document(id="other", text="a cat", fields={"colour": "red"}),
        Document("list", "x", {"brand": ["red", "blue"]}, {"title": {"kind": "cat", "n": 3.0}}),
        Document(id="only", fields={"title": "owl 22"}),
        Document(id="blank", text="…", fields={"title": "  "}),
    ]
    made = Index.build(odd, model())
    assert {hit.id for hit in made.search("red cat", k=9, lexical=0)} == {d.id for d in odd}
    for hit in made.search("red cat", k=9, lexical=0):
        assert np.isfinite(hit.score)
        assert hit.explain().text


def test_options_that_do_not_exist_are_refused() -> None:
    for options, words in (
        ({"fields": ["colour"]}, "no field 'colour'; fields: brand, title, text"),
        ({"weights": {"colour": 1}}, "no field 'colour'"),
        ({"weights": {"title": -1}}, "a weight is field=number above 0"),
        ({"weights": {"title": "much"}}, "a weight is field=number above 0"),
        ({"by": "aggregate", "fields": ["title"]}, "compares all fields in one vector"),
        ({"by": "guess"}, "by must be"),
        ({"shortlist": 0}, "shortlist must be at least 1"),
        ({"blend": 2.0}, "blend must be at most 1, got 2.0"),
        ({"field": "title"}, "Did you mean 'fields'"),
    ):
        with pytest.raises(ConfigError, match=words):
            index().search(QUERY, **options)


def test_fields_are_found_where_none_are_given() -> None:
    with pytest.warns(FieldsWarning, match="taking title, text, from short to long"):
        made = train(fields=None, steps=1)
    assert made.config.order == ["title", "text"]
    assert made.describe()["sees"] == {"title": ["title"], "text": ["title", "text"]}


def test_documents_that_differ_in_a_field_alone_are_scored_apart() -> None:
    alike = [Document(brand, "The owl.", metadata={"brand": brand}) for brand in ("red", "blue", "red ")]
    first, second, third = model().score("red owl", alike)
    assert first == third
    assert first != second
