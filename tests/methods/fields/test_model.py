"""Searching, explaining, keeping and loading a model of fields."""

import json
from pathlib import Path

import numpy as np
import pytest

from palmette import Document, FakeEncoder, FieldsModel
from palmette.cli import main
from palmette.errors import ConfigError
from palmette.methods.fields import FieldsConfig, FieldsSearch, FieldsWarning
from palmette.methods.fields.explain import explain
from palmette.methods.fields.search import AGGREGATE
from palmette.methods.fields.search import FIELDS as VECTORS
from support.alone import Index
from support.shop import FIELDS, index, model, questions, shop, train
from support.tiny import learner

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


def test_an_empty_field_says_what_it_sees() -> None:
    config = FieldsConfig(fields=("brand", "title"))
    vectors, query = np.array([[-1.0, 0.0], [0.5, 0.0]], np.float32), np.array([1.0, 0.0], np.float32)
    weights, texts = np.array([1.0, 0.0], np.float32), {"brand": "red", "title": ""}
    options = FieldsSearch(blend=0.0)
    told = explain(config, options, query, vectors, weights, vectors[0], texts, len)
    assert (told.detail["field"], told.detail["text"]) == ("title", "red")
    vectors[1] = 0  # a field that is not there outranks none
    told = explain(config, options, query, vectors, weights, vectors[0], texts, len)
    assert (told.detail["field"], told.score) == ("brand", -1)


def test_hits_say_that_the_whole_matched() -> None:
    index = Index.build(shop(), train(whole=True, steps=0))
    hit = index.search("golden owl", k=1, lexical=0, by="best", fields=["all"])[0]
    told = hit.explain()
    assert told.detail["field"] == "all"
    assert [part.name for part in told.parts] == ["all"]
    assert sum(part.value for part in told.parts) == pytest.approx(hit.score, abs=1e-4)


def test_the_words_that_matched_are_a_sentence_of_a_long_field() -> None:
    long = Document("long", "Nothing to see here at all. " * 12 + "The owl lives in house 22 and sings.")
    made = Index.build([long], model())
    said = made.explain("owl 22", "long", lexical=0).detail["text"]
    assert 0 < len(said) <= 200
    assert said in long.text


def test_a_trained_model_beats_its_beginning() -> None:
    found = {}
    for name, made in (("before", train(steps=0)), ("after", model())):
        ranks = Index.build(shop(), made).rank([question for question, _ in questions()], k=10, lexical=0).ids
        found[name] = np.mean([right.id in ids for ids, (_, right) in zip(ranks, questions(), strict=True)])
    assert found["after"] > found["before"] + 0.05


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


def test_only_encoders_that_can_learn() -> None:
    with pytest.raises(ConfigError, match="this method trains sentence-transformers encoders"):
        FieldsModel.fit(questions(), encoder=FakeEncoder(8), fields=FIELDS)


def test_documents_that_differ_in_a_field_alone_are_scored_apart() -> None:
    alike = [Document(brand, "The owl.", metadata={"brand": brand}) for brand in ("red", "blue", "red ")]
    first, second, third = model().score("red owl", alike)
    assert first == third
    assert first != second


@pytest.mark.filterwarnings("ignore:.* has no labelled pairs")
def test_a_table_becomes_a_search_by_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{d.id},{d.fields.get('title', '')},{d.text},{d.metadata['brand']},{d.id}\n" for d in shop()]
    (tmp_path / "shop.csv").write_text("id,title,text,brand,price\n" + "".join(rows))
    ckpt, place = str(tmp_path / "ckpt"), str(tmp_path / "index")
    train = ["train", "fields", str(tmp_path / "shop.csv"), "--out", ckpt, "--encoder", learner().name]
    options = "--fields brand=metadata.brand,title,text --query-tokens 9 --device cpu --quiet"
    assert main([*train, *options.split()]) == 0
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text())["config"]
    own = ["brand=metadata.brand", "title", "text"]
    assert config["fields"] == [*own, "all=metadata.brand+title+text"]
    assert config["query_tokens"] == 9
    assert main(["index", ckpt, str(tmp_path / "shop.csv"), "--out", place, "--quiet"]) == 0
    capsys.readouterr()
    chosen = "-k 2 --explain --json --fields title --weights title=2 --blend 0 --lexical 0".split()
    assert main(["search", place, "golden owl", *chosen, "--filter", '{"price": {"$lt": 9}}']) == 0
    found = json.loads(capsys.readouterr().out)
    assert ["similarities" in json.dumps(hit["explanation"]) for hit in found] == [True, True]
    with Index.open(place) as index:
        options = {"fields": ["title"], "weights": {"title": 2}, "blend": 0.0, "filter": {"price": {"$lt": 9}}}
        assert [hit["id"] for hit in found] == [hit.id for hit in index.search("golden owl", k=2, **options)]
