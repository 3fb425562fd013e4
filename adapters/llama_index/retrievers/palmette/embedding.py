"""PalmetteEmbedding: a checkpoint's encoder, or a level of its tree, as a LlamaIndex embedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_EMBED_BATCH_SIZE

from llama_index.retrievers.palmette.loading import loaded, reloadable, source
from palmette.errors import ConfigError
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from palmette.encoder import Kind
    from palmette.model import Model

__all__ = ["PalmetteEmbedding"]

Representation = Literal["encoder", "probabilities", "sqrt_probabilities"]


class PalmetteEmbedding(BaseEmbedding):
    """Embeds with the encoder a palmette model was trained over, or with the model itself.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository.
        representation: ``encoder`` for the encoder's vectors; ``probabilities`` p of a tree's nodes, whose
            overlap Σ min(p, q) is the tree's score; ``sqrt_probabilities`` √p, of length one, whose inner
            product bounds that score from above, for any vector store.
        level: Level of the tree; ``None`` for the leaves.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        embed_batch_size: Texts LlamaIndex hands over at a time.
        callback_manager: LlamaIndex's callbacks; not pickled.
        num_workers: As in LlamaIndex's BaseEmbedding, like the next two.
        embeddings_cache: A key-value store of vectors.
        rate_limiter: Throttles calls.
    """

    representation: Representation = Field(default="encoder", description="What the vectors are.")
    level: int | None = Field(default=None, description="Level of the tree; the leaves where None.")
    revision: str | None = Field(default=None, description="Revision of the checkpoint.")
    fingerprint: str = Field(default="", description="What determines the vectors, for caches.")
    _model: Any = PrivateAttr()
    _source: str | None = PrivateAttr()

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
        origin, model = model, loaded(model, revision=revision, **(model_options or {}))
        if representation not in get_args(Representation):
            raise ConfigError(
                f"PalmetteEmbedding: representation must be one of {', '.join(get_args(Representation))}, "
                f"got {representation!r}"
            )
        if representation == "encoder" and level is not None:
            raise ConfigError(f"level={level} needs representation='probabilities' or 'sqrt_probabilities'")
        options: dict[str, Any] = dict(
            model_name=source(origin, model) or model.encoder.name,
            representation=representation,
            level=level,
            revision=model.revision,
            fingerprint=model.fingerprint,
            embed_batch_size=embed_batch_size,
            callback_manager=callback_manager or CallbackManager(),
            num_workers=num_workers,
            embeddings_cache=embeddings_cache,
            rate_limiter=rate_limiter,
        )
        super().__init__(**options)
        self._model = model
        self._source = source(origin, model)
        self._embed([], "document")  # complains now, if the model has no such vectors

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteEmbedding"

    def _embed(self, texts: list[str], kind: Kind) -> list[list[float]]:
        model: Model = self._model
        if self.representation == "encoder":
            coder = model.encoder
            vectors = coder.encode_queries(texts) if kind == "query" else coder.encode(texts)
        else:
            roots = self.representation == "sqrt_probabilities"
            vectors = model.embed(texts, kind=kind, level=self.level, sqrt=roots)
        listed: list[list[float]] = vectors.tolist()
        return listed

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], "document")[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, "document")

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await run_in_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await run_in_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await run_in_thread(self._get_text_embeddings, texts)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            name: getattr(self, name)
            for name in ("representation", "level", "embed_batch_size", "num_workers")
        }
        return _again, (type(self), reloadable(self, self._source), self._model.revision, options)


def _again(
    cls: type[PalmetteEmbedding], origin: str, revision: str | None, options: dict[str, Any]
) -> PalmetteEmbedding:
    return cls(origin, revision=revision, **options)
