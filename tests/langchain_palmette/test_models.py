"""Embeddings and rerankers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_palmette import PalmetteEmbeddings, PalmetteReranker
from palmette import FakeEncoder, TreeModel
from palmette.errors import ConfigError, InputError

TEXTS = ["a green owl", "the red cat at night", "white fox"]
QUESTION = "The green owl lives in house 10 and sings at night."


def test_an_encoder_or_a_model_by_name_or_object(model: TreeModel, checkpoint: Path) -> None:
    expected = model.encoder.plain.encode(TEXTS).tolist()
    checkpointed: dict[str, Any] = {"model": checkpoint, "device": "cpu", "batch_size": 2}
    for given in ({"encoder": "fake:48"}, {"encoder": FakeEncoder(48)}, checkpointed, {"model": model}):
        embeddings = PalmetteEmbeddings(**given)
        assert embeddings.embed_documents(TEXTS) == expected
        assert embeddings.embed_query(TEXTS[0]) == pytest.approx(expected[0])
        assert embeddings.embed_documents([]) == []


async def test_reranked_documents_are_copies(model: TreeModel, checkpoint: Path) -> None:
    same = [Document(id=str(i), page_content="a green owl", metadata={"when": object()}) for i in range(5)]
    found = PalmetteReranker(model=checkpoint, top_n=3, score_key=None).compress_documents(same, QUESTION)
    assert found == same[:3]
    assert all(one is not other for one in found for other in same)
    reranker = PalmetteReranker(model=model, top_n=9)
    assert len(reranker.compress_documents(same, QUESTION)) == 5
    assert await reranker.acompress_documents(same, QUESTION) == reranker.compress_documents(same, QUESTION)
    with pytest.raises(ConfigError, match="levle"):
        PalmetteReranker(model=model, search_options={"levle": 1}).compress_documents(same, QUESTION)
    with pytest.raises(InputError, match="query"):
        reranker.compress_documents(same, "")
