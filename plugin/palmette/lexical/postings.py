"""Postings: which words occur in which documents, as sorted arrays, built from texts and merged in pieces."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.lexical.analyser import TERM_BITS, Analyser, Kind, pair_terms

TYPES = {
    "heads": "i8",
    "tails": "u4",
    "starts": "i8",
    "rows": "i4",
    "counts": "u1",
    "once_heads": "i8",
    "once_tails": "u4",
    "once_rows": "i4",
    "lengths": "i4",
}
"""Arrays of :class:`Postings` with their types on disk."""
_FORMER = {"terms": "u8", "starts": "i8", "rows": "i4", "counts": "u1", "lengths": "i4"}
"""Arrays of an index without pairs; its terms have 64 bits."""

Piece = tuple[NDArray[np.uint64], Rows, NDArray[np.int32], NDArray[np.uint8]]
"""Some terms of a merge with all their postings: [v] terms and sizes, [p] rows and counts."""

_MAX_COUNT = 255  # BM25 hardly changes beyond
_RUN = 1 << 23  # occurrences collected in memory before they go to a file
_PIECE = 1 << 22  # postings merged at once
_TAIL = TERM_BITS - 8  # bits of a term's number after the head
_ROW = 64 - TERM_BITS  # bits of a document's row beside a term


class Terms(NamedTuple):
    """Rising term numbers: the first 8 bits of each by ``heads``, the others in ``tails``."""

    heads: Rows  # [257] terms that begin with byte ``h`` have the places ``heads[h] : heads[h + 1]``
    tails: NDArray[np.uint32]  # [V]

    @classmethod
    def of(cls, terms: NDArray[np.uint64]) -> Terms:
        """Split numbers."""
        firsts = np.arange(257, dtype=np.uint64) << np.uint64(_TAIL)
        return cls(np.searchsorted(terms, firsts), terms.astype(np.uint32))

    def place(self, term: int) -> int | None:
        """Find a term's place."""
        head, tail = term >> _TAIL, term & ((1 << _TAIL) - 1)
        low, high = int(self.heads[head]), int(self.heads[head + 1])
        at = low + int(np.searchsorted(self.tails[low:high], np.uint32(tail)))
        return at if at < high and int(self.tails[at]) == tail else None

    def numbers(self) -> NDArray[np.uint64]:
        """[V] whole numbers."""
        head = np.repeat(np.arange(256, dtype=np.uint64) << np.uint64(_TAIL), np.diff(self.heads))
        return head | self.tails


@dataclass(frozen=True)
class Postings:
    """For each term, a word or a pair of neighbours, its documents, and how often it occurs in each.

    Most pairs occur once, in one document: they have nothing but a row.
    """

    terms: Terms  # [V]
    starts: Rows  # [V + 1] term ``v`` has the postings ``starts[v] : starts[v + 1]``
    rows: NDArray[np.int32]  # [P] documents, rising within a term
    counts: NDArray[np.uint8]  # [P] how often, 255 at most
    once: Terms  # [W] terms that occur once
    once_rows: NDArray[np.int32]  # [W] their documents
    lengths: NDArray[np.int32]  # [N] words per document, function words not counted

    @classmethod
    def read(cls, load: Callable[[str, np.dtype[Any]], NDArray[Any]], *, former: bool = False) -> Postings:
        """Assemble postings from arrays by name and type; ``former`` ones are those of an index without pairs."""
        given = {name: load(name, np.dtype(kind)) for name, kind in (_FORMER if former else TYPES).items()}
        if former:
            terms, nothing = Terms.of(given.pop("terms") >> np.uint64(_ROW)), Terms.of(np.empty(0, np.uint64))
            return cls(terms=terms, once=nothing, once_rows=given["rows"][:0], **given)
        terms, once = (Terms(given.pop(f"{name}heads"), given.pop(f"{name}tails")) for name in ("", "once_"))
        return cls(terms=terms, once=once, **given)

    def find(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return a term's documents and counts, both empty where it is unknown."""
        if (at := self.terms.place(term)) is not None:
            span = slice(int(self.starts[at]), int(self.starts[at + 1]))
            return self.rows[span], self.counts[span]
        if (at := self.once.place(term)) is not None:
            return self.once_rows[at : at + 1], np.ones(1, np.uint8)
        return self.rows[:0], self.counts[:0]

    def runs(self) -> tuple[Run, Run]:
        """Lay out both kinds of terms alike."""
        ones = np.broadcast_to(np.uint8(1), len(self.once_rows))
        return (
            Run(self.terms.numbers(), self.starts, self.rows, self.counts),
            Run(self.once.numbers(), np.arange(len(ones) + 1), self.once_rows, ones),
        )


class Run(NamedTuple):
    """Rising terms, each with its postings."""

    terms: NDArray[np.uint64]
    starts: Rows
    rows: NDArray[np.int32]
    counts: NDArray[np.uint8]


class _Chunks(dict[str, int]):
    """Numbers of the chunks of texts, and the words of each."""

    def __init__(self, analyser: Analyser) -> None:
        super().__init__()
        self.analyser = analyser
        self.terms, self.kinds, self.ends = array("Q"), array("B"), array("q", [0])

    def __missing__(self, chunk: str) -> int:
        words = self.analyser.words_of_chunk(chunk)
        self.terms.extend(word.term for word in words)
        self.kinds.extend(word.kind for word in words)
        self.ends.append(len(self.terms))
        self[chunk] = len(self)
        return len(self) - 1

    def expand(self, numbers: Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint8], Rows]:
        """List the terms of chunks one after the other, their kinds, and how many terms each chunk has."""
        ends = np.frombuffer(self.ends, np.int64)
        first = ends[numbers]
        sizes = ends[numbers + 1] - first
        places = np.repeat(first - np.append(0, np.cumsum(sizes)[:-1]), sizes) + np.arange(int(sizes.sum()))
        terms = np.frombuffer(self.terms, np.uint64) if self.terms else np.empty(0, np.uint64)
        kinds = np.frombuffer(self.kinds, np.uint8) if self.kinds else np.empty(0, np.uint8)
        return terms[places], kinds[places], sizes


class PostingsBuilder:
    """Builds postings from texts and from other postings; with a ``folder`` for files, in bounded memory."""

    def __init__(self, analyser: Analyser, folder: Path | None = None, *, run: int = _RUN) -> None:
        self.analyser, self.folder, self.run = analyser, folder, run
        self._parts: list[tuple[Postings, Rows]] = []
        self._files: list[Path] = []
        self._count = 0
        self._clear()

    def _clear(self) -> None:
        self._documents = self._size = 0  # documents and occurrences collected
        self._chunks = _Chunks(self.analyser)
        self._collected: list[NDArray[np.uint64]] = []  # a term and a row for every occurrence
        self._lengths: list[NDArray[np.int32]] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add documents."""
        known, chunks = self._chunks, self.analyser.chunks
        lists = [[known[chunk] for chunk in chunks(text)] for text in texts]
        many = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.fromiter(chain.from_iterable(lists), np.int64, int(many.sum()))
        terms, kinds, sizes = known.expand(flat)
        row = np.repeat(np.repeat(np.arange(len(lists)), many), sizes)
        lengths = np.bincount(row[kinds != Kind.FUNCTION], minlength=len(lists))
        linked = np.flatnonzero(kinds == Kind.WORD)
        near = row[linked[1:]] == row[linked[:-1]]  # neighbours of one document
        left, right = linked[:-1][near], linked[1:][near]
        for term, place in ((terms, row), (pair_terms(terms[left], terms[right]), row[right])):
            self._collected.append(term << np.uint64(_ROW) | (place + self._documents).astype(np.uint64))
            self._size += len(term)
        self._lengths.append(lengths.astype(np.int32))
        self._documents += len(lists)
        if self.folder is not None and (self._size >= self.run or self._documents >> (_ROW - 1)):
            self._spill(self.folder)

    def collected(self) -> Postings:
        """Sort the texts added since the last file was written."""
        arrays = self._sorted()
        return Postings.read(lambda name, _: arrays[name])

    def _sorted(self) -> dict[str, NDArray[Any]]:
        keys = np.sort(np.concatenate([np.empty(0, np.uint64), *self._collected]))
        first = _firsts(keys)
        counts = np.minimum(np.diff(first, append=len(keys)), _MAX_COUNT).astype(np.uint8)
        keys = keys[first]
        terms, rows = keys >> np.uint64(_ROW), (keys & np.uint64((1 << _ROW) - 1)).astype(np.int32)
        first = _firsts(terms)
        pieces = [(terms[first], np.diff(first, append=len(terms)), rows, counts)]
        joined = {name: [np.empty(0, kind)] for name, kind in TYPES.items()}
        joined["lengths"] += self._lengths
        for name, values in _layout(pieces):
            joined[name].append(values)
        return {name: np.concatenate(values) for name, values in joined.items()}

    def _spill(self, folder: Path) -> None:
        arrays, number = self._sorted(), len(self._files)

        def mapped(name: str, kind: np.dtype[Any]) -> NDArray[Any]:
            path = folder / f"run{number}-{name}.npy"
            self._files.append(path)
            np.save(path, arrays[name])
            saved: NDArray[Any] = np.load(path, mmap_mode="r")
            return saved

        self.add_postings(Postings.read(mapped), np.arange(self._documents))
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
        yield from _layout(merge_parts(self._parts))
        self._parts.clear()
        for path in self._files:
            path.unlink()


def _firsts(rising: NDArray[Any]) -> Rows:
    """Places where a new value begins."""
    return np.flatnonzero(np.append(True, rising[1:] != rising[:-1])[: len(rising)])


def _layout(pieces: Iterable[Piece]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of postings by name, except lengths, from pieces with rising terms."""
    held = {"": np.zeros(257, np.int64), "once_": np.zeros(257, np.int64)}
    end = 0
    yield "starts", np.zeros(1, np.int64)
    for terms, sizes, rows, counts in pieces:
        ends = np.cumsum(sizes)
        once = (sizes == 1) & (counts[ends - 1] == 1)
        for name, some in (("", terms[~once]), ("once_", terms[once])):
            held[name] += Terms.of(some).heads
            yield f"{name}tails", some.astype(np.uint32)
        yield "once_rows", rows[ends[once] - 1]
        many = np.repeat(~once, sizes)
        yield from (("rows", rows[many]), ("counts", counts[many]))
        starts = end + np.cumsum(sizes[~once])
        end = int(starts[-1]) if len(starts) else end
        yield "starts", starts
    yield from ((f"{name}heads", heads) for name, heads in held.items())


def merge_parts(parts: Sequence[tuple[Postings, Rows]], most: int = _PIECE) -> Iterator[Piece]:
    """Merge postings in pieces of at most ``most`` postings (or one term).

    Each part comes with the new row of each of its documents, −1 for those that go; they rise from part to part.
    """
    runs = [(run, new) for part, new in parts for run in part.runs()]
    terms = np.sort(np.concatenate([run.terms for run, _ in runs]))
    terms = terms[_firsts(terms)]
    sizes = np.zeros(len(terms), np.int64)
    for run, _ in runs:
        sizes[np.searchsorted(terms, run.terms)] += np.diff(run.starts)
    ends = np.cumsum(sizes)
    low = 0
    while low < len(terms):
        done = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, done + most, side="right")))
        piece = _merge_terms(runs, terms[low:high])
        if len(piece[0]):
            yield piece
        low = high


def _merge_terms(runs: Sequence[tuple[Run, Rows]], terms: NDArray[np.uint64]) -> Piece:
    packed = []  # place of the term, row, count
    for run, new in runs:
        first, last = np.searchsorted(run.terms, [terms[0], terms[-1]], side="left")
        last += int(last < len(run.terms) and run.terms[last] == terms[-1])
        span = slice(int(run.starts[first]), int(run.starts[last]))
        row = new[run.rows[span]]
        sizes = np.diff(run.starts[first : last + 1])
        place = np.repeat(np.searchsorted(terms, run.terms[first:last]), sizes)
        packed.append((place << 39 | row << 8 | run.counts[span])[row >= 0])
    merged = np.sort(np.concatenate(packed))
    sizes = np.bincount(merged >> 39, minlength=len(terms))
    held = sizes > 0
    rows = ((merged >> 8) & 0x7FFFFFFF).astype(np.int32)
    return terms[held], sizes[held], rows, merged.astype(np.uint8)
