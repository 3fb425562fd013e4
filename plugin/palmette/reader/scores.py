"""Features of passages and sentences: words, and vectors of length 1."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Sized
from hashlib import blake2b

import numpy as np

from palmette.arrays import Floats, unit_rows
from palmette.encoder import Encoder
from palmette.lexical.analyser import LANGUAGE, analyser_of

NEVER = -1e4
"""Score of what is no candidate: exp of it is 0, and differences of two of them are finite."""
REMEMBERED_BYTES = 32 << 20
"""Bytes of document vectors that are remembered: 21,845 of 384 numbers."""


def words_of(text: str) -> set[str]:
    """Distinct words of a text, as the lexical search counts them."""
    return {word.text for word in analyser_of(LANGUAGE).words(text)}


class UnitVectors:
    """Encoder vectors of length 1, with an LRU cache of document vectors; safe for several threads."""

    def __init__(self, encoder: Encoder, memory: int = REMEMBERED_BYTES) -> None:
        self.encoder = encoder
        self._most = memory // (4 * encoder.dimension) if encoder.frozen else 0
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()  # the one used last comes last
        self._lock = threading.Lock()

    def documents(self, texts: Sequence[str], progress: bool | None = False) -> Floats:
        """[N, d] vectors of documents; known texts are not encoded again."""
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            known = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            new = unit_rows(self.encoder.encode(list(missing.values()), progress=progress))
            known |= zip(missing, map(np.copy, new), strict=True)  # a view would keep its batch
        with self._lock:
            for key in known:
                self._vectors[key] = known[key]
                self._vectors.move_to_end(key)
            while len(self._vectors) > self._most:
                self._vectors.popitem(last=False)
        return np.array([known[key] for key in keys], np.float32).reshape(-1, self.encoder.dimension)

    def queries(self, texts: Sequence[str]) -> Floats:
        """[Q, d] vectors of questions."""
        return unit_rows(self.encoder.encode_queries(texts))


def batches(windows: Sequence[Sized], tokens: int) -> Iterator[list[int]]:
    """Positions of windows of similar length, together about as many ``tokens`` as one pass should take."""
    group: list[int] = []
    for at in sorted(range(len(windows)), key=lambda at: -len(windows[at])):
        if group and (len(group) + 1) * len(windows[group[0]]) > tokens:
            yield group
            group = []
        group.append(at)
    if group:
        yield group
