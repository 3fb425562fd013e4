"""PalmetteEmbedding: a checkpoint's encoder, or a level of its tree, as a LlamaIndex embedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index.retrievers.palmette.loading import OfCheckpoint
from palmette.config import check_keys, without_none
from palmette.frameworks import Representation, check_representation, public_name, represent
from palmette.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Model
    from palmette.encoder import Kind

OPTIONS = ("embed_batch_size", "callback_manager", "num_workers", "embeddings_cache", "rate_limiter")
"""Fields of LlamaIndex's BaseEmbedding."""


class PalmetteEmbedding(OfCheckpoint, BaseEmbedding):
    """Embeds with the encoder of a palmette model, or with a level of its tree.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository.
        representation: ``encoder`` for the encoder's vectors; ``probabilities`` p of a tree's nodes;
            ``sqrt_probabilities`` √p, whose inner product bounds the tree's score from above, for any vector store.
        level: Level of the tree; ``None`` for the leaves.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        options: Fields of LlamaIndex's BaseEmbedding: ``embed_batch_size``, ``callback_manager`` (not pickled),
            ``num_workers``, ``embeddings_cache``, ``rate_limiter``.
    """

    representation: Representation = Field(default="encoder", description="Kind of vectors.")
    level: int | None = Field(default=None, description="Level of the tree; the leaves where None.")
    fingerprint: str = Field(default="", description="Identifies the model, and so the vectors, for caches.")

    def __init__(
        self,
        model: Model | str | Path,
        *,
        representation: Representation = "encoder",
        level: int | None = None,
        revision: str | None = None,
        model_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_keys("PalmetteEmbedding", options, OPTIONS)
        check_representation(representation, level)
        loaded, place = self._loaded(model, revision, model_options)
        name = public_name(place["checkpoint"] or loaded.encoder.name)
        init: Any = super().__init__  # of two pydantic models
        own = {"representation": representation, "level": level, "fingerprint": loaded.fingerprint}
        init(model_name=name, **place, **own, **without_none(options))
        self._model = loaded
        self._embed([], "document")  # raises now if the model has no such vectors

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteEmbedding"

    def _embed(self, texts: list[str], kind: Kind) -> list[list[float]]:
        return represent(self._model, texts, kind, self.representation, self.level)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], "document")[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, "document")

    _aget_query_embedding = AsyncTwin(_get_query_embedding).method
    _aget_text_embedding = AsyncTwin(_get_text_embedding).method
    _aget_text_embeddings = AsyncTwin(_get_text_embeddings).method
