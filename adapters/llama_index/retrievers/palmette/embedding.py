"""PalmetteEmbedding: a checkpoint's encoder as a LlamaIndex embedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index.retrievers.palmette.loading import OfCheckpoint
from palmette.config import check_keys, without_none
from palmette.index.frameworks import public_name, represent
from palmette.machine.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Model

OPTIONS = ("embed_batch_size", "callback_manager", "num_workers", "embeddings_cache", "rate_limiter")
"""Fields of LlamaIndex's BaseEmbedding."""


class PalmetteEmbedding(OfCheckpoint, BaseEmbedding):
    """Embeds with the encoder of a palmette model.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        options: Fields of LlamaIndex's BaseEmbedding: ``embed_batch_size``, ``callback_manager`` (not pickled),
            ``num_workers``, ``embeddings_cache``, ``rate_limiter``.
    """

    fingerprint: str = Field(default="", description="Identifies the model, and so the vectors, for caches.")

    def __init__(
        self,
        model: Model | str | Path,
        *,
        revision: str | None = None,
        model_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_keys("PalmetteEmbedding", options, OPTIONS)
        loaded, place = self._loaded(model, revision, model_options)
        name = public_name(place["checkpoint"] or loaded.encoder.name)
        init: Any = super().__init__  # of two pydantic models
        init(model_name=name, **place, fingerprint=loaded.fingerprint, **without_none(options))
        self._model = loaded
        represent(loaded, [], "document")  # raises now if the model has no such vectors

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return represent(self._model, [query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return represent(self._model, [text], "document")[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return represent(self._model, texts, "document")

    _aget_query_embedding = AsyncTwin(_get_query_embedding).method
    _aget_text_embedding = AsyncTwin(_get_text_embedding).method
    _aget_text_embeddings = AsyncTwin(_get_text_embeddings).method
