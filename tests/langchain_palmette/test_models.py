"""Embeddings and rerankers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_palmette import PalmetteEmbeddings, PalmetteReranker
from palmette import FakeEncoder, TreeModel
from palmette.errors import ConfigError, InputError

TEXTS = ["a green owl", "the red cat at night", "white fox"]


def test_the_encoders_own_vectors(model: TreeModel, checkpoint: Path) -> None:
    expected = model.encoder.plain.encode(TEXTS).tolist()
    checkpointed: dict[str, Any] = {"model": checkpoint, "device": "cpu", "batch_size": 2}
    for given in ({"encoder": "fake:48"}, {"encoder": FakeEncoder(48)}, checkpointed, {"model": model}):
        embeddings = PalmetteEmbeddings(**given)
        assert embeddings.embed_documents(TEXTS) == expected
        assert embeddings.embed_query(TEXTS[0]) == pytest.approx(expected[0])
        assert {type(value) for row in embeddings.embed_documents(TEXTS) for value in row} == {float}
        assert embeddings.embed_documents([]) == []


def test_a_vector_store_of_level_vectors(model: TreeModel, documents: list[Document]) -> None:
    store = InMemoryVectorStore(PalmetteEmbeddings(model=model, representation="sqrt_probabilities"))
    store.add_documents(documents)
    assert "green-owl" in [one.id for one in store.similarity_search("where does the green owl live?", k=3)]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({}, "give one of the two"),
        ({"encoder": "fake", "model": "x"}, "give one of the two"),
        ({"encoder": "fake", "representation": "probabilities"}, "needs a checkpoint"),
        ({"model": "x", "level": 3}, "needs representation"),
        ({"encoder": "fake", "dim": 3}, "dim"),
        ({"encoder": "fake", "batch_size": 0}, "batch_size"),
        ({"model": "x", "representation": "sparse"}, "sqrt_probabilities"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PalmetteEmbeddings(**wrong)


QUESTION = "The green owl lives in house 10 and sings at night."


def test_documents_are_copied(model: TreeModel) -> None:
    owl = Document(id="x", page_content="a green owl", metadata={"score": 0.5, "when": object()})
    given = [owl, Document(page_content="something else")]
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
