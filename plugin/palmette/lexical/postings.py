"""Postings: for each term its documents and counts, as sorted arrays, built from texts and merged in pieces.

A term is a 40-bit number. Its first byte, the head, is implicit in the order; the other 32 bits are stored (``tails``).
A hit is 32 bits: a document's row and the term's count there.

    term   = head (8) | tail (32)            hit = row (26) | count (6, at most 63)

    head h:     places  heads[h] … heads[h + 1]           of ``tails`` and ``starts``
    place v:    hits    bases[h] + starts[v] … the next   of ``hits``

Most pairs of words occur in one document only: they have arrays of their own (``once_…``), in which place and hit
coincide, without ``starts``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.errors import REPAIR, CorruptIndexError, InputError
from palmette.lexical.analyser import TERM_BITS, Analyser, WordKind, pair_terms

TYPES = {
    "heads": "i8", "tails": "u4", "bases": "i8", "starts": "u4", "hits": "u4",
    "once_heads": "i8", "once_tails": "u4", "once_hits": "u4", "lengths": "i4",
}  # fmt: skip
"""Arrays of :class:`Postings` with their types on disk."""

Hits = NDArray[np.uint32]
"""Hits: a document's row in the upper 26 bits, a term's count there in the lower ``COUNT_BITS``."""
Piece = tuple[NDArray[np.uint64], Rows, Hits]
"""Rising terms [v], the number of hits of each [v], and all hits [p]."""

COUNT_BITS = 6
"""Bits of a hit for the count."""
MAX_COUNT = (1 << COUNT_BITS) - 1
"""Largest count in a hit; BM25 hardly changes beyond."""
_MAX_DOCUMENTS = 1 << (32 - COUNT_BITS)  # documents of a segment
_RUN = 1 << 20  # occurrences collected in memory before they go to a file
_REMEMBERED = 1 << 16  # terms whose hits are known to be sound
_PIECE = 1 << 19  # postings merged at once
_RANGES = [number << (TERM_BITS - 4) for number in range(17)]  # of terms that are merged at once
_BLOCK = 1 << 16  # chunks, and terms, that are handled at once
_KNOWN = 1 << 16  # distinct chunks whose words are remembered
_TAIL = 32  # bits of a term's number after its head
_ROW = 64 - TERM_BITS  # bits of a document's row beside a term


class Terms(NamedTuple):
    """Rising term numbers: the first 8 bits of each by ``heads``, the others in ``tails``."""

    heads: Rows  # [257] terms that begin with byte ``h`` have the places ``heads[h] : heads[h + 1]``
    tails: NDArray[np.uint32]  # [V]

    def place(self, term: int) -> int | None:
        """Find a term's place; ``None`` for an unknown term."""
        head, tail = term >> _TAIL, np.uint32(term & ((1 << _TAIL) - 1))
        low, high = int(self.heads[head]), int(self.heads[head + 1])
        at = low + int(np.searchsorted(self.tails[low:high], tail))
        return at if at < high and self.tails[at] == tail else None

    def numbers(self) -> NDArray[np.uint64]:
        """Return all term numbers [V]."""
        heads = np.arange(256, dtype=np.uint64) << np.uint64(_TAIL)
        return np.repeat(heads, np.diff(self.heads)) | self.tails


class Run(NamedTuple):
    """Rising terms and their postings: ``hits[starts[v] : starts[v + 1]]``."""

    terms: NDArray[np.uint64]
    starts: NDArray[np.signedinteger[Any]]
    hits: Hits


@dataclass(frozen=True)
class Postings:
    """Postings of a segment; see the head of this module."""

    terms: Terms  # [V] of several documents
    bases: Rows  # [257] where the hits of the terms of each head begin
    starts: NDArray[np.uint32]  # [V] where a term's hits begin, after its head's base
    hits: Hits  # [P] rising within a term
    once: Terms  # [W] of one document
    once_hits: Hits  # [W]
    lengths: NDArray[np.int32]  # [N] words per document, function words not counted
    where: str = "the postings"
    _sound: set[int] = field(default_factory=set, compare=False, repr=False)  # terms whose hits were checked

    @classmethod
    def read(cls, load: Callable[[str, np.dtype[Any]], NDArray[Any]], where: str = "the postings") -> Postings:
        """Assemble postings from arrays by name and type; ``where`` names them in an error."""
        arrays: dict[str, Any] = {name: load(name, np.dtype(kind)) for name, kind in TYPES.items()}
        terms, once = (Terms(arrays.pop(f"{name}heads"), arrays.pop(f"{name}tails")) for name in ("", "once_"))
        return cls(terms=terms, once=once, where=where, **arrays)

    def fault(self, documents: int) -> tuple[str, str, str] | None:
        """Check the shapes and offsets of all arrays: return a faulty array's name, what was expected, and what it is.

        The hits of a term are checked when they are first read.
        """
        ends = {
            "heads": (self.terms.heads, len(self.terms.tails)),
            "bases": (self.bases, len(self.hits)),
            "once_heads": (self.once.heads, len(self.once.tails)),
        }
        for name, (heads, end) in ends.items():
            if heads.shape != (257,) or [*heads[[0, -1]]] != [0, end] or (heads[1:] < heads[:-1]).any():
                return name, f"257 numbers that rise from 0 to {end}", f"others, of the shape {heads.shape}"
        own = {"tails": self.terms.tails, "once_tails": self.once.tails, "hits": self.hits}
        sizes = {name: (numbers, len(numbers)) for name, numbers in own.items()} | {
            "starts": (self.starts, len(self.terms.tails)),
            "once_hits": (self.once_hits, len(self.once.tails)),
            "lengths": (self.lengths, documents),
        }
        for name, (numbers, size) in sizes.items():
            if numbers.shape != (size,):
                return name, f"{size} numbers", f"the shape {numbers.shape}"
        if self.lengths.min(initial=0) < 0:
            return "lengths", "numbers of words", "negative ones"
        return None

    def find(self, term: int) -> Hits:
        """Return a term's hits, with rising rows; none for an unknown term."""
        if (at := self.terms.place(term)) is not None:
            head = term >> _TAIL
            base, last = int(self.bases[head]), at + 1 == self.terms.heads[head + 1]
            begin = base + int(self.starts[at])
            end = int(self.bases[head + 1]) if last else base + int(self.starts[at + 1])
            hits = self.hits[begin:end]
            if term not in self._sound:
                rows = hits >> COUNT_BITS
                inside = begin < end <= len(self.hits) and int(rows[-1]) < len(self.lengths)
                if not inside or (rows[1:] <= rows[:-1]).any():
                    raise self._damaged()
                if len(self._sound) >= _REMEMBERED:
                    self._sound.clear()
                self._sound.add(term)
            return hits
        at = self.once.place(term)
        if at is None:
            return self.once_hits[:0]
        if int(self.once_hits[at]) >> COUNT_BITS >= len(self.lengths):
            raise self._damaged()
        return self.once_hits[at : at + 1]

    def _damaged(self) -> CorruptIndexError:
        flaw = f"the hits of a term are not rising rows of its {len(self.lengths)} documents"
        return CorruptIndexError(f"{self.where} is damaged: {flaw}; {REPAIR}")

    def runs(self) -> list[Run]:
        """Check all hits, and return two runs: terms that occur in several documents, and terms that occur in one."""
        starts = np.repeat(self.bases[:-1], np.diff(self.terms.heads)) + self.starts
        runs = [
            Run(self.terms.numbers(), np.append(starts, len(self.hits)), self.hits),
            Run(self.once.numbers(), np.arange(len(self.once_hits) + 1, dtype=np.int32), self.once_hits),
        ]
        if not all(_is_sound(run, len(self.lengths)) for run in runs):
            raise self._damaged()
        return runs


def _is_sound(run: Run, documents: int) -> bool:
    """Return True if terms rise, and each has hits with rising rows below the number of documents."""
    if not len(run.terms):
        return not len(run.hits)
    if run.starts[0] != 0 or (run.terms[1:] <= run.terms[:-1]).any() or (run.starts[1:] <= run.starts[:-1]).any():
        return False
    rows = run.hits >> COUNT_BITS
    falls = rows[1:] <= rows[:-1]
    falls[run.starts[1:-1] - 1] = False  # from one term to the next
    return int(rows.max()) < documents and not falls.any()


def hits_of(rows: NDArray[np.integer], counts: NDArray[np.integer]) -> Hits:
    """Pack rows and counts into hits."""
    few: Hits = np.minimum(counts, MAX_COUNT).astype(np.uint32)
    return (rows.astype(np.uint32) << np.uint32(COUNT_BITS)) | few


class _Chunks(dict[str, int]):
    """Numbers chunks of texts in the order of their first use, and remembers the words of each."""

    def __init__(self, analyser: Analyser) -> None:
        super().__init__()
        self.analyser = analyser
        self.terms, self.kinds, self.ends = array("Q"), array("B"), array("q", [0])

    def __missing__(self, chunk: str) -> int:
        for word in self.analyser.words_of_chunk(chunk):
            self.terms.append(word.term)
            self.kinds.append(word.kind)
        self.ends.append(len(self.terms))
        self[chunk] = len(self)
        return len(self) - 1

    def expand(self, numbers: Rows) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8], Rows]]:
        """Yield blocks of terms, their kinds, and the position of each term's chunk in ``numbers``."""
        if not len(numbers):
            return
        ends = np.frombuffer(self.ends, np.int64)
        terms, kinds = np.frombuffer(self.terms, np.uint64), np.frombuffer(self.kinds, np.uint8)
        before = np.append(0, np.cumsum(ends[numbers + 1] - ends[numbers]))
        cuts = np.searchsorted(before, np.arange(_BLOCK, int(before[-1]), _BLOCK))
        for low, high in pairwise(np.unique([0, *cuts, len(numbers)]).tolist()):
            first, sizes = ends[numbers[low:high]], np.diff(before[low : high + 1])
            places = np.repeat(first - before[low:high], sizes) + np.arange(before[low], before[high])
            yield terms[places], kinds[places], np.repeat(np.arange(low, high), sizes)


class PostingsBuilder:
    """Builds postings from texts and other postings, in bounded memory if a ``folder`` for temporary files is given."""

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
        numbers, sizes = array("q"), list[int]()  # chunks of all documents, and how many each has
        for text in texts:
            before = len(numbers)
            numbers.extend(map(self._chunks.__getitem__, self.analyser.chunks(text)))
            sizes.append(len(numbers) - before)
            if len(numbers) >= _BLOCK:
                self._collect(np.array(numbers, np.int64), sizes)
                numbers, sizes = array("q"), []
        self._collect(np.array(numbers, np.int64), sizes)

    def _collect(self, numbers: Rows, sizes: Sequence[int]) -> None:
        """Collect the terms of documents, and pairs of neighbouring words, from the numbers of their chunks.

        ``sizes`` are the numbers of chunks of each document. Blocks may end within a document: the last word is kept.
        """
        document, lengths = np.repeat(np.arange(len(sizes)), sizes), np.zeros(len(sizes), np.int64)
        last_term, last_row = np.empty(0, np.uint64), np.empty(0, np.int64)
        for terms, kinds, chunk in self._chunks.expand(numbers):
            # 1. Lengths count all words but function words.
            row = document[chunk]
            lengths += np.bincount(row[kinds != WordKind.FUNCTION], minlength=len(sizes))
            # 2. Pairs of neighbours in one document.
            linked = np.flatnonzero(kinds == WordKind.WORD)
            word, place = np.append(last_term, terms[linked]), np.append(last_row, row[linked])
            near = place[1:] == place[:-1]  # neighbours of one document
            pairs = pair_terms(word[:-1][near], word[1:][near])
            # 3. A term and a row in one number each, to sort.
            for term, rows in ((terms, row), (pairs, place[1:][near])):
                self._collected.append(term << np.uint64(_ROW) | (rows + self._documents).astype(np.uint64))
                self._size += len(term)
            last_term, last_row = word[-1:], place[-1:]
        self._lengths.append(lengths.astype(np.int32))
        self._documents += len(sizes)
        if len(self._chunks) > _KNOWN:
            self._chunks = _Chunks(self.analyser)
        if self.folder is not None and (self._size >= self.run or self._documents >> (_ROW - 1)):
            self._spill(self.folder)

    def collected(self) -> Postings:
        """Sort the texts added since the last file was written."""
        arrays = self._sorted()
        return Postings.read(lambda name, _: arrays[name])

    def _sorted(self) -> dict[str, NDArray[Any]]:
        """Arrays of the collected postings: equal (term, row) pairs are one hit, with their number as its count."""
        keys = np.concatenate([np.empty(0, np.uint64), *self._collected])
        self._collected.clear()
        keys.sort()
        first = _firsts(keys)
        counts, keys = np.diff(first, append=len(keys)), keys[first]
        terms, rows = keys >> np.uint64(_ROW), keys & np.uint64((1 << _ROW) - 1)
        first = _firsts(terms)
        pieces = [(terms[first], np.diff(first, append=len(terms)), hits_of(rows, counts))]
        return _by_name(pieces, self._lengths)

    def _spill(self, folder: Path) -> None:
        """Write the postings collected so far to files, and go on with empty memory."""
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
        if self._count + len(rows) > _MAX_DOCUMENTS:
            raise InputError(f"an index holds at most {_MAX_DOCUMENTS:,} documents; split it into several")
        new = np.full(len(postings.lengths), -1, np.int64)
        new[rows] = np.arange(self._count, self._count + len(rows))
        self._parts.append((postings, new))
        self._count += len(rows)

    def chunks(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the merged arrays by name, piece by piece, and remove the files."""
        if not self._parts:
            yield from self._sorted().items()
            return
        if self._documents:
            self.add_postings(self.collected(), np.arange(self._documents))
        for postings, new in self._parts:
            yield "lengths", postings.lengths[new >= 0]  # of the documents that stay
        yield from _layout(merge_parts(self._parts))
        self._parts.clear()
        for path in self._files:
            path.unlink()


def _firsts(rising: NDArray[Any]) -> Rows:
    """Places where a new value begins: [5, 5, 7] → [0, 2]."""
    return np.flatnonzero(np.append(True, rising[1:] != rising[:-1])[: len(rising)])


def _layout(pieces: Iterable[Piece]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of postings by name, except lengths, from pieces with rising terms.

    Three terms (head, tail) with their hits, (1, 5): a b, (1, 8): c and (2, 7): d e, give

        tails       5 7    starts     0 0    hits        a b d e    heads  0 0 1 2 …    bases  0 0 2 4 …
        once_tails  8      once_hits  c      once_heads  0 0 1 1 …
    """
    term_counts, hit_counts, once_counts = (np.zeros(256, np.int64) for _ in range(3))  # by head, so far
    total = 0  # hits of terms of several documents so far
    for terms, sizes, hits in pieces:
        head, once = (terms >> np.uint64(_TAIL)).astype(np.int64), sizes == 1
        # 1. Terms of one document: a tail and a hit each.
        ends = np.cumsum(sizes)
        yield "once_tails", terms[once].astype(np.uint32)
        yield "once_hits", hits[ends[once] - 1]
        once_counts += np.bincount(head[once], minlength=256)
        # 2. The others: a tail, the place where its hits begin, counted from the first hit of its head, and its hits.
        yield "hits", hits[np.repeat(~once, sizes)]
        terms, sizes, head = terms[~once], sizes[~once], head[~once]
        term_counts += np.bincount(head, minlength=256)
        np.add.at(hit_counts, head, sizes)
        starts = total + _offsets(sizes)[:-1]
        total += int(sizes.sum())
        yield "tails", terms.astype(np.uint32)
        yield "starts", (starts - _offsets(hit_counts)[head]).astype(np.uint32)
    # 3. Where each head begins among the terms and hits, known when all are counted.
    yield from (
        ("heads", _offsets(term_counts)),
        ("bases", _offsets(hit_counts)),
        ("once_heads", _offsets(once_counts)),
    )


def _by_name(pieces: Iterable[Piece], lengths: Iterable[NDArray[np.int32]]) -> dict[str, NDArray[Any]]:
    joined = {name: [np.empty(0, kind)] for name, kind in TYPES.items()}
    for name, values in chain(_layout(pieces), (("lengths", lengths_of_part) for lengths_of_part in lengths)):
        joined[name].append(values)
    return {name: np.concatenate(values) for name, values in joined.items()}


def _offsets(sizes: Rows) -> Rows:
    """Turn sizes into where each begins, and the end: [2, 0, 3] → [0, 2, 2, 5]."""
    return np.append(0, np.cumsum(sizes))


def merge_parts(parts: Sequence[tuple[Postings, Rows]], most: int = _PIECE) -> Iterator[Piece]:
    """Merge postings in pieces of at most ``most`` postings (or one term).

    Each part comes with the new row of each of its documents, −1 for those that go; they rise from part to part.
    """
    runs = [(run, new) for part, new in parts for run in part.runs()]
    for edges in pairwise(_RANGES):
        within = [(run, *np.searchsorted(run.terms, np.array(edges, np.uint64)).tolist()) for run, _ in runs]
        terms = np.unique(np.concatenate([run.terms[first:last] for run, first, last in within]))
        sizes = np.zeros(len(terms), np.int64)
        for run, first, last in within:
            sizes[np.searchsorted(terms, run.terms[first:last])] += np.diff(run.starts[first : last + 1])
        ends = np.cumsum(sizes)
        low = 0
        while low < len(terms):
            done = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + most, side="right")))
            if len((piece := _merge_terms(runs, terms[low:high]))[0]):
                yield piece
            low = high


def _merge_terms(runs: Sequence[tuple[Run, Rows]], terms: NDArray[np.uint64]) -> Piece:
    """Merge the hits of a range of terms from several runs, with rows renumbered and dead ones left out."""
    packed = []  # place of the term, then its hit
    for run, new in runs:
        first, last = np.searchsorted(run.terms, [terms[0], terms[-1]], side="left")
        last += int(last < len(run.terms) and run.terms[last] == terms[-1])
        hits = run.hits[int(run.starts[first]) : int(run.starts[last])]
        row = new[hits >> COUNT_BITS]
        sizes = np.diff(run.starts[first : last + 1])
        place = np.repeat(np.searchsorted(terms, run.terms[first:last]), sizes)
        packed.append((place << 32 | row << COUNT_BITS | (hits & MAX_COUNT))[row >= 0])
    merged = np.sort(np.concatenate(packed))
    sizes = np.bincount(merged >> 32, minlength=len(terms))
    present = sizes > 0
    return terms[present], sizes[present], merged.astype(np.uint32)
