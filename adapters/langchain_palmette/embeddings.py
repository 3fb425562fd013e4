"""PalmetteEmbeddings: an encoder's vectors, for any vector store."""

from __future__ import annotations

from typing import Any, Self

from langchain_core.embeddings import Embeddings
from pydantic import Field, model_validator

from langchain_palmette.loading import EncoderName, Loading, ModelName
from palmette.config import check_kind
from palmette.errors import ConfigError
from palmette.index.frameworks import represent
from palmette.machine.threads import AsyncTwin


class PalmetteEmbeddings(Loading, Embeddings):
    """Embeddings of an encoder, for any vector store.

    .. code-block:: python

        PalmetteEmbeddings(model="me/ckpt")  # the encoder that the checkpoint was trained on
        embeddings = PalmetteEmbeddings(encoder="sentence-transformers/all-MiniLM-L6-v2")
        embeddings.embed_query("a question")
        InMemoryVectorStore(embeddings).add_documents(documents)
    """

    encoder: EncoderName | None = Field(default=None, frozen=True)
    """An encoder, by name, folder or object; give this or ``model``."""
    model: ModelName | None = Field(default=None, frozen=True)
    """A checkpoint, by repository or folder, or a loaded model."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.encoder is None) == (self.model is None):
            raise ConfigError("PalmetteEmbeddings takes encoder= or model=: give one of the two")
        return self

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents."""
        check_kind("texts", texts, (list, tuple), "a list of str")
        return represent(self._source(), list(texts), "document") if texts else []

    def embed_query(self, text: str) -> list[float]:
        """Vector of a query."""
        return represent(self._source(), [text], "query")[0]

    aembed_documents = AsyncTwin(embed_documents).method
    aembed_query = AsyncTwin(embed_query).method

    def _source(self) -> Any:
        return self.loaded("encoder" if self.model is None else "model")
