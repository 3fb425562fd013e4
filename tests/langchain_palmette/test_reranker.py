"""Documents of any retriever, ranked by the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import Document

from langchain_palmette import PalmetteReranker
from palmette import TreeModel
from palmette.errors import ConfigError, InputError

QUESTION = "The green owl lives in house 10 and sings at night."


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
    with pytest.raises(ConfigError, match="levle"):
        PalmetteReranker(model=model, search_options={"levle": 1}).compress_documents(documents, QUESTION)
    with pytest.raises(InputError, match="query"):
        PalmetteReranker(model=model).compress_documents(documents, "")
