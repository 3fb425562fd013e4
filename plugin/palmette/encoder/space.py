"""A learned space: linear maps of query and document vectors over a frozen encoder (d width)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from palmette.arrays import Floats
from palmette.encoder.base import Encoder, Kind, Output, States, WrappedEncoder
from palmette.encoder.sentences import Sentences
from palmette.errors import CheckpointError

WEIGHTS = "space."
"""Prefix of the maps' names in a checkpoint."""


@dataclass(frozen=True)
class Space:
    """Two linear maps, each followed by scaling to length 1.

    Attributes:
        queries: [d, d], the map of query vectors.
        documents: [d, d], the map of document and sentence vectors.
    """

    queries: Tensor
    documents: Tensor

    def map(self, vectors: Tensor, kind: Kind) -> Tensor:
        """Map vectors [n, d] in double precision on the CPU, so that a vector does not depend on its batch."""
        weight = self.queries if kind == "query" else self.documents
        mapped = F.normalize(vectors.cpu().double() @ weight.double(), dim=1)
        return mapped.float().to(vectors.device)

    @classmethod
    def take(cls, weights: dict[str, Tensor], width: int) -> Self | None:
        """Remove the maps from a checkpoint's weights and return them; ``None`` if it has none.

        Raises:
            CheckpointError: The maps do not fit vectors of the encoder's width, or are no finite numbers.
        """
        own = {name: weights.pop(name) for name in list(weights) if name.startswith(WEIGHTS)}
        if not own:
            return None
        names = [f"{WEIGHTS}queries", f"{WEIGHTS}documents"]
        if sorted(own) != sorted(names):
            raise CheckpointError(f"a learned space has the maps {', '.join(names)}; got {', '.join(sorted(own))}")
        for name in names:
            shape, kind = tuple(own[name].shape), own[name].dtype
            if shape != (width, width) or kind != torch.float32:
                raise CheckpointError(
                    f"{name} is {list(shape)} of {kind}, and the encoder's vectors need [{width}, {width}] of "
                    f"{torch.float32}: load the checkpoint with the encoder that it was trained with"
                )
            if not torch.isfinite(own[name]).all():
                raise CheckpointError(f"{name} holds values that are no finite numbers: the checkpoint is damaged")
        return cls(*(own[name] for name in names))


class SpaceEncoder(WrappedEncoder):
    """An encoder whose pooled vectors are mapped into a learned space; token and layer states are unchanged.

    :attr:`plain` is the encoder inside, and so is the config: a checkpoint stores the maps among its weights.
    """

    def __init__(self, encoder: Encoder, space: Space) -> None:
        super().__init__(encoder)
        self.space, self.asymmetric = space, True
        digest = hashlib.sha256(encoder.fingerprint.encode())
        for weight in (space.queries, space.documents):
            digest.update(weight.cpu().contiguous().numpy().tobytes())
        self.fingerprint = digest.hexdigest()

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self.encoder.plain

    def map(self, vectors: Floats, kind: Kind) -> Floats:  # noqa: D102
        mapped: Floats = self.space.map(torch.from_numpy(np.array(vectors, np.float32)), kind).numpy()
        return mapped

    def _mapped(self, states: States, kind: Kind) -> States:
        return states if states.pooled is None else replace(states, pooled=self.space.map(states.pooled, kind))

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        return self._mapped(self.encoder.forward(texts, kind, outputs, *([] if depth is None else [depth])), kind)

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

    def map_sentences(self, found: Sentences) -> Sentences:  # noqa: D102
        return Sentences.of(self.map(found.floats(), "document"), found.spans, found.starts)

    def space_weights(self) -> dict[str, Tensor]:  # noqa: D102
        return {f"{WEIGHTS}queries": self.space.queries, f"{WEIGHTS}documents": self.space.documents}
