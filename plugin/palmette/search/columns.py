"""Searching column by column: what each row surely lacks of a query, heaviest columns first.

Σ min(q, x) = Σ q − Σ (q − x)⁺, and every term of the last sum counts, so a few columns bound a score from above.
Those where the query is heavy say most: of a soft tree's columns about a third, at one byte a number, leaves a percent
or two of the rows to be compared in full; of a sharp tree's, a few do. Values are rounded up: the bound holds.
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

_TILE = 8192  # rows whose partial sums stay in the L1 cache
_SAMPLE = 1024  # rows by which the unit of the codes is chosen
_CUT = 0.005  # share of a row's mass that may be too large for codes to tell apart
_GLANCE, _SPARE = 0.2, 50  # share of a query read at first; rows compared then, beyond the k asked for
_TOGETHER = 1 << 24  # partial sums kept at a time
_CHUNK_COST, _ROW_COST, _BYTE_COST = (
    30.0,
    0.05,
    1e-4,
)  # µs to narrow a tile further, or to compare a row instead


@dataclass(frozen=True)
class Columns:
    """A block's numbers by column, a byte each.

    Attributes:
        data: The rows themselves, [N, C] ``uint16`` in parts of 2⁻¹⁵ or float32.
        codes: [tiles, C, rows per tile] numbers divided by ``step`` and rounded up; 255 where they are above 254.
        step: In parts of 2⁻¹⁵.
    """

    data: NDArray[Any]
    codes: NDArray[np.uint8]
    step: int

    @classmethod
    def build(cls, data: NDArray[Any]) -> Columns | None:
        """From rows of numbers that are nowhere negative; ``None`` where they are."""
        from palmette.search import loops

        parts = 1 if data.dtype == np.uint16 else ONE
        if data.dtype != np.uint16 and float(data.min()) < 0:
            return None
        sample = data[:: max(1, len(data) // _SAMPLE)] * np.float32(parts)
        step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if s == 256 or _cut(sample, s) < _CUT)
        size = -(-len(data) // (-(-len(data) // _TILE) * 64)) * 64
        codes = np.empty((-(-len(data) // size), data.shape[1], size), np.uint8)

        def fill(tile: int) -> None:
            loops.encode(data[tile * size : (tile + 1) * size], np.float32(parts / step), codes[tile])

        run_in_threads([partial(fill, tile) for tile in range(len(codes))])
        return cls(data, codes, step)

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
            asking = _Asking.of(queries[some], margin[some], self.step)
            tasks = [partial(self._search, closed, asking, k, a, b) for a, b in pairwise(edges)]
            found += [part._replace(of=part.of + start) for part in run_in_threads(tasks)]
        of, proposed = (np.concatenate(parts) for parts in zip(*(f[:2] for f in found), strict=True))
        return Proposals(of, proposed, sum(f.compared for f in found), sum(f.read for f in found))

    def _search(self, closed: NDArray[np.bool_], asking: _Asking, k: int, first: int, last: int) -> Proposals:
        """One thread's tiles."""
        from palmette.search import loops

        codes, size, count = self.codes[first:last], self.codes.shape[2], len(asking.queries)
        begin = first * size
        data = self.data[begin : last * size]
        lacked = np.zeros((count, len(data)), np.uint16)
        done = np.repeat(closed[None, begin : begin + len(data)], count, axis=0)
        heaps, found = np.full((count, k), -np.inf), _Found(len(data) + k)
        work = np.zeros(2, np.int64)

        # A glance at the heaviest columns finds rows good enough to measure the others by.
        loops.glance(codes, asking.order, asking.codes, asking.glance, lacked)
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
    """[Q, C] the query in that order, rounded down."""
    glance: NDArray[np.int64]
    """[Q] columns to begin with."""
    width: NDArray[np.int64]
    """[Q] columns that say anything."""
    most: NDArray[np.float64]
    """[Q] Σ q in steps: what a row that lacks nothing has."""
    margin: NDArray[np.float64]
    """[Q] how far apart two scores may be that are really equal."""
    units: tuple[float, float]
    """The score of 1 in the data's numbers, and the steps that a score of 1 is."""

    @classmethod
    def of(cls, queries: NDArray[Any], margin: Floats, step: int) -> _Asking:
        unit = 1 / ONE if queries.dtype == np.uint16 else 1.0
        steps = queries * (unit * ONE / step)  # [Q, C]
        order = np.argsort(-steps, axis=1, kind="stable").astype(np.int32)
        codes = np.take_along_axis(np.minimum(steps, 254).astype(np.uint8), order, axis=1)
        seen = np.cumsum(codes, axis=1, dtype=np.int64)  # [Q, C]
        width = np.count_nonzero(codes, axis=1)
        glance = np.minimum((seen < _GLANCE * seen[:, -1:]).sum(axis=1) // 8 * 8 + 8, width)
        most = steps.sum(axis=1, dtype=np.float64) + 1e-3
        return cls(queries, order, codes, glance, width, most, margin.astype(np.float64), (unit, ONE / step))

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
