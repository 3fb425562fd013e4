"""Which words stand in which documents: sorted arrays, made from texts and merged in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.tokens import Analyser

__all__ = ["Collector", "Piece", "Postings", "merged"]

Rows = NDArray[np.int64]

_MOST = 255  # times a word is counted in one document: BM25 hears little of more
_PIECE = 1 << 22  # postings handled at once


@dataclass(frozen=True)
class Postings:
    """For each word the documents it stands in, and how often.

    Attributes:
        terms: [V] words by number, rising.
        starts: [V + 1] word ``v`` has the postings ``starts[v] : starts[v + 1]``.
        rows: [P] documents, rising within a word.
        counts: [P] how often, 255 at most.
        lengths: [N] words per document.
    """

    terms: NDArray[np.uint64]
    starts: Rows
    rows: NDArray[np.int32]
    counts: NDArray[np.uint8]
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def total(self) -> int:
        """Words of all documents."""
        return int(self.lengths.sum(dtype=np.int64))

    def find(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """The documents of a word, and how often it stands in each; empty where it is unknown."""
        at = int(np.searchsorted(self.terms, np.uint64(term)))
        if at == len(self.terms) or int(self.terms[at]) != term:
            return self.rows[:0], self.counts[:0]
        span = slice(int(self.starts[at]), int(self.starts[at + 1]))
        return self.rows[span], self.counts[span]

    def save(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return dict(vars(self))

    @classmethod
    def sorted(cls, terms: NDArray[np.uint64], rows: Any, counts: Any, lengths: Any) -> Self:
        """From one column per posting, sorted by word and document."""
        first = np.flatnonzero(np.diff(terms, prepend=~terms[:1]))
        starts = np.append(first, len(terms)).astype(np.int64)
        few = np.minimum(counts, _MOST).astype(np.uint8)
        return cls(terms[first], starts, rows.astype(np.int32), few, lengths)


class Collector:
    """Turns texts into postings."""

    def __init__(self, analyser: Analyser) -> None:
        self.analyser = analyser
        self.documents = self.size = 0
        """Documents and postings so far."""
        self._numbers: dict[int, int] = {}  # word → its number here
        self._parts: list[tuple[Rows, Rows]] = []  # (document << 32 | number, count)
        self._lengths: list[NDArray[np.int32]] = [np.empty(0, np.int32)]

    def add(self, texts: Sequence[str]) -> None:
        """Add documents."""
        numbers, words = self._numbers, self.analyser.words
        lists = [[numbers.setdefault(word.term, len(numbers)) for word in words(text)] for text in texts]
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        flat = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        rows = np.repeat(np.arange(self.documents, self.documents + len(lists)), lengths)
        keys, counts = np.unique(rows << 32 | flat, return_counts=True)
        self._parts.append((keys, counts))
        self._lengths.append(lengths)
        self.documents += len(lists)
        self.size += len(keys)

    def postings(self) -> Postings:
        """All of it, sorted."""
        keys, counts = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        terms = np.fromiter(self._numbers, np.uint64, len(self._numbers))
        order = np.argsort(terms[keys & 0xFFFFFFFF], kind="stable")  # documents rise already
        keys = keys[order]
        lengths = np.concatenate(self._lengths)
        return Postings.sorted(terms[keys & 0xFFFFFFFF], keys >> 32, counts[order], lengths)


class Piece(NamedTuple):
    """Some words of a merge, all their postings: [v] terms and sizes, [p] rows and counts."""

    terms: NDArray[np.uint64]
    sizes: Rows
    rows: NDArray[np.int32]
    counts: NDArray[np.uint8]


def merged(parts: Sequence[tuple[Postings, Rows]], most: int = _PIECE) -> Iterator[Piece]:
    """Several postings as one, in pieces of at most ``most`` postings (or one word).

    Each part comes with the new row of each of its documents, −1 for those that go; they rise from part to part.
    """
    terms = np.unique(np.concatenate([part.terms for part, _ in parts]))
    sizes = np.zeros(len(terms), np.int64)
    for part, _ in parts:
        sizes[np.searchsorted(terms, part.terms)] += np.diff(part.starts)
    ends = np.cumsum(sizes)
    low = 0
    while low < len(terms):
        done = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, done + most, side="right")))
        piece = _piece(parts, terms[low:high])
        if len(piece.rows):
            yield piece
        low = high


def _piece(parts: Sequence[tuple[Postings, Rows]], terms: NDArray[np.uint64]) -> Piece:
    words, rows, counts = [], [], []
    for part, new in parts:
        first, last = np.searchsorted(part.terms, [terms[0], terms[-1]], side="left")
        last += int(last < len(part.terms) and part.terms[last] == terms[-1])
        span = slice(int(part.starts[first]), int(part.starts[last]))
        row = new[part.rows[span]]
        kept = row >= 0
        word = np.repeat(
            np.searchsorted(terms, part.terms[first:last]), np.diff(part.starts[first : last + 1])
        )
        words.append(word[kept])
        rows.append(row[kept].astype(np.int32))
        counts.append(part.counts[span][kept])
    word = np.concatenate(words)
    order = np.argsort(word, kind="stable")  # documents rise from part to part
    sizes = np.bincount(word, minlength=len(terms))
    held = sizes > 0
    return Piece(terms[held], sizes[held], np.concatenate(rows)[order], np.concatenate(counts)[order])
