"""One query: its options, scores, explanation and errors; what fields add to the options of each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import (
    MultiFieldRetriever,
    PalmetteRetriever,
    PathRetriever,
    PerLayerRetriever,
    TaxonomyRetriever,
    TreeRetriever,
)
from palmette import Index
from palmette.errors import ConfigError, InputError, PalmetteError
from support import shop, tiny

QUESTION = "The green owl lives in house 10 and sings at night."


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


@pytest.mark.parametrize("options", [{}, {"score_key": "score"}, {"score_key": "similarity"}])
def test_where_the_score_goes(retriever: TreeRetriever, options: dict[str, Any]) -> None:
    other = TreeRetriever.from_index(retriever.index, **options)
    metadata = other.invoke(QUESTION)[0].metadata
    assert set(metadata) == {"colour", "animal", "house", "tags"} | {*options.values()}


def test_a_score_that_a_document_has_itself_stays_in_the_index(empty: TreeRetriever) -> None:
    empty.upsert([Document(id="a", page_content="a green owl", metadata={"score": "AAA", "explanation": 1})])
    assert TreeRetriever.from_index(empty.index, score_key="score").invoke("owl")[0].metadata["score"] > 0
    assert empty.get(["a"])[0].metadata == {"score": "AAA", "explanation": 1}
    [(document, score)] = empty.similarity_search_with_score("owl")
    assert document.metadata == {"score": "AAA", "explanation": 1}
    assert score > 0
    both = TreeRetriever.from_index(empty.index, score_key="retrieval_score").invoke("owl")[0].metadata
    assert both["score"] == "AAA"
    assert both["retrieval_score"] == score


def test_a_filter_set_later_counts(retriever: TreeRetriever) -> None:
    one = TreeRetriever.from_index(retriever.index, k=48)
    one.filter = {"colour": "red"}
    assert len(one.invoke(QUESTION)) == 8


def test_score_threshold(retriever: TreeRetriever) -> None:
    scores = [one.metadata["score"] for one in retriever.invoke(QUESTION, k=48)]
    border = (scores[2] + scores[3]) / 2
    assert len(retriever.invoke(QUESTION, k=48, score_threshold=border)) == 3
    strict = TreeRetriever.from_index(retriever.index, k=48, score_threshold=border)
    assert len(strict.invoke(QUESTION)) == 3
    assert len(strict.invoke(QUESTION, score_threshold=0.0)) == 48
    assert retriever.invoke(QUESTION, score_threshold=1.1) == []


def test_similarity_search_with_score(retriever: TreeRetriever, documents: list[Document]) -> None:
    found = retriever.similarity_search_with_score(QUESTION, 2, filter={"animal": "owl"}, level=4)
    assert [document.metadata["animal"] for document, _ in found] == ["owl", "owl"]
    assert all(document in documents and type(score) is float for document, score in found)
    assert found[0][1] >= found[1][1]
    assert len(retriever.similarity_search_with_score(QUESTION)) == 4
    [(why, score), *_] = retriever.similarity_search_with_score(QUESTION, explain=True)
    assert why.metadata["explanation"]["score"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("query", ["", "  \n", None, 7])
def test_queries_that_are_none(retriever: TreeRetriever, query: Any) -> None:
    with pytest.raises(InputError, match="query"):
        retriever.invoke(query)


def test_unknown_options_name_the_known_ones(retriever: TreeRetriever) -> None:
    with pytest.raises(ConfigError, match=r"no option 'levle'. Did you mean 'level'.*filter, k, level"):
        retriever.invoke(QUESTION, levle=2)
    with pytest.raises(ConfigError, match="no option 'threshold'"):
        retriever.similarity_search_with_score(QUESTION, threshold=0.5)


@pytest.mark.parametrize(
    "wrong", [{"kk": 3}, {"k": 0}, {"k": "many"}, {"level": 0}, {"engine": "annoy"}, {"filter": {"a": {1, 2}}}], ids=str
)
def test_constructors_are_strict(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TreeRetriever(index_path=folder, **wrong)


def test_assignments_are_strict(retriever: TreeRetriever) -> None:
    one = TreeRetriever.from_index(retriever.index)
    one.k = 2
    assert len(one.invoke(QUESTION)) == 2
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        one.k = 0
    with pytest.raises(ValueError, match="frozen"):
        one.index_path = "elsewhere"


@pytest.mark.parametrize(
    ("kind", "invalid"),
    [
        (TreeRetriever, [{"level": "best"}, {"rerank": "llm"}, {"shortlist": 0}, {"lexical": 1.5}]),
        (MultiFieldRetriever, [{"by": "guess"}, {"shortlist": 0}, {"blend": 3}]),
        (PerLayerRetriever, [{"order": "random"}, {"layers": "first"}]),
        (PathRetriever, [{"beam": 0}, {"beam": True}, {"tolerance": 2}, {"visit": "all"}, {"visit": True}]),
        (TaxonomyRetriever, [{"cut": 2}, {"order": "random"}]),
    ],
)
def test_fields_take_no_wrong_options(kind: Any, invalid: list[dict[str, Any]], tmp_path: Path) -> None:
    for wrong in invalid:
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            kind(index_path=tmp_path, **wrong)


def test_a_document_of_fields_alone_has_a_page() -> None:
    fields = {"brand": "Ovine", "title": "golden owl socks"}
    products = [{"id": "1", "fields": fields}, {"id": "2", "text": "a cat"}]
    found = MultiFieldRetriever.from_index(Index.build(products, shop.model())).invoke("golden owl", k=2)
    assert {d.id: d.page_content for d in found} == {"1": "Ovine\ngolden owl socks", "2": "a cat"}


def test_what_is_not_set_leaves_other_options(documents: list[Document]) -> None:
    index = PerLayerRetriever.from_documents(documents, tiny.layers()).index
    both = PerLayerRetriever.from_index(index, search_options={"order": "layer"}, k=3)
    assert both.order is None
    layered = PerLayerRetriever.from_index(index, order="layer", k=3)
    assert both.invoke(QUESTION) == layered.invoke(QUESTION)
    none = dict.fromkeys(["order", "k", "filter", "lexical"])
    assert layered.invoke(QUESTION, **none) == PerLayerRetriever.from_index(index).invoke(QUESTION, k=3)


def test_options_that_no_search_could_use_are_refused_at_once(documents: list[Document], tmp_path: Path) -> None:
    with pytest.raises(PalmetteError, match="layer 9 is asked for|layer 9 was not trained"):
        PerLayerRetriever.from_documents(documents, tiny.layers(), layers=(9,), index_path=tmp_path / "index")
    assert not (tmp_path / "index").exists(), "nothing was indexed for it"
    how: Any = {"index_path": tmp_path / "index", "engine": "faiss"}
    kept = PalmetteRetriever.from_documents(documents, tiny.layers(), **how)
    with pytest.raises(PalmetteError, match="Did you mean 'order'"):
        PerLayerRetriever.from_index(kept.index, search_options={"ordre": "layer"})
    with pytest.raises(PalmetteError, match="needs a share for each"):
        PerLayerRetriever.from_index(tmp_path / "index", order="layer", budget=(1, 2, 3, 4, 5))
