"""Embeddings of a framework, or a function, as an encoder: pooled vectors only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats
from palmette.encoder.base import Encoder, Kind, Output
from palmette.encoder.states import States
from palmette.errors import ConfigError, EncodingError, shown

PREFIX = "given:"
"""Beginning of the names of such encoders: the object itself has to be given again."""
PROBE = "palmette"
"""Text whose vector tells the width."""
NAMES = ("model_name", "model", "__qualname__")
"""Attributes that may name the model; only a text is kept, since another value could hold a key."""
BATCH = 64
"""Texts of a call."""
TOKENS = 512
"""Tokens that a text is taken to have room for, as palmette estimates them; longer documents become passages."""

Embed = Callable[[list[str]], Any]
"""Texts → a vector for each."""


def is_embedder(value: object) -> bool:
    """Return whether a value is LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function."""
    named = any(callable(getattr(value, name, None)) for name in ("embed_documents", "get_text_embedding_batch"))
    return named or (callable(value) and not isinstance(value, type | Encoder))


class GivenEncoder(Encoder):
    """An encoder that asks an object of the user's for vectors of texts.

    It has no token states: documents are ranked by their vector and by words, and each passage counts as one sentence.
    An index keeps its name and width, never the object: give it again to open the index.

    Args:
        embedder: LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function of a list of texts that
            returns a vector for each.
    """

    def __init__(self, embedder: Any) -> None:
        super().__init__()
        name = next(
            (value for key in NAMES if isinstance(value := getattr(embedder, key, None), str) and value),
            type(embedder).__name__,
        )
        self.embedder, self.name, self._embed = embedder, f"{PREFIX}{name}", _calls_of(embedder)
        self.device, self.prompts, self.num_layers = "cpu", {}, 0
        self.max_length, self.batch_size, self.asymmetric = TOKENS, BATCH, True
        self.dimension = self.hidden_size = 0
        probe = self._vectors([PROBE], "document")[0]
        self.dimension = self.hidden_size = len(probe)
        largest = int(np.abs(probe).argmax())  # another model's is elsewhere, and noise in the last digits moves it not
        facts = f"given encoder 1\0{name}\0{self.dimension}\0{largest}\0{probe[largest] > 0}"
        self.fingerprint = hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Ask for the vectors of texts; there are no others."""
        if more := outputs - {"pooled"}:
            raise ConfigError(
                f"{self.name!r} gives one vector a text and no {' and '.join(sorted(more))}: this method needs an "
                "encoder whose states palmette can read, such as a sentence-transformers model"
            )
        return States(pooled=self._vectors(list(texts), kind))

    def _vectors(self, texts: list[str], kind: Kind) -> Floats:
        """Return unit vectors [N, d]; raise where the object returns anything else."""
        embed = self._embed[kind == "query"]
        given = embed([text if text.strip() else " " for text in texts])
        try:
            vectors = np.asarray(given, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise EncodingError(f"{self.name!r} returned no vectors but {shown(given)} ({error})") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.name!r} returned an array {np.shape(vectors)} for {len(texts)} texts: a vector for each is "
                "needed"
            )
        if self.dimension and vectors.shape[1] != self.dimension:
            raise EncodingError(
                f"{self.name!r} returned vectors of {vectors.shape[1]} numbers, and {self.dimension} before: is it "
                "still the same model?"
            )
        if not np.isfinite(vectors).all():
            row = int((~np.isfinite(vectors)).any(axis=1).argmax())
            raise EncodingError(f"{self.name!r} returned NaN or infinity for text {row}: {shown(texts[row])}")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def _calls_of(embedder: Any) -> tuple[Embed, Embed]:
    """Return the calls for documents and for queries."""
    if callable(getattr(embedder, "embed_documents", None)):  # LangChain
        return embedder.embed_documents, lambda texts: [embedder.embed_query(text) for text in texts]
    if callable(getattr(embedder, "get_text_embedding_batch", None)):  # LlamaIndex
        one = embedder.get_query_embedding
        return embedder.get_text_embedding_batch, lambda texts: [one(text) for text in texts]
    return embedder, embedder
