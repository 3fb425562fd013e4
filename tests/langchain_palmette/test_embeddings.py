"""Encoder vectors, and levels of a tree for any vector store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_palmette import PalmetteEmbeddings, TreeRetriever
from palmette import FakeEncoder, Model, TreeModel
from palmette.errors import ConfigError, InputError

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


@pytest.mark.parametrize("level", [1, 4, None])
@pytest.mark.parametrize("representation", ["probabilities", "sqrt_probabilities"])
def test_levels_are_the_models_own(model: TreeModel, representation: Any, level: int | None) -> None:
    embeddings = PalmetteEmbeddings(model=model, representation=representation, level=level)
    how: Any = {"level": level, "sqrt": representation == "sqrt_probabilities"}
    assert embeddings.embed_documents(TEXTS) == model.embed(TEXTS, kind="document", **how).tolist()
    query = embeddings.embed_query(TEXTS[0])
    assert query == model.embed(TEXTS[:1], kind="query", **how)[0].tolist()
    assert len(query) == 2 ** (level or 5)


def test_overlap_of_probabilities_is_the_score(model: TreeModel, retriever: TreeRetriever) -> None:
    embeddings = PalmetteEmbeddings(model=model, representation="probabilities", level=4)
    [hit] = retriever.index.search("green owl", k=1, level=4, lexical=0)
    q, [d] = embeddings.embed_query("green owl"), embeddings.embed_documents([hit.document.text])
    assert np.minimum(q, d).sum() == pytest.approx(hit.evidence["own"], abs=1e-5)


def test_a_model_without_levels_is_refused(model: TreeModel) -> None:
    class Plain(TreeModel):
        embed = Model.embed

    plain = Plain(model.config, model.encoder, model.module)
    assert PalmetteEmbeddings(model=plain).embed_query("owl")
    for representation in ("probabilities", "sqrt_probabilities"):
        with pytest.raises(ConfigError, match="no option 'level'"):
            PalmetteEmbeddings(model=plain, representation=representation).embed_query("owl")


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


def test_wrong_input(model: TreeModel) -> None:
    deep = PalmetteEmbeddings(model=model, representation="probabilities", level=6)
    with pytest.raises(ConfigError, match="between 1 and 5"):
        deep.embed_query("owl")
    with pytest.raises(InputError, match="empty"):
        PalmetteEmbeddings(encoder="fake").embed_query(" ")
    nothing: Any = [None]
    with pytest.raises(InputError, match="str"):
        PalmetteEmbeddings(encoder="fake").embed_documents(nothing)
