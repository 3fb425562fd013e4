"""Features of passages and sentences: words, and vectors of length 1."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, unit_rows
from palmette.encoder import Encoder
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.types import SentenceVectors

NEVER = -1e4
"""Score of what is no candidate: exp of it is 0, and differences of two of them are finite."""
REMEMBERED_BYTES = 32 << 20
"""Bytes of document vectors that are remembered: 21,845 of 384 numbers."""


def words_of(text: str) -> set[str]:
    """Distinct words of a text, as the lexical search counts them."""
    return {word.text for word in analyser_of(LANGUAGE).words(text)}


class UnitVectors:
    """Encoder vectors of length 1, with an LRU cache of those of documents; safe for several threads."""

    def __init__(self, encoder: Encoder, memory: int = REMEMBERED_BYTES) -> None:
        self.encoder = encoder
        self._most = memory // (4 * encoder.dimension) if encoder.frozen else 0
        self._rows: OrderedDict[bytes, Floats] = OrderedDict()  # [n, d] of a text; the one used last comes last
        self._count = 0
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> Floats:
        """[Q, d] vectors of questions."""
        return unit_rows(self.encoder.encode_queries(texts))

    def documents(self, texts: Sequence[str], progress: bool | None = False) -> Floats:
        """[N, d] vectors of documents; known texts are not encoded again."""

        def encode(missing: list[str]) -> Iterable[Floats]:
            return unit_rows(self.encoder.encode(missing, progress=progress))[:, None]

        rows = self._remembered(texts, encode)
        return np.array(rows, np.float32).reshape(-1, self.encoder.dimension)

    def with_sentences(
        self,
        cut: Mapping[str, Sequence[tuple[int, int]]],
        stored: Mapping[str, SentenceVectors],
        progress: bool | None = False,
    ) -> dict[str, Floats]:
        """[1 + S, d] vectors of each text: its own, then those of its S sentences, ``cut`` by characters.

        A sentence has the vector of the sentence that it shares most characters with, among those ``stored`` with the
        text or else given by one pass over it; an encoder without offsets reads every sentence by itself.
        """

        def nearest(text: str, own: Floats, spans: NDArray[np.int32], vectors: Floats) -> Floats:
            starts, ends = np.array(cut[text], np.int32).reshape(-1, 2, 1).swapaxes(0, 1)  # [S, 1]
            shared = np.minimum(spans[:, 1], ends) - np.maximum(spans[:, 0], starts)  # [S, sentences of the encoder]
            chosen = vectors[shared.argmax(axis=1)] if len(spans) else np.repeat(own, len(starts), axis=0)
            return np.concatenate([own, chosen])

        def encode(missing: list[str]) -> Iterable[Floats]:
            whole, sentences = self.encoder.encode_sentences(missing, progress=progress)
            vectors, starts = sentences.floats(), sentences.starts
            for at, text in enumerate(missing):
                rows = slice(starts[at], starts[at + 1])
                yield nearest(text, unit_rows(whole[at : at + 1]), sentences.spans[rows], vectors[rows])

        # 1. Stored sentences; a text whose own vector is not stored has their mean by characters.
        found = dict[str, Floats]()
        for text in cut.keys() & stored.keys():
            _, spans, quantised, whole = stored[text]
            vectors = unit_rows(quantised.astype(np.float32))
            own = np.diff(spans, axis=1).T @ vectors if whole is None else whole[None]
            found[text] = nearest(text, unit_rows(own.astype(np.float32)), spans, vectors)
        # 2. The others are encoded.
        missing = [text for text in cut if text not in found]
        if self.encoder.has_offsets:
            return found | dict(zip(missing, self._remembered(missing, encode), strict=True))
        parts = {text: [text, *(text[start:end] for start, end in cut[text])] for text in missing}
        distinct = list(dict.fromkeys(part for own in parts.values() for part in own))
        row = dict(zip(distinct, self.documents(distinct, progress), strict=True))
        return found | {text: np.array([row[part] for part in own]) for text, own in parts.items()}

    def _remembered(self, texts: Sequence[str], encode: Callable[[list[str]], Iterable[Floats]]) -> list[Floats]:
        """Return the rows of each text, of those that are not remembered from ``encode``."""
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            known = {key: self._rows[key] for key in keys if key in self._rows}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:  # a view would keep its batch
            known |= zip(missing, map(np.copy, encode(list(missing.values()))), strict=True)
        with self._lock:
            for key, rows in known.items():
                self._count += len(rows) - len(self._rows.get(key, ()))
                self._rows[key] = rows
                self._rows.move_to_end(key)
            while self._count > self._most:
                self._count -= len(self._rows.popitem(last=False)[1])
        return [known[key] for key in keys]


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
