"""The retriever of each method: options of its own and per query, refused options, refused models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from palmette import Document, Index
from palmette.errors import PalmetteError
from support import shop, taxonomies, tiny
from support.frameworks import FRAMEWORKS

QUESTION = "where does the red owl live?"


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "tree": (tiny.tree, tiny.documents, QUESTION),
    "fields": (shop.quick, shop.shop, "golden owl 22"),
    "layers": (tiny.layers, tiny.documents, QUESTION),
    "paths": (tiny.paths, tiny.documents, QUESTION),
    "taxonomy": (taxonomies.zoo_model, taxonomies.zoo, "owl 3"),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "tree": [{"level": 2}, {"level": 3}],
    "fields": [
        {"by": "aggregate"},
        {"fields": ["brand"], "by": "best"},
        {"by": "two_stage", "shortlist": 60, "blend": 0.0},
        {"weights": {"title": 3.0, "text": 0.5}, "blend": 0.0, "shortlist": 50},
    ],
    "layers": [{"order": "fused"}, {"order": "layer"}, {"layers": (1, 2)}],
    "paths": [{"beam": 2}, {"visit": 0.2}, {"visit": 9}, {"visit": "auto"}],
    "taxonomy": [{"order": "specific"}, {"within": "owl"}, {"order": "specific", "cut": 0.5}],
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tree": ({"level": 6}, "level must be between 1 and 5, got 6"),
    "fields": ({"fields": ["colour"]}, "no field 'colour'"),
    "layers": ({"layers": (9,)}, "layer 9 "),
    "paths": ({"visit": 1.5}, "visit must be a share"),
    "taxonomy": ({"within": "wolf"}, "no node 'wolf'"),
}


@cache
def index_of(name: str, method: str) -> Index:
    model, documents, _ = CASES[method]
    return FRAMEWORKS[name].build(model().retriever, documents(), model()).index


@pytest.fixture
def over(request: pytest.FixtureRequest, framework: Any) -> Callable[..., Any]:
    """Makes a retriever over a method's documents."""
    name = request.node.callspec.params["framework"]

    def make(method: str, **options: Any) -> Any:
        index = index_of(name, method)
        return framework.over(index.model.retriever, index, **{"k": 3, "lexical": 0} | options)

    return make


def pairs(found: Any) -> list[tuple[str, float]]:
    return [(one.id, one.score) for one in found]


@pytest.mark.parametrize("method", CASES)
def test_every_search_option_is_an_attribute(over: Any, method: str) -> None:
    retriever = over(method)
    names = retriever.index.model.search_class.names()
    assert [name for name in names if not hasattr(retriever, name)] == []


@pytest.mark.parametrize("method", CASES)
def test_options_are_attributes_and_may_be_given_per_query(framework: Any, over: Any, method: str) -> None:
    query, plain = CASES[method][-1], over(method)
    default = pairs(framework.ask(plain, query))
    assert default == pairs(plain.index.search(query, 3, lexical=0))
    for options in OPTIONS[method]:
        expected = pairs(plain.index.search(query, 3, lexical=0, **options))
        made, changed = over(method, **options), over(method)
        assert {name: getattr(made, name) for name in options} == options
        for name, value in options.items():
            setattr(changed, name, value)
        assert pairs(framework.ask(made, query)) == pairs(framework.ask(changed, query)) == expected
        assert pairs(framework.ask(plain, query, **options)) == expected
        assert pairs(framework.ask(plain, query)) == default, "nothing sticks"


@pytest.mark.parametrize("method", CASES)
def test_wrong_options_and_models_are_named(framework: Any, over: Any, method: str) -> None:
    retriever, (wrong, told) = over(method), REFUSED[method]
    for use in (lambda: framework.ask(retriever, CASES[method][-1], **wrong), lambda: over(method, **wrong)):
        with pytest.raises((PalmetteError, ValueError), match=told):
            use()
    other = "PathRetriever" if method == "tree" else "TreeRetriever"
    with pytest.raises(PalmetteError, match=f"'{method}'.*: use "):
        framework.over(other, retriever.index)


def test_a_mapping_of_fields_belongs_to_training(over: Any) -> None:
    with pytest.raises((PalmetteError, ValueError), match=r"FieldsModel\.fit.*fields=\['brand'\]"):
        over("fields", fields={"brand": "metadata.brand"})


def test_lexical_is_an_option_of_retrievers_and_queries(framework: Any) -> None:
    documents = [*tiny.documents(), Document("part", "Spare part dv7-1211ea.")]
    retriever = framework.build("TreeRetriever", documents, tiny.tree(), lexical=0.95, k=1)
    assert framework.ask(retriever, "dv7-1211ea")[0].id == "part"
    first, second, *_ = framework.ask(retriever, "dv7-1211ea", lexical=1, k=9)
    how = {"lexical": 1, "k": 9, "score_threshold": (first.score + second.score) / 2, "explain": True}
    [only] = framework.ask(retriever, "dv7-1211ea", **how)
    assert only.id == "part"
    assert "word 'dv7'" in [part["name"] for part in only.why["parts"]]
    with pytest.raises((PalmetteError, ValueError), match="lexical"):
        framework.ask(retriever, "owl", lexical=7)
