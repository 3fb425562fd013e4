"""Vectors for other parts of LangChain: the encoder's own, or those of a level of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.embeddings import Embeddings
from pydantic import Field, PrivateAttr, model_validator

from langchain_palmette.fields import EncoderName, Loading, ModelName
from langchain_palmette.live import find, open_model
from palmette.errors import ConfigError
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from palmette.encoder import Encoder, Kind
    from palmette.model import Model

__all__ = ["PalmetteEmbeddings"]


class PalmetteEmbeddings(Loading, Embeddings):
    """Embeddings of an encoder, or of a level of a trained tree, for any vector store.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PalmetteEmbeddings

            PalmetteEmbeddings(encoder="sentence-transformers/all-MiniLM-L6-v2")
            PalmetteEmbeddings(model="me/ckpt")  # the encoder that checkpoint was trained on
            PalmetteEmbeddings(model="me/tree-ckpt", representation="sqrt_probabilities", level=6)  # 64 wide

    Usage:
        .. code-block:: python

            embeddings.embed_query("a question")
            await embeddings.aembed_documents(["a text", "another"])

    Use with a vector store:
        .. code-block:: python

            InMemoryVectorStore(embeddings).add_documents(documents)
    """

    encoder: EncoderName | None = Field(default=None, frozen=True)
    """An encoder, by name, folder or object; or else"""
    model: ModelName | None = Field(default=None, frozen=True)
    """A checkpoint, by repository, folder or object."""
    representation: Literal["encoder", "probabilities", "sqrt_probabilities"] = Field(
        default="encoder", frozen=True
    )
    """``encoder`` for the encoder's vectors; ``probabilities`` p of the nodes of a level; ``sqrt_probabilities`` √p,
    of length one, whose inner product Σ √(pq) is an upper bound of the tree's score Σ min(p, q), and so gives any
    vector store candidates to rerank.
    """
    level: int | None = Field(default=None, ge=1, frozen=True)
    """Level of the tree; ``None`` for the leaves."""

    _encoder: Encoder | None = PrivateAttr(default=None)
    _model: Model | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.encoder is None) == (self.model is None):
            raise ConfigError("PalmetteEmbeddings takes encoder= or model=: give one of the two")
        if self.representation != "encoder" and self.model is None:
            raise ConfigError(f"representation={self.representation!r} needs a checkpoint: give model=")
        if self.representation == "encoder" and self.level is not None:
            raise ConfigError(
                f"level={self.level} needs representation='probabilities' or 'sqrt_probabilities'"
            )
        return self

    def model_post_init(self, context: Any, /) -> None:
        """Take hold of what was given as an object."""
        super().model_post_init(context)
        self._encoder, self._model = find(str(self.encoder)), find(str(self.model))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector per text."""
        return self._embed(texts, "document") if texts else []

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""
        return self._embed([text], "query")[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """See :meth:`embed_documents`."""
        return await run_in_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """See :meth:`embed_query`."""
        return await run_in_thread(self.embed_query, text)

    def _embed(self, texts: list[str], kind: Kind) -> list[list[float]]:
        if self.representation == "encoder":
            coder = self._coder()
            vectors = coder.encode_queries(texts) if kind == "query" else coder.encode(texts)
        else:
            roots = self.representation == "sqrt_probabilities"
            vectors = self._loaded().embed(texts, kind=kind, level=self.level, sqrt=roots)
        listed: list[list[float]] = vectors.tolist()
        return listed

    def _coder(self) -> Encoder:
        if self._encoder is None:
            from palmette.encoder import load_encoder

            self._encoder = (
                load_encoder(str(self.encoder), **self._loading())
                if self.model is None
                else self._loaded().encoder
            )
        return self._encoder

    def _loaded(self) -> Model:
        if self._model is None:
            self._model = open_model(str(self.model), self._loading())
        return self._model
