"""One query: its options, scores, explanation and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_palmette import TreeRetriever
from palmette.errors import ConfigError, InputError

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
    "wrong",
    [{"kk": 3}, {"k": 0}, {"k": "many"}, {"level": 0}, {"engine": "annoy"}, {"filter": {"a": {1, 2}}}],
    ids=str,
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
