"""Postings: which words occur in which documents, as sorted arrays, built from texts and merged in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.lexical.analyser import Analyser

TYPES = {"terms": "u8", "starts": "i8", "rows": "i4", "counts": "u1", "lengths": "i4"}
"""Arrays of :class:`Postings` with their types on disk."""

Piece = tuple[NDArray[np.uint64], Rows, NDArray[np.int32], NDArray[np.uint8]]
"""Some words of a merge with all their postings: [v] terms and sizes, [p] rows and counts."""

_MAX_COUNT = 255  # BM25 hardly changes beyond
_RUN = 1 << 22  # postings collected in memory before they go to a file
_PIECE = 1 << 22  # postings merged at once


@dataclass(frozen=True)
class Postings:
    """For each word its documents, and how often it occurs in each."""

    terms: NDArray[np.uint64]  # [V] words by number, rising
    starts: Rows  # [V + 1] word ``v`` has the postings ``starts[v] : starts[v + 1]``
    rows: NDArray[np.int32]  # [P] documents, rising within a word
    counts: NDArray[np.uint8]  # [P] how often, 255 at most
    lengths: NDArray[np.int32]  # [N] words per document

    @classmethod
    def read(cls, array: Callable[[str, np.dtype[Any]], NDArray[Any]]) -> Postings:
        """Assemble postings from arrays by name and type."""
        return cls(**{name: array(name, np.dtype(kind)) for name, kind in TYPES.items()})

    def find(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return a word's documents and counts, both empty where it is unknown."""
        at = int(np.searchsorted(self.terms, np.uint64(term)))
        if at == len(self.terms) or int(self.terms[at]) != term:
            return self.rows[:0], self.counts[:0]
        span = slice(int(self.starts[at]), int(self.starts[at + 1]))
        return self.rows[span], self.counts[span]


class PostingsBuilder:
    """Builds postings from texts and from other postings; with a ``folder`` for files, in bounded memory."""

    def __init__(self, analyser: Analyser, folder: Path | None = None, *, run: int = _RUN) -> None:
        self.analyser, self.folder, self.run = analyser, folder, run
        self._parts: list[tuple[Postings, Rows]] = []
        self._files: list[Path] = []
        self._count = 0
        self._clear()

    def _clear(self) -> None:
        self._documents = self._size = 0  # documents and postings collected
        self._numbers: dict[int, int] = {}  # word → its number here
        self._collected: list[tuple[Rows, Rows]] = []  # (document << 32 | number, count)
        self._lengths: list[NDArray[np.int32]] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add documents."""
        numbers, words = self._numbers, self.analyser.words
        lists = [[numbers.setdefault(word.term, len(numbers)) for word in words(text)] for text in texts]
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        flat = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        rows = np.repeat(np.arange(self._documents, self._documents + len(lists)), lengths)
        keys, counts = np.unique(rows << 32 | flat, return_counts=True)
        self._collected.append((keys, counts))
        self._lengths.append(lengths)
        self._documents += len(lists)
        self._size += len(keys)
        if self.folder is not None and self._size >= self.run:
            self._spill(self.folder)

    def collected(self) -> Postings:
        """Sort the texts added since the last file was written."""
        keys, counts = (np.concatenate(column) for column in zip(*self._collected, strict=True))
        terms = np.fromiter(self._numbers, np.uint64, len(self._numbers))
        order = np.argsort(terms[keys & 0xFFFFFFFF], kind="stable")  # documents rise already
        term, rows = terms[keys[order] & 0xFFFFFFFF], (keys[order] >> 32).astype(np.int32)
        first = np.flatnonzero(np.diff(term, prepend=~term[:1]))
        starts = np.append(first, len(term)).astype(np.int64)
        few = np.minimum(counts[order], _MAX_COUNT).astype(np.uint8)
        return Postings(term[first], starts, rows, few, np.concatenate(self._lengths))

    def _spill(self, folder: Path) -> None:
        postings, number = self.collected(), len(self._files)

        def mapped(name: str, kind: np.dtype[Any]) -> NDArray[Any]:
            path = folder / f"run{number}-{name}.npy"
            self._files.append(path)
            np.save(path, getattr(postings, name))
            array: NDArray[Any] = np.load(path, mmap_mode="r")
            return array

        self.add_postings(Postings.read(mapped), np.arange(len(postings.lengths)))
        self._clear()

    def add_postings(self, postings: Postings, rows: Rows) -> None:
        """Add some documents (rising rows) of other postings."""
        new = np.full(len(postings.lengths), -1, np.int64)
        new[rows] = np.arange(self._count, self._count + len(rows))
        self._parts.append((postings, new))
        self._count += len(rows)

    def chunks(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the merged arrays by name, piece by piece, and remove the files."""
        if self._documents:
            postings = self.collected()
            self.add_postings(postings, np.arange(len(postings.lengths)))
        for postings, new in self._parts:
            yield "lengths", postings.lengths[new >= 0]
        end = 0
        yield "starts", np.zeros(1, np.int64)
        for terms, sizes, rows, counts in merge_parts(self._parts):
            ends = end + np.cumsum(sizes)
            end = int(ends[-1])
            yield from (("terms", terms), ("starts", ends), ("rows", rows), ("counts", counts))
        self._parts.clear()
        for path in self._files:
            path.unlink()


def merge_parts(parts: Sequence[tuple[Postings, Rows]], most: int = _PIECE) -> Iterator[Piece]:
    """Merge postings in pieces of at most ``most`` postings (or one word).

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
        piece = _merge_terms(parts, terms[low:high])
        if len(piece[0]):
            yield piece
        low = high


def _merge_terms(parts: Sequence[tuple[Postings, Rows]], terms: NDArray[np.uint64]) -> Piece:
    words, rows, counts = [], [], []
    for part, new in parts:
        first, last = np.searchsorted(part.terms, [terms[0], terms[-1]], side="left")
        last += int(last < len(part.terms) and part.terms[last] == terms[-1])
        span = slice(int(part.starts[first]), int(part.starts[last]))
        row = new[part.rows[span]]
        kept = row >= 0
        sizes = np.diff(part.starts[first : last + 1])
        words.append(np.repeat(np.searchsorted(terms, part.terms[first:last]), sizes)[kept])
        rows.append(row[kept].astype(np.int32))
        counts.append(part.counts[span][kept])
    word = np.concatenate(words)
    order = np.argsort(word, kind="stable")  # documents rise from part to part
    sizes = np.bincount(word, minlength=len(terms))
    held = sizes > 0
    return terms[held], sizes[held], np.concatenate(rows)[order], np.concatenate(counts)[order]
