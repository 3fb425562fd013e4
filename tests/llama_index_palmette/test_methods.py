"""The retriever of each method: options as attributes and per query, refused options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from llama_index.core.schema import QueryBundle, TextNode

from llama_index.retrievers.palmette import (
    FusionRetriever,
    MultiFieldRetriever,
    PalmetteQuery,
    PalmetteRerank,
    PathRetriever,
    PerLayerRetriever,
    TaxonomyRetriever,
    TreeRetriever,
)
from palmette import FusionModel, Index
from palmette.errors import PalmetteError
from support import shop, taxonomies, tiny

QUESTION = "where does the red owl live?"


def given(documents: Any) -> list[TextNode]:
    """Nodes known by their texts; fields go to the metadata, where MultiFieldRetriever reads them."""
    nodes = []
    for d in documents:
        metadata = {**d.metadata, **d.fields}
        node = TextNode(id_=d.key, text=d.text, metadata=metadata, excluded_embed_metadata_keys=[*metadata])
        nodes.append(node)
    return nodes


@dataclass
class Case:
    kind: Any
    model: Callable[[], Any]
    documents: Callable[[], Any]
    query: str
    options: list[dict[str, Any]]
    """Search options, as attributes or in a query."""
    refused: tuple[dict[str, Any], str]
    """Options that the search refuses, and how."""


CASES = {
    "tree": Case(
        TreeRetriever,
        tiny.tree,
        tiny.documents,
        QUESTION,
        [{"level": 2}, {"level": 3, "rerank": True, "shortlist": 7}],
        ({"level": 9}, "level must be between 1 and 5"),
    ),
    "fields": Case(
        MultiFieldRetriever,
        shop.model,
        shop.shop,
        "golden owl 22",
        [
            {"by": "best"},
            {"by": "two_stage", "shortlist": 60, "blend": 0.0},
            {"fields": ["brand"], "weights": {"brand": 2.0}},
        ],
        ({"fields": ["colour"]}, "no field 'colour'"),
    ),
    "layers": Case(
        PerLayerRetriever,
        tiny.layers,
        tiny.documents,
        QUESTION,
        [{"order": "layer"}, {"order": "layer", "budget": (1, 0, 2)}, {"layers": (1, 2)}],
        ({"layers": (7,)}, "layer 7 was not trained"),
    ),
    "paths": Case(
        PathRetriever,
        tiny.paths,
        tiny.documents,
        QUESTION,
        [{"beam": 2}, {"visit": 0.5}, {"visit": "auto", "tolerance": 0.1}],
        ({"visit": 2.5}, "visit must be a share"),
    ),
    "taxonomy": Case(
        TaxonomyRetriever,
        taxonomies.zoo_model,
        taxonomies.zoo,
        "owl 3",
        [{"order": "specific"}, {"within": "owl"}, {"closed": True, "cut": 0.5}],
        ({"within": "wolf"}, "no node 'wolf'"),
    ),
}


@cache
def index_of(method: str) -> Index:
    case = CASES[method]
    return case.kind.from_documents(given(case.documents()), case.model()).index


def found(nodes: Any) -> list[tuple[str, float]]:
    return [(scored.node_id, scored.score) for scored in nodes]


@pytest.mark.parametrize("method", CASES)
def test_options_are_attributes_and_may_be_asked_for(method: str) -> None:
    case, index = CASES[method], index_of(method)
    plain = case.kind(index, similarity_top_k=3, lexical=0)
    for options in case.options:
        expected = [(hit.id, hit.score) for hit in index.search(case.query, 3, lexical=0, **options)]
        made = case.kind(index, similarity_top_k=3, lexical=0, **options)
        assert {name: getattr(made, name) for name in options} == options
        assert found(made.retrieve(case.query)) == expected
        assert found(plain.retrieve(PalmetteQuery(case.query, **options))) == expected
        changed = case.kind(index, similarity_top_k=3, lexical=0)
        for name, value in options.items():
            assert getattr(changed, name) is None
            setattr(changed, name, value)
        assert found(changed.retrieve(case.query)) == expected


@pytest.mark.parametrize("method", CASES)
def test_wrong_options_and_models_are_named(method: str) -> None:
    case, index = CASES[method], index_of(method)
    options, message = case.refused
    with pytest.raises(PalmetteError, match=message):
        case.kind(index).retrieve(PalmetteQuery(case.query, **options))
    other = PathRetriever if case.kind is TreeRetriever else TreeRetriever
    with pytest.raises(PalmetteError, match=f"method '{method}'"):
        other(index)


# -- nodes with fields --------------------------------------------------------------------------------------


def test_metadata_are_read_once() -> None:
    """A node's text without the metadata that LlamaIndex puts before it: those are fields of their own."""
    model = shop.model()
    nodes = [TextNode(id_=d.key, text=d.text, metadata={**d.metadata, **d.fields}) for d in shop.shop()]
    plain = [replace(d, metadata={**d.metadata, **d.fields}, fields={}) for d in shop.shop()]
    retriever = MultiFieldRetriever.from_documents(nodes, model, similarity_top_k=5)
    (seventh,) = retriever.index.get(["7"])
    texts = ["blue", "fox 7", shop.shop()[7].text]
    assert model.extractor.read(seventh) == model.extractor.read(plain[7]) == texts
    expected = [(hit.id, hit.score) for hit in Index.build(plain, model).search("golden owl 22", k=5)]
    results = retriever.retrieve("golden owl 22")
    assert found(results) == [(id, pytest.approx(score, abs=1e-6)) for id, score in expected]
    assert results[0].node == next(node for node in nodes if node.node_id == results[0].node_id)
    ranked = PalmetteRerank(model, top_n=5, lexical=0).postprocess_nodes(results, query_str="golden owl 22")
    scores = model.score("golden owl 22", [plain[int(n.node_id)] for n in ranked], lexical=0)
    assert [n.score for n in ranked] == pytest.approx(scores, abs=1e-6)


def test_several_texts_of_a_query_are_one_question() -> None:
    """As LlamaIndex's HyDE asks: with the texts that an answer might have, and the question."""
    retriever = MultiFieldRetriever(index_of("fields"), similarity_top_k=3, by="best", lexical=0)
    texts = ["a golden owl of brass", "golden owl 22"]
    bundle = QueryBundle("golden owl 22", custom_embedding_strs=texts)
    nodes = retriever.retrieve(bundle)
    [expected] = retriever.index.search([tuple(texts)], 3, by="best", lexical=0)
    assert found(nodes) == [(hit.id, pytest.approx(hit.score)) for hit in expected]
    assert retriever.explain(bundle, nodes[0].node_id).score == pytest.approx(nodes[0].score, abs=1e-6)
    first, _, last = retriever.retrieve_batch([bundle, "golden owl 22", bundle])
    assert [n.node_id for n in first] == [n.node_id for n in last] == [hit.id for hit in expected]


def test_a_mapping_of_fields_belongs_to_training() -> None:
    with pytest.raises(PalmetteError, match=r"FieldsModel\.fit.*fields=\['brand'\]"):
        MultiFieldRetriever(index_of("fields"), fields={"brand": "metadata.brand"})


# -- layers, taxonomy, words, fusion ------------------------------------------------------------------------


def test_layers_take_turns() -> None:
    retriever = PerLayerRetriever(index_of("layers"), similarity_top_k=6, order="layer", explain=True)

    def finders(**options: Any) -> list[int]:
        nodes: Any = retriever.retrieve(PalmetteQuery(QUESTION, **options))
        return [node.explanation.method.detail["found_by"] for node in nodes]

    assert finders() == [1, 1, 2, 2, 3, 3]
    assert finders(budget=(1, 0, 2), top_k=3) == [1, 3, 3]
    assert finders(layers=(1, 3), top_k=4) == [1, 1, 3, 3]


def test_a_taxonomy_gives_chains_of_ancestors() -> None:
    retriever = TaxonomyRetriever(index_of("taxonomy"), similarity_top_k=3, order="specific")
    assert [n.node_id for n in retriever.retrieve("owl 3")] == taxonomies.chain("owl 3")


def with_part() -> list[TextNode]:
    return [*given(tiny.documents()), TextNode(id_="part", text="Spare part dv7-1211ea.")]


def test_lexical_is_an_option_of_retrievers_and_queries() -> None:
    retriever = TreeRetriever.from_documents(with_part(), tiny.tree(), lexical=0.95, similarity_top_k=1)
    assert retriever.retrieve("dv7-1211ea")[0].node_id == "part"
    first, second, *_ = retriever.retrieve(PalmetteQuery("dv7-1211ea", lexical=1, top_k=9))
    assert first.node_id == "part"
    only = PalmetteQuery("dv7-1211ea", lexical=1, top_k=9, score_threshold=(first.score + second.score) / 2)
    assert [scored.node_id for scored in retriever.retrieve(only)] == ["part"]
    assert retriever.settings()["lexical"] == 0.95
    assert "word 'dv7'" in [part.name for part in retriever.explain("dv7-1211ea", "part").parts]
    vector = tiny.tree().encoder.plain.encode_queries(["red owl"])[0].tolist()
    [pure] = retriever.retrieve(QueryBundle("red owl", embedding=vector))
    assert pure.score == pytest.approx(retriever.index.search("red owl", 1, lexical=0)[0].score, abs=1e-5)
    with pytest.raises(PalmetteError, match="lexical"):
        retriever.retrieve(PalmetteQuery("owl", lexical=7))


def test_fusion_is_made_of_models() -> None:
    models = [tiny.tree(), tiny.taxonomy()]
    weighted = FusionModel.of(models, weights=[3, 1])
    retriever = FusionRetriever.from_documents(with_part(), weighted, explain=True)
    [best, _] = retriever.retrieve(QUESTION)
    assert set(best.explanation.method.detail["members"]) == {"0:tree", "1:taxonomy"}
    assert retriever.index.model is weighted
    equal = FusionRetriever.from_documents(with_part(), models)
    assert equal.index.model.config.weights == (0.5, 0.5)
    with pytest.raises(PalmetteError, match="fusion"):
        FusionRetriever.from_documents(with_part(), tiny.tree())
