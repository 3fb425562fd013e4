"""Documents of any retriever, ranked by the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import BaseDocumentCompressor, Document

from langchain_palmette import PalmetteReranker, TreeRetriever
from palmette import TreeModel
from palmette.errors import ConfigError, InputError

QUESTION = "The green owl lives in house 10 and sings at night."


def test_the_order_and_scores_are_the_trees(
    model: TreeModel, retriever: TreeRetriever, documents: list[Document]
) -> None:
    found = PalmetteReranker(model=model, lexical=0, search_options={"level": 4}).compress_documents(
        documents[::-1], QUESTION
    )
    hits = retriever.similarity_search_with_score(QUESTION, k=48, level=4, lexical=0)
    expected = {one.id: score for one, score in hits}
    assert isinstance(PalmetteReranker(model=model), BaseDocumentCompressor)
    assert len(found) == 48
    scores = [one.metadata["relevance_score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert all(type(score) is float for score in scores)
    assert {one.id: one.metadata["relevance_score"] for one in found} == pytest.approx(expected, abs=1e-5)


def test_words_count_too(model: TreeModel, documents: list[Document]) -> None:
    given = [
        *documents,
        Document(page_content="Spare part dv7-1211ea."),
        Document(page_content="ein Häuschen"),
    ]
    alone = PalmetteReranker(model=model, lexical=1)
    best, second, *_ = alone.compress_documents(given, "which part is dv7-1211ea?")
    assert best is not second
    assert best.page_content == given[-2].page_content
    assert best.metadata["relevance_score"] > second.metadata["relevance_score"] >= 0
    german = PalmetteReranker(model=model, lexical=1, language="german", top_n=1)
    assert german.compress_documents(given, "Häuschens")[0].page_content == "ein Häuschen"
    learned = PalmetteReranker(model=model).compress_documents(given, QUESTION)
    words = model.calibration(model.search_options({}), "auto").words
    fixed = PalmetteReranker(model=model, lexical=words).compress_documents(given, QUESTION)
    assert learned == fixed
    with pytest.raises(ValueError, match="lexical"):
        PalmetteReranker(model=model, lexical=2)
    with pytest.raises(ConfigError, match="klingon"):
        PalmetteReranker(model=model, language="klingon").compress_documents(given, QUESTION)


def test_documents_are_copied(model: TreeModel) -> None:
    given = [
        Document(id="x", page_content="a green owl", metadata={"score": 0.5, "when": object()}),
        Document(page_content="something else"),
    ]
    before = [dict(one.metadata) for one in given]
    found = PalmetteReranker(model=model).compress_documents(given, QUESTION)
    assert [one.metadata for one in given] == before
    assert found[0].metadata.items() >= before[0].items()
    assert found[0].id == "x"
    assert all(one is not other for one in found for other in given)


def test_top_n_key_and_ties(model: TreeModel, checkpoint: Path) -> None:
    same = [Document(id=str(i), page_content="a green owl") for i in range(5)]
    found = PalmetteReranker(model=checkpoint, top_n=3, score_key=None).compress_documents(same, QUESTION)
    assert found == same[:3]
    assert len(PalmetteReranker(model=model, top_n=9).compress_documents(same, QUESTION)) == 5
    assert PalmetteReranker(model=model).compress_documents([], QUESTION) == []


async def test_async(model: TreeModel, documents: list[Document]) -> None:
    reranker = PalmetteReranker(model=model, top_n=4)
    expected = reranker.compress_documents(documents, QUESTION)
    assert await reranker.acompress_documents(documents, QUESTION) == expected


def test_wrong_settings_and_input(model: TreeModel, documents: list[Document]) -> None:
    for wrong in ({"top_k": 3}, {"top_n": 0}):
        with pytest.raises(ValueError, match="top_"):
            PalmetteReranker(model=model, **wrong)
    with pytest.raises(ConfigError, match="levle"):
        PalmetteReranker(model=model, search_options={"levle": 1}).compress_documents(documents, QUESTION)
    with pytest.raises(InputError, match="query"):
        PalmetteReranker(model=model).compress_documents(documents, "")


def test_blank_documents_come_last(model: TreeModel) -> None:
    texts = ["", "a green owl", " \n", "something else"]
    given = [Document(id=str(place), page_content=text) for place, text in enumerate(texts)]
    found = PalmetteReranker(model=model).compress_documents(given, QUESTION)
    whole = PalmetteReranker(model=model).compress_documents([given[1], given[3]], QUESTION)
    assert found[:2] == whole
    assert [one.id for one in found[2:]] == ["0", "2"]
    assert all(one.metadata["relevance_score"] <= whole[-1].metadata["relevance_score"] for one in found[2:])
    blank = PalmetteReranker(model=model, top_n=1).compress_documents(given[::2], QUESTION)
    assert [one.id for one in blank] == ["0"]
