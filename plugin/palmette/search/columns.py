"""Searching column by column: what each row surely lacks of a query, heaviest columns first.

Σ min(q, x) = Σ q − Σ (q − x)⁺, and every term of the last sum counts, so a few columns bound a score from above.
Those where the query is heavy say most: of a soft tree's columns about half leaves a percent or two of the rows to be
compared in full; of a sharp tree's, a few do. Values are rounded up: the bound holds. How they are rounded is settled
by what a sample of the rows would have to read: numbers that lie close together, as a soft tree's do, need half a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.search.block import Proposals
from palmette.search.fixed import ONE
from palmette.search.kernels import Rows
from palmette.search.probe import Floats
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["Columns"]

_TILE = 8192  # bytes of a column read at a time; the partial sums of its rows stay in the cache
_SAMPLE = 512  # rows by which the codes are chosen
_TRIED = 4  # of these, asked as queries
_LEFT = 0.02  # share of rows that columns leave to be compared
_LOW, _HIGH = 0.05, 0.95  # where half bytes begin and end, among the numbers
_CUT = 0.005  # share of a row's mass that may be too large for codes to tell apart
_GLANCE, _SPARE = 0.2, 50  # share of a query read at first; rows compared then, beyond the k asked for
_TOGETHER = 1 << 24  # partial sums kept at a time
_CHUNK_COST, _ROW_COST, _BYTE_COST = (
    30.0,
    0.05,
    1e-4,
)  # µs to narrow a tile further, or to compare a row instead


class _Rounding(NamedTuple):
    """How numbers become codes.

    Attributes:
        first: What code 0 stands for, and all below it, in parts of 2⁻¹⁵.
        step: From code to code, in the same.
        half: Four bits a number rather than eight; the highest code stands for all that is above.
    """

    first: float
    step: float
    half: bool

    @property
    def unit(self) -> float:
        """Parts in which a row's lack is counted: a step, or half of one."""
        return self.step / (1 + self.half)

    @property
    def most(self) -> int:
        """The largest number of units that a query may ask for, so that the highest code lacks nothing."""
        return 30 if self.half else 254

    def asked(self, parts: NDArray[Any]) -> NDArray[np.uint8]:
        """Queries in units from ``first`` on, rounded down."""
        return np.clip(np.floor((parts - self.first) / self.unit), 0, self.most).astype(np.uint8)

    def stored(self, parts: NDArray[Any]) -> NDArray[np.int16]:
        """What a row's numbers count as, in units from ``first`` on: rounded up."""
        codes = np.clip(np.ceil((parts - self.first) / self.step), 0, 15 if self.half else 255)
        return codes.astype(np.int16) * np.int16(1 + self.half)

    def read(self, sample: Floats) -> float:
        """Bytes a row that are read, and compared, until those that may be as near as the nearest are left."""
        asked = sample[:: -(-len(sample) // _TRIED)]
        rows, needed = self.stored(sample), 0.0
        for query in asked:
            order = np.argsort(-query, kind="stable")
            lacks = np.maximum(query - sample, 0).sum(1)
            nearest = np.partition(lacks, min(1, len(lacks) - 1))[1:2].sum() / self.unit  # but for itself
            lacking = np.maximum(self.asked(query).astype(np.int16)[order] - rows[:, order], 0)
            left = (lacking.cumsum(axis=1, dtype=np.float32) <= nearest).mean(axis=0)  # [C]
            enough = np.flatnonzero(left <= _LEFT)
            columns = int(enough[0]) + 1 if len(enough) else len(query)
            needed += columns / (1 + self.half) + float(left[columns - 1]) * len(query) * 2
        return needed / len(asked)

    @classmethod
    def of(cls, sample: Floats) -> _Rounding:
        """Of bytes and half bytes, what reads less: by a sample of rows in parts of 2⁻¹⁵."""
        step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if s == 256 or _cut(sample, s) < _CUT)
        low, high = np.quantile(sample, (_LOW, _HIGH))
        first = float(np.floor(low))
        tried = (cls(0.0, step, half=False), cls(first, max(1.0, np.ceil((high - first) / 15)), half=True))
        return min(tried, key=lambda rounding: rounding.read(sample))


@dataclass(frozen=True)
class Columns:
    """A block's numbers by column, a byte each or half of one.

    Attributes:
        data: The rows themselves, [N, C] ``uint16`` in parts of 2⁻¹⁵ or float32.
        codes: [tiles, C, bytes]: of half bytes the first half of a tile's rows lies in the lower bits.
        rounding: What they stand for.
    """

    data: NDArray[Any]
    codes: NDArray[np.uint8]
    rounding: _Rounding

    @classmethod
    def build(cls, data: NDArray[Any]) -> Columns | None:
        """From rows of numbers that are nowhere negative; ``None`` where they are."""
        from palmette.search import column_loops as loops

        parts = 1 if data.dtype == np.uint16 else ONE
        if data.dtype != np.uint16 and float(data.min()) < 0:
            return None
        rounding = _Rounding.of(data[:: -(-len(data) // _SAMPLE)] * np.float32(parts))
        tile = _TILE * (1 + rounding.half)
        size = -(-len(data) // (-(-len(data) // tile) * 128)) * 128
        codes = np.empty((-(-len(data) // size), data.shape[1], size // (1 + rounding.half)), np.uint8)
        scale = np.float32(parts / rounding.step)

        def fill(tile: int) -> None:
            some = data[tile * size : (tile + 1) * size]
            if rounding.half:
                loops.encode_halves(some, scale, np.float32(rounding.first / rounding.step), codes[tile])
            else:
                loops.encode(some, scale, codes[tile])

        run_in_threads([partial(fill, tile) for tile in range(len(codes))])
        return cls(data, codes, rounding)

    def search(self, rows: Rows | None, queries: NDArray[Any], margin: Floats, k: int) -> Proposals:
        """Rows whose score is at most ``margin`` [Q] under the k-th best: queries [Q, C] of the data's type."""
        closed = np.zeros(len(self.data), np.bool_)
        if rows is not None:
            closed[:] = True
            closed[rows] = False
        edges = np.linspace(0, len(self.codes), min(get_threads(), len(self.codes)) + 1).astype(int).tolist()
        found = []
        step = max(1, _TOGETHER // len(self.data))
        for start in range(0, len(queries), step):
            some = slice(start, start + step)
            asking = _Asking.of(queries[some], margin[some], self.rounding)
            tasks = [partial(self._search, closed, asking, k, a, b) for a, b in pairwise(edges)]
            found += [part._replace(of=part.of + start) for part in run_in_threads(tasks)]
        of, proposed = (np.concatenate(parts) for parts in zip(*(f[:2] for f in found), strict=True))
        return Proposals(of, proposed, sum(f.compared for f in found), sum(f.read for f in found))

    def _search(self, closed: NDArray[np.bool_], asking: _Asking, k: int, first: int, last: int) -> Proposals:
        """One thread's tiles."""
        from palmette.search import column_loops as loops

        half = self.rounding.half
        codes, size, count = self.codes[first:last], self.codes.shape[2] * (1 + half), len(asking.queries)
        begin = first * size
        data = self.data[begin : last * size]
        lacked = np.zeros((count, len(data)), np.uint16)
        done = np.repeat(closed[None, begin : begin + len(data)], count, axis=0)
        heaps, found = np.full((count, k), -np.inf), _Found(len(data) + k)
        work = np.zeros(2, np.int64)

        # A glance at the heaviest columns finds rows good enough to measure the others by.
        loops.glance(codes, half, asking.order, asking.codes, asking.glance, lacked)
        for q in range(count):
            bar = loops.promising(lacked[q], done[q], k + _SPARE)
            terms = (*asking.terms(q), float(bar))
            where = (heaps[q], *found.out[1:])
            compared, kept = loops.compare(data, lacked[q], done[q], asking.queries[q], terms, *where)
            found.out[0][:kept] = q
            found.keep(kept, heaps, asking.margin)
            work += compared, compared * data[0].nbytes

        few = _CHUNK_COST / (_ROW_COST + _BYTE_COST * data[0].nbytes)
        place = np.zeros(2, np.int64)
        while place[0] < len(codes):
            filled = loops.search(
                codes,
                half,
                data,
                (asking.queries, asking.order, asking.codes, asking.most, asking.margin),
                asking.units,
                (asking.glance, asking.width),
                few,
                lacked,
                done,
                place,
                heaps,
                found.out,
                work,
            )
            found.keep(filled, heaps, asking.margin)
        of, proposed = found.best(heaps, asking.margin)
        return Proposals(of, proposed + begin, int(work[0]), int(work[1]))


def _cut(parts: Floats, step: int) -> float:
    """The share of some rows' mass that lies above the highest code."""
    return float(np.maximum(parts - 254 * step, 0).sum() / parts.sum().clip(1))


class _Asking(NamedTuple):
    """Queries as the loops want them (Q queries, C columns)."""

    queries: NDArray[Any]
    """[Q, C] in the data's numbers."""
    order: NDArray[np.int32]
    """[Q, C] columns, heaviest first."""
    codes: NDArray[np.uint8]
    """[Q, C] the query in that order, in units and rounded down."""
    glance: NDArray[np.int64]
    """[Q] columns to begin with."""
    width: NDArray[np.int64]
    """[Q] columns that say anything."""
    most: NDArray[np.float64]
    """[Q] Σ q in units: what a row that lacks nothing has."""
    margin: NDArray[np.float64]
    """[Q] how far apart two scores may be that are really equal."""
    units: tuple[float, float]
    """The score of 1 in the data's numbers, and the units that a score of 1 is."""

    @classmethod
    def of(cls, queries: NDArray[Any], margin: Floats, rounding: _Rounding) -> _Asking:
        one = 1 / ONE if queries.dtype == np.uint16 else 1.0
        parts = queries * (one * ONE)  # [Q, C]
        order = np.argsort(-parts, axis=1, kind="stable").astype(np.int32)
        codes = np.take_along_axis(rounding.asked(parts), order, axis=1)
        seen = np.cumsum(codes, axis=1, dtype=np.int64)  # [Q, C]
        width = np.count_nonzero(codes, axis=1)
        glance = np.minimum((seen < _GLANCE * seen[:, -1:]).sum(axis=1) // 8 * 8 + 8, width)
        most = parts.sum(axis=1, dtype=np.float64) / rounding.unit + 1e-3
        units = (one, ONE / rounding.unit)
        return cls(queries, order, codes, glance, width, most, margin.astype(np.float64), units)

    def terms(self, q: int) -> tuple[float, ...]:
        return (float(self.most[q]), float(self.margin[q]), *self.units)


class _Found:
    """Rows found so far, looked through whenever the room is filled."""

    def __init__(self, room: int) -> None:
        self.out = (np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room))
        self.pieces: list[tuple[NDArray[Any], ...]] = []

    def keep(self, filled: int, heaps: NDArray[np.float64], margin: NDArray[np.float64]) -> None:
        """Take what lies in the room and may still be among the best."""
        of, rows, scores = (column[:filled] for column in self.out)
        stays = scores >= heaps[of, 0] - margin[of]
        self.pieces.append((of[stays], rows[stays], scores[stays]))

    def best(self, heaps: NDArray[np.float64], margin: NDArray[np.float64]) -> tuple[Rows, Rows]:
        """What may be among the best now that all is seen."""
        of, rows, scores = (np.concatenate(parts) for parts in zip(*self.pieces, strict=True))
        stays = scores >= heaps[of, 0] - margin[of]
        return of[stays], rows[stays]
