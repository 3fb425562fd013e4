"""Vectors of the documents that were met last, so that whoever meets them again need not encode them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from palmette.encoder.base import Encoder

__all__ = ["Recent"]

MEMORY = 32 << 20
"""Bytes of vectors: 21,845 of 384 numbers."""

Floats = NDArray[np.float32]


class Recent:
    """An encoder that remembers; safe for several threads.

    A frozen encoder's vectors stay true. Of one that learns, nothing is kept.
    """

    def __init__(self, encoder: Encoder, memory: int = MEMORY) -> None:
        self.encoder = encoder
        self._most = memory // (4 * encoder.dimension)
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()  # the one met last comes last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._vectors)

    def encode(self, texts: Sequence[str], *, progress: bool | None = False) -> Floats:
        """[N, d] as :meth:`Encoder.encode` gives; texts that were met before are not read."""
        if not self.encoder.frozen:
            return self.encoder.encode(texts, progress=progress)
        out = np.empty((len(texts), self.encoder.dimension), np.float32)
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        missing: dict[bytes, list[int]] = {}
        with self._lock:
            for row, key in enumerate(keys):
                if key in self._vectors:
                    self._vectors.move_to_end(key)
                    out[row] = self._vectors[key]
                else:
                    missing.setdefault(key, []).append(row)
        if missing:
            new = self.encoder.encode([texts[rows[0]] for rows in missing.values()], progress=progress)
            for rows, vector in zip(missing.values(), new, strict=True):
                out[rows] = vector
            self._keep(missing, new)
        return out

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """[N, d] as :meth:`Encoder.encode_queries` gives: nothing is kept of them."""
        return self.encoder.encode_queries(texts)

    def _keep(self, keys: Iterable[bytes], vectors: Floats) -> None:
        with self._lock:
            for key, vector in zip(keys, vectors, strict=True):
                self._vectors[key] = vector.copy()  # a view would hold on to its whole batch
                if len(self._vectors) > self._most:
                    self._vectors.popitem(last=False)
