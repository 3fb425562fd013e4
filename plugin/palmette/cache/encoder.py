"""An encoder in front of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from palmette.cache.cache import EncodingCache
from palmette.encoder import Encoder, Kind

if TYPE_CHECKING:
    from palmette.encoder import Output, States
    from palmette.encoder.depth import Copies

__all__ = ["CachedEncoder"]

Floats = NDArray[np.float32]

_BATCH = 1024  # vectors handed on at a time


class CachedEncoder(Encoder):
    """An encoder whose pooled vectors are kept: what training has encoded, indexing need not encode again.

    Queries, tokens and layers go straight to the encoder. Give it where an encoder is asked for.
    """

    def __init__(self, encoder: Encoder, cache: EncodingCache | str | Path | None = None) -> None:
        self.__dict__.update(encoder.__dict__)  # the same locks, limits and device
        self.encoder = encoder
        self.cache = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        if depth is None:
            return self.encoder.forward(texts, kind, outputs)
        return self.encoder.forward(texts, kind, outputs, depth)

    def copies(self, count: int) -> Copies | None:  # noqa: D102
        return self.encoder.copies(count)

    def to_config(self) -> dict[str, Any]:  # noqa: D102
        return self.encoder.to_config()

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = False,
    ) -> Floats:
        """Pooled vectors [N, d], from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, kind=kind, batch_size=batch_size, progress=progress)

    def iter_states(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Sequence[Output] = ("pooled",),
        batch_size: int | None = None,
        progress: bool | None = False,
        positions: Sequence[int] | None = None,
        depth: int | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], States]]:
        """Pooled vectors of documents from the cache; all else from the encoder."""
        if tuple(outputs) != ("pooled",) or kind == "query":
            how: dict[str, Any] = {
                "batch_size": batch_size,
                "progress": progress,
                "positions": positions,
                "depth": depth,
            }
            yield from self.encoder.iter_states(texts, kind=kind, outputs=outputs, **how)
            return
        import torch

        from palmette.encoder import States

        vectors = self.encode(texts, kind=kind, batch_size=batch_size, progress=progress)
        for start in range(0, len(texts), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(texts)))
            yield rows, States(torch.from_numpy(vectors[rows]).to(self.device))

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Queries are asked once: they bypass the cache."""
        return self.encoder.encode_queries(texts)
