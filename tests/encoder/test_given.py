"""Embeddings of a framework, and functions, as encoders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_palmette import PalmetteRetriever as LangChainRetriever
from llama_index.retrievers.palmette import PalmetteRetriever as LlamaIndexRetriever
from palmette import Index, LayersModel, SpaceModel, load_encoder
from palmette.errors import ConfigError, EncodingError, ModelMismatchError
from support.embedders import FAKE, LangChain, Llama, function
from support.tiny_encoder import states_of

TEXTS = ["the red owl sleeps", "a blue fox runs", "green hens eat corn", "the white cat sings"]


@pytest.mark.parametrize("embedder", [LangChain(), Llama(), function], ids=["langchain", "llama_index", "function"])
def test_an_index_over_given_embeddings(embedder: Any, tmp_path: Path) -> None:
    plain = Index.build(TEXTS, SpaceModel.untrained(FAKE), sentences=False)
    with Index.build(TEXTS, path=tmp_path / "index", encoder=embedder) as index:
        assert index.model.encoder is load_encoder(embedder), "one object, one encoder"
        for query in ("where is the fox?", "who sings?"):
            assert [hit.id for hit in index.search(query, k=4)] == [hit.id for hit in plain.search(query, k=4)]
            own = index.search(query, k=4, lexical=0, sentences=False)
            expected = plain.search(query, k=4, lexical=0, sentences=False)
            assert [hit.evidence["method_score"] for hit in own] == pytest.approx(
                [hit.evidence["method_score"] for hit in expected], abs=1e-3
            )
        assert index.explain("where is the fox?", own[0].id).text
    with pytest.raises(ModelMismatchError, match="not stored: give the same object as encoder="):
        Index.open(tmp_path / "index")
    with Index.open(tmp_path / "index", encoder=embedder) as index:
        assert index.search("where is the fox?", k=1)[0].document.text == "a blue fox runs"
        index.add(["a late bat"])
        assert len(index) == 5
    with pytest.raises(ModelMismatchError, match="was trained with encoder"):
        Index.open(tmp_path / "index", encoder=lambda texts: np.ones((len(texts), 7)))
    if embedder is function:
        first, second = (np.eye(48, dtype=np.float32)[[place] * 9] for place in (3, 5))
        same_name = [load_encoder(lambda texts, rows=rows: rows[: len(texts)]) for rows in (first, second)]
        assert same_name[0].fingerprint != same_name[1].fingerprint, "another model of the same name and width"
    plain.close()


def test_both_frameworks_open_an_index_with_the_object(tmp_path: Path) -> None:
    folder, embedder = tmp_path / "index", LangChain()
    Index.build(TEXTS, path=folder, encoder=embedder).close()
    for retriever in (
        LangChainRetriever(index_path=folder, encoder=embedder, k=1),
        LangChainRetriever.from_index(folder, encoder=embedder, k=1),
    ):
        assert retriever.invoke("where is the fox?")[0].page_content == "a blue fox runs"
        assert copy.deepcopy(retriever).index.model.encoder is load_encoder(embedder)
    with pytest.raises(ModelMismatchError, match="give the same object as encoder="):
        LangChainRetriever.from_index(folder)
    nodes = LlamaIndexRetriever.from_index(folder, encoder=Llama())
    assert nodes.retrieve("where is the fox?")[0].text == "a blue fox runs"
    nodes.persist()
    again = LlamaIndexRetriever.from_persist_dir(folder, encoder=Llama(), similarity_top_k=1)
    assert [hit.text for hit in again.retrieve("where is the fox?")] == ["a blue fox runs"]


def test_methods_that_read_tokens_say_so() -> None:
    with pytest.raises(ConfigError, match="one vector a text and no tokens"):
        states_of(load_encoder(function), TEXTS, outputs=("tokens",))
    with pytest.raises(ConfigError, match="no transformer layers"):
        LayersModel.fit([("a question", "a text")], encoder=function, layers=[1], progress=False)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned no vectors|returned an array"),
        ([["a"]], "returned no vectors"),
        ([[1.0, 2.0]] * 7, "for 5 texts: a vector for each"),
        ([[1.0, float("nan")]] * 5, "NaN or infinity for text 0"),
        ([[0.0, 1.0]] * 4 + [[0.0, 0.0]], "vector of zeros for text"),
        ([[0.0, 1.0]] * 5, "the same vector for all of 5 different texts"),
        ([[1.0, 0.0]] * 4 + [[0.0, 1.0]], "another model than before.*build the index anew"),
        ([[1.0] * 3] * 5, "vectors of 3 numbers, and 2 before"),
    ],
)
def test_unusable_vectors_are_named(returned: Any, words: str) -> None:
    answers = iter([[[0.0, 1.0]], *[returned] * 9])
    with pytest.raises((EncodingError, ModelMismatchError), match=words):
        Index.build(TEXTS, encoder=lambda texts: next(answers))
