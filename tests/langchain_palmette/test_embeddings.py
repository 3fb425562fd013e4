"""Encoder vectors, and levels of a tree for any vector store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_palmette import PalmetteEmbeddings
from palmette import FakeEncoder, TreeModel

TEXTS = ["a green owl", "the red cat at night", "white fox"]


def test_the_encoders_own_vectors(model: TreeModel, checkpoint: Path) -> None:
    expected = model.encoder.plain.encode(TEXTS).tolist()
    for embeddings in (
        PalmetteEmbeddings(encoder="fake:48"),
        PalmetteEmbeddings(encoder=FakeEncoder(48)),
        PalmetteEmbeddings(model=checkpoint, device="cpu", batch_size=2),
        PalmetteEmbeddings(model=model),
    ):
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
