"""Embeddings of both frameworks, and a function, that give a fake encoder's vectors."""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings
from llama_index.core.base.embeddings.base import BaseEmbedding

from palmette import FakeEncoder

FAKE = FakeEncoder(48)


class LangChain(Embeddings):
    """Embeddings of LangChain, of any length."""

    model = "mine"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return (3 * FAKE.encode(texts)).tolist()

    def embed_query(self, text: str) -> list[float]:
        return FAKE.encode_queries([text])[0].tolist()


class Llama(BaseEmbedding):
    """Embeddings of LlamaIndex."""

    model_name: str = "mine"

    def _get_text_embedding(self, text: str) -> list[float]:
        return FAKE.encode([text])[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return FAKE.encode_queries([query])[0].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def function(texts: list[str]) -> Any:
    """Embed by a function."""
    return FAKE.encode(texts)
