"""PalmetteEmbedding: a checkpoint's encoder, or a level of its tree, as a LlamaIndex embedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_EMBED_BATCH_SIZE

from llama_index.retrievers.palmette.loading import OfCheckpoint, load_model
from palmette.errors import ConfigError
from palmette.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Model
    from palmette.encoder import Kind

Representation = Literal["encoder", "probabilities", "sqrt_probabilities"]


class PalmetteEmbedding(OfCheckpoint, BaseEmbedding):
    """Embeds with the encoder of a palmette model, or with a level of its tree.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository.
        representation: ``encoder`` for the encoder's vectors; ``probabilities`` p of a tree's nodes, whose
            overlap Σ min(p, q) is the tree's score; ``sqrt_probabilities`` √p, of length one, whose inner
            product bounds that score from above, for any vector store.
        level: Level of the tree; ``None`` for the leaves.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        embed_batch_size: Texts per call of LlamaIndex.
        callback_manager: LlamaIndex's callbacks; not pickled.
        num_workers: As in LlamaIndex's BaseEmbedding, like the next two.
        embeddings_cache: A key-value store of vectors.
        rate_limiter: Throttles calls.
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
        embed_batch_size: int = DEFAULT_EMBED_BATCH_SIZE,
        callback_manager: CallbackManager | None = None,
        num_workers: int | None = None,
        embeddings_cache: Any | None = None,
        rate_limiter: Any | None = None,
    ) -> None:
        if representation not in get_args(Representation):
            raise ConfigError(
                f"PalmetteEmbedding: representation must be one of {', '.join(get_args(Representation))}, "
                f"got {representation!r}"
            )
        if representation == "encoder" and level is not None:
            raise ConfigError(f"level={level} needs representation='probabilities' or 'sqrt_probabilities'")
        loaded = load_model(model, revision=revision, **(model_options or {}))
        checkpoint = str(model) if isinstance(model, str | Path) else loaded.origin
        options: dict[str, Any] = dict(
            model_name=checkpoint or loaded.encoder.name,
            checkpoint=checkpoint,
            representation=representation,
            level=level,
            revision=loaded.revision,
            fingerprint=loaded.fingerprint,
            embed_batch_size=embed_batch_size,
            callback_manager=callback_manager or CallbackManager(),
            num_workers=num_workers,
            embeddings_cache=embeddings_cache,
            rate_limiter=rate_limiter,
        )
        super().__init__(**options)
        self._model = loaded
        self._embed([], "document")  # raises now if the model has no such vectors

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteEmbedding"

    def _embed(self, texts: list[str], kind: Kind) -> list[list[float]]:
        if self.representation == "encoder":
            encoder = self._model.encoder.plain
            vectors = encoder.encode_queries(texts) if kind == "query" else encoder.encode(texts)
        else:
            sqrt = self.representation == "sqrt_probabilities"
            vectors = self._model.embed(texts, kind=kind, level=self.level, sqrt=sqrt)
        rows: list[list[float]] = vectors.tolist()
        return rows

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], "document")[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, "document")

    _aget_query_embedding = AsyncTwin(_get_query_embedding).method
    _aget_text_embedding = AsyncTwin(_get_text_embedding).method
    _aget_text_embeddings = AsyncTwin(_get_text_embeddings).method
