"""A learned space: linear maps of query and document vectors over a frozen encoder (d width)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, to_numpy
from palmette.encoder.base import Encoder, Kind, Output, WrappedEncoder
from palmette.encoder.sentences import Sentences
from palmette.encoder.states import States, like
from palmette.errors import CheckpointError

SPACE_PREFIX = "space."
"""Prefix of the maps' names in a checkpoint."""


@dataclass(frozen=True)
class Space:
    """Two linear maps, each followed by scaling to length 1.

    Attributes:
        queries: [d, d], the map of query vectors.
        documents: [d, d], the map of document and sentence vectors.
    """

    queries: Floats
    documents: Floats

    @property
    def maps(self) -> tuple[Floats, Floats]:
        """Both maps."""
        return self.queries, self.documents

    def map(self, vectors: Floats, kind: Kind) -> Floats:
        """Map vectors [n, d] in double precision, so that a vector does not depend on its batch."""
        weight = self.queries if kind == "query" else self.documents
        mapped = vectors.astype(np.float64) @ weight.astype(np.float64)
        lengths = np.sqrt(np.square(mapped).sum(axis=1, keepdims=True))
        return np.asarray(mapped / np.maximum(lengths, 1e-12), np.float32)

    @classmethod
    def of(cls, maps: Mapping[str, NDArray[Any]], width: int) -> Self | None:
        """Make a space of the maps among a checkpoint's weights; ``None`` if there are none.

        Raises:
            CheckpointError: The maps do not fit vectors of the encoder's width, or are no finite numbers.
        """
        if not maps:
            return None
        names = [f"{SPACE_PREFIX}queries", f"{SPACE_PREFIX}documents"]
        if sorted(maps) != sorted(names):
            raise CheckpointError(f"a learned space has the maps {', '.join(names)}; got {', '.join(sorted(maps))}")
        for name in names:
            shape, kind = maps[name].shape, maps[name].dtype
            if shape != (width, width) or kind != np.float32:
                raise CheckpointError(
                    f"{name} is {list(shape)} of {kind}, and the encoder's vectors need [{width}, {width}] of "
                    "float32: load the checkpoint with the encoder that it was trained with"
                )
            if not np.isfinite(maps[name]).all():
                raise CheckpointError(f"{name} holds values that are no finite numbers: the checkpoint is damaged")
        return cls(*(maps[name] for name in names))


class SpaceEncoder(WrappedEncoder):
    """An encoder whose pooled vectors are mapped into a learned space; token and layer states are unchanged.

    :attr:`plain` is the encoder inside, and so is the config: a checkpoint stores the maps among its weights.
    """

    def __init__(self, encoder: Encoder, space: Space) -> None:
        super().__init__(encoder)
        self.space, self.asymmetric = space, True
        digest = hashlib.sha256(encoder.fingerprint.encode())
        for weight in space.maps:
            digest.update(weight.tobytes())
        self.fingerprint = digest.hexdigest()

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self.encoder.plain

    def map(self, vectors: Floats, kind: Kind) -> Floats:  # noqa: D102
        return self.space.map(np.asarray(vectors, np.float32), kind)

    def _mapped(self, states: States, kind: Kind) -> States:
        if states.pooled is None:
            return states
        mapped = self.space.map(to_numpy(states.pooled), kind)
        return replace(states, pooled=like(mapped, states.pooled))

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        return self._mapped(self.encoder.forward(texts, kind, outputs, depth), kind)

    def iter_states(  # noqa: D102
        self, texts: Sequence[str], *, kind: Kind = "document", **options: Any
    ) -> Iterator[tuple[NDArray[np.int64], States]]:
        for rows, states in self.encoder.iter_states(texts, kind=kind, **options):
            yield rows, self._mapped(states, kind)

    def encode(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:  # noqa: D102
        return self.map(self.encoder.encode(texts, kind=kind, **options), kind)

    def encode_queries(self, texts: Sequence[str]) -> Floats:  # noqa: D102
        return self.map(self.encoder.encode_queries(texts), "query")

    def encode_sentences(self, texts: Sequence[str], **options: Any) -> tuple[Floats, Sentences]:
        """Return the vectors of documents and of their sentences, both mapped as documents."""
        vectors, sentences = self.encoder.encode_sentences(texts, **options)
        return self.map(vectors, "document"), self.map_sentences(sentences)

    def map_sentences(self, sentences: Sentences) -> Sentences:  # noqa: D102
        return Sentences.of(self.map(sentences.floats(), "document"), sentences.spans, sentences.starts)

    def space_weights(self) -> dict[str, Floats]:  # noqa: D102
        return {f"{SPACE_PREFIX}queries": self.space.queries, f"{SPACE_PREFIX}documents": self.space.documents}
