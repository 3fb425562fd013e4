"""The retriever of each method: options as fields and per call, refused options, refused models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import (
    FusionRetriever,
    MultiFieldRetriever,
    PalmetteRetriever,
    PathRetriever,
    PerLayerRetriever,
    TaxonomyRetriever,
    TreeRetriever,
)
from palmette import FusionModel, Index
from palmette.errors import PalmetteError
from support import shop, taxonomies, tiny

QUESTION = "where does the red owl live?"


def given(documents: Any) -> list[Document]:
    """LangChain documents; fields go to the metadata, where MultiFieldRetriever reads them."""
    return [
        Document(id=d.id, page_content=d.text, metadata={**d.metadata, **{"title": ""}, **d.fields})
        if d.fields
        else Document(id=d.id, page_content=d.text, metadata=dict(d.metadata))
        for d in documents
    ]


@dataclass
class Case:
    kind: type[PalmetteRetriever]
    model: Callable[[], Any]
    documents: Callable[[], Any]
    query: str
    options: list[dict[str, Any]]
    """Search options, as fields or per call."""
    invalid: list[dict[str, Any]]
    """Options that no field takes."""
    refused: tuple[dict[str, Any], str]
    """Options that the search refuses, and how."""


CASES = {
    "tree": Case(
        TreeRetriever,
        tiny.tree,
        tiny.documents,
        QUESTION,
        [{"level": 2}, {"level": 3}, {"rerank": True, "shortlist": 7}],
        [{"level": "best"}, {"rerank": "llm"}, {"shortlist": 0}],
        ({"level": 6}, "level must be between 1 and 5, got 6"),
    ),
    "fields": Case(
        MultiFieldRetriever,
        shop.model,
        shop.shop,
        "golden owl 22",
        [
            {"by": "aggregate"},
            {"fields": ["brand"], "by": "best"},
            {"weights": {"title": 3.0, "text": 0.5}, "blend": 0.0, "shortlist": 50},
        ],
        [{"by": "guess"}, {"shortlist": 0}, {"blend": 3}],
        ({"fields": ["colour"]}, "no field 'colour'"),
    ),
    "layers": Case(
        PerLayerRetriever,
        tiny.layers,
        tiny.documents,
        QUESTION,
        [{"order": "fused"}, {"order": "layer", "budget": (1, 0, 2)}, {"layers": (1, 2)}],
        [{"order": "random"}, {"layers": "first"}],
        ({"layers": (9,)}, "layer 9 "),
    ),
    "paths": Case(
        PathRetriever,
        tiny.paths,
        tiny.documents,
        QUESTION,
        [{"beam": 2}, {"visit": 0.2}, {"visit": 9}, {"visit": "auto", "tolerance": 0.1}],
        [{"beam": 0}, {"beam": True}, {"tolerance": 2}, {"visit": "all"}, {"visit": True}],
        ({"visit": 1.5}, "visit must be a share"),
    ),
    "taxonomy": Case(
        TaxonomyRetriever,
        taxonomies.zoo_model,
        taxonomies.zoo,
        "owl 3",
        [{"order": "specific"}, {"within": "owl"}, {"closed": True, "cut": 0.5}],
        [{"cut": 2}, {"order": "random"}],
        ({"within": "wolf"}, "no node 'wolf'"),
    ),
}


@cache
def retriever_of(method: str) -> Any:
    case = CASES[method]
    return case.kind.from_documents(given(case.documents()), case.model(), k=3, lexical=0, score_key="score")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def retriever(request: pytest.FixtureRequest, case: Case) -> Any:
    return retriever_of(request.node.callspec.params["case"])


def test_options_are_fields_and_may_be_given_per_call(case: Case, retriever: Any) -> None:
    for options in case.options:
        hits = retriever.index.search(case.query, 3, lexical=0, **options)
        expected = [(hit.id, hit.score) for hit in hits]
        by_field = retriever.model_copy(update=options).invoke(case.query)
        for found in (by_field, retriever.invoke(case.query, **options)):
            assert [(d.id, d.metadata["score"]) for d in found] == expected
        none = dict.fromkeys([*options, "k", "filter", "lexical"])
        default = retriever.invoke(case.query)
        assert retriever.model_copy(update=options).invoke(case.query, **none) == default


def test_wrong_options_are_refused(case: Case, retriever: Any, tmp_path: Path) -> None:
    for wrong in case.invalid:
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            case.kind(index_path=tmp_path, **wrong)
    options, message = case.refused
    with pytest.raises(PalmetteError, match=message):
        retriever.invoke(case.query, **options)


def test_wrong_models_are_refused(case: Case, retriever: Any) -> None:
    other = PathRetriever if case.kind is TreeRetriever else TreeRetriever
    with pytest.raises(PalmetteError, match=case.kind.__name__):
        other.from_index(retriever.index)


# -- documents with fields ----------------------------------------------------------------------------------


def test_fields_come_from_metadata() -> None:
    retriever = retriever_of("fields")
    found = retriever.invoke("golden owl 22", explain=True)
    assert len(found) == 3
    for document in found:
        detail = document.metadata["explanation"]["method"]["detail"]
        assert set(detail["similarities"]) == {"brand", "title", "text"}
        assert detail["field"] in detail["similarities"]
        assert detail["text"]
    cheap = retriever.invoke("golden owl 22", k=60, filter={"price": {"$lt": 10}})
    assert {d.metadata["price"] for d in cheap} == set(range(10))


def test_a_document_of_fields_alone_has_a_page() -> None:
    products = [
        {"id": "1", "fields": {"brand": "Ovine", "title": "golden owl socks"}},
        {"id": "2", "text": "a cat"},
    ]
    found = MultiFieldRetriever.from_index(Index.build(products, shop.model())).invoke("golden owl", k=2)
    assert {d.id: d.page_content for d in found} == {"1": "Ovine\ngolden owl socks", "2": "a cat"}


def test_a_mapping_of_fields_belongs_to_training() -> None:
    with pytest.raises(ValidationError, match=r"FieldsModel\.fit.*fields=\['brand'\]"):
        MultiFieldRetriever.from_index(retriever_of("fields").index, fields={"brand": "metadata.brand"})


# -- layers, paths, taxonomy --------------------------------------------------------------------------------


def test_layers_take_turns() -> None:
    def finders(retriever: Any, **options: Any) -> list[int]:
        found = retriever.invoke(QUESTION, explain=True, **options)
        return [d.metadata["explanation"]["method"]["detail"]["found_by"] for d in found]

    retriever = PerLayerRetriever.from_index(retriever_of("layers").index, k=6, order="layer")
    assert finders(retriever) == [1, 1, 2, 2, 3, 3]
    assert finders(retriever, budget=(1, 0, 2), k=3) == [1, 3, 3]
    assert finders(retriever, layers=(1, 3), k=4) == [1, 1, 3, 3]
    assert set(finders(retriever.model_copy(update={"layers": (1, 2)}))) == {1, 2}
    both = PerLayerRetriever.from_index(retriever.index, search_options={"order": "layer"}, k=3)
    assert both.order is None
    assert finders(both) == [1, 2, 3], "a field that is not set leaves search_options as they are"


def test_options_that_no_search_could_use_are_refused_at_once(tmp_path: Path) -> None:
    documents = given(tiny.documents())
    with pytest.raises(PalmetteError, match="layer 9 is asked for|layer 9 was not trained"):
        PerLayerRetriever.from_documents(documents, tiny.layers(), layers=(9,), index_path=tmp_path / "index")
    assert not (tmp_path / "index").exists(), "nothing was indexed for it"
    kept = PerLayerRetriever.from_documents(
        documents, tiny.layers(), index_path=tmp_path / "index", engine="faiss"
    )
    with pytest.raises(PalmetteError, match="Did you mean 'order'"):
        PerLayerRetriever.from_index(kept.index, search_options={"ordre": "layer"})
    with pytest.raises(PalmetteError, match="needs a share for each"):
        PerLayerRetriever.from_index(tmp_path / "index", order="layer", budget=(1, 2, 3, 4, 5))


def test_paths_visit_everything_if_told_to() -> None:
    retriever = retriever_of("paths")
    assert len(retriever.invoke(QUESTION, visit=1.0, k=48)) == 48
    assert "leaf" in str(retriever.invoke(QUESTION, explain=True, beam=2)[0].metadata)


def test_a_taxonomy_gives_chains_of_ancestors() -> None:
    retriever = retriever_of("taxonomy").model_copy(update={"order": "specific"})
    assert [d.id for d in retriever.invoke("owl 3")] == taxonomies.chain("owl 3")
    assert [d.id for d in retriever.invoke("owl 3", within="owl", k=2)] == ["owl 3", "owl"]
    closed = retriever.model_copy(update={"closed": True, "cut": 0.5, "order": None})
    assert {d.id for d in closed.invoke("owl 3")} == set(taxonomies.chain("owl 3"))


# -- words and fusion ---------------------------------------------------------------------------------------


def test_lexical_is_a_field_and_may_be_given_per_call(documents: list[Document]) -> None:
    documents.append(Document(id="part", page_content="Spare part dv7-1211ea."))
    retriever = TreeRetriever.from_documents(documents, tiny.tree(), lexical=0.95, k=1)
    assert retriever.invoke("dv7-1211ea")[0].id == "part"
    (_, best), (_, next_best), *_ = retriever.similarity_search_with_score("dv7-1211ea", k=9, lexical=1)
    threshold = (best + next_best) / 2
    only = retriever.invoke("dv7-1211ea", lexical=1, k=9, score_threshold=threshold, explain=True)
    assert [found.id for found in only] == ["part"]
    assert "word 'dv7'" in [part["name"] for part in only[0].metadata["explanation"]["parts"]]
    pure = TreeRetriever.from_index(retriever.index, k=5).invoke("red owl", lexical=0)
    assert [d.id for d in pure] == [h.id for h in retriever.index.search("red owl", 5, lexical=0)]
    assert retriever.model_copy().lexical == 0.95
    with pytest.raises(ValidationError, match="lexical"):
        TreeRetriever(index_path="x", lexical=1.5)
    with pytest.raises(PalmetteError, match="lexical"):
        retriever.invoke("owl", lexical=7)


def test_fusion_is_made_of_models_and_opened_again(documents: list[Document], tmp_path: Path) -> None:
    models = [tiny.tree(), tiny.taxonomy()]
    retriever = FusionRetriever.from_documents(documents, models, index_path=tmp_path / "i", k=3)
    found = retriever.invoke(QUESTION, explain=True)
    assert set(found[0].metadata["explanation"]["method"]["detail"]["members"]) == {"0:tree", "1:taxonomy"}
    again = PalmetteRetriever(index_path=tmp_path / "i", k=3)
    assert [d.id for d in again.invoke(QUESTION)] == [d.id for d in found]
    with pytest.raises(PalmetteError, match="FusionRetriever"):
        TreeRetriever.from_index(tmp_path / "i")
    weighted = FusionModel.of(models, weights=[3, 1])
    assert FusionRetriever.from_documents(documents, weighted).index.model is weighted
    with pytest.raises(PalmetteError, match="fusion"):
        FusionRetriever.from_documents(documents, tiny.tree())
