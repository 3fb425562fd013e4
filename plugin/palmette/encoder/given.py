"""Embeddings of a framework, or a function, as an encoder: pooled vectors only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from palmette.encoder.base import Encoder, Kind
from palmette.encoder.pooled import PROBE, PooledEncoder, fingerprints

PREFIX = "given:"
"""Beginning of the names of such encoders: the object itself has to be given again."""
NAME_ATTRIBUTES = ("model_name", "model", "__qualname__")
"""Attributes that may name the model; only a text is kept, since another value could hold a key."""
TEXTS_PER_CALL = 64
"""Texts of a call."""
ASSUMED_TOKENS = 512
"""Tokens that a text is taken to have room for, as palmette estimates them; longer documents become passages."""

Embed = Callable[[list[str]], Any]
"""Texts → a vector for each."""


def is_embedder(value: object) -> bool:
    """Return whether a value is LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function."""
    named = any(callable(getattr(value, name, None)) for name in ("embed_documents", "get_text_embedding_batch"))
    return named or (callable(value) and not isinstance(value, type | Encoder))


class GivenEncoder(PooledEncoder):
    """An encoder that asks an object of the user's for vectors of texts.

    An index keeps its name and width, never the object: give it again to open the index.

    Args:
        embedder: LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function of a list of texts that
            returns a vector for each.
        prompts: Text put before a query and before a document.
        truncate: Columns of the vectors that are kept, of a model that was trained for it (Matryoshka).
    """

    asymmetric = True

    def __init__(self, embedder: Any, *, prompts: Mapping[str, str] | None = None, truncate: int | None = None) -> None:
        name = next(
            (value for key in NAME_ATTRIBUTES if isinstance(value := getattr(embedder, key, None), str) and value),
            type(embedder).__name__,
        )
        super().__init__(f"{PREFIX}{name}", max_length=ASSUMED_TOKENS, batch_size=TEXTS_PER_CALL - 1)  # beside PROBE
        self.embedder, self._embed = embedder, _calls_of(embedder)
        probe = self.unit_vectors([PROBE], "document")[0]
        self.check_model(probe)
        self.width = len(probe)
        self.settle(fingerprints(f"given encoder 1\0{name}", probe)[0], prompts, truncate)

    def probes(self, kind: Kind) -> bool:
        """Return whether PROBE goes along; a framework's call for questions takes one text, and is left alone."""
        return super().probes(kind) and (kind == "document" or self._embed[0] is self._embed[1])

    def embed(self, texts: list[str], kind: Kind) -> Any:
        """Call the object."""
        return self._embed[kind == "query"](texts)


def _calls_of(embedder: Any) -> tuple[Embed, Embed]:
    """Return the calls for documents and for queries."""
    if callable(getattr(embedder, "embed_documents", None)):  # LangChain
        return embedder.embed_documents, lambda texts: [embedder.embed_query(text) for text in texts]
    if callable(getattr(embedder, "get_text_embedding_batch", None)):  # LlamaIndex
        embed_query = embedder.get_query_embedding
        return embedder.get_text_embedding_batch, lambda texts: [embed_query(text) for text in texts]
    return embedder, embedder
