"""Exact overlap search by columns: upper bounds from the query's heaviest columns spare most rows a full comparison.

Σ min(q, x) = Σ q − Σ (q − x)⁺. Every term of the last sum, the *deficit*, counts, so a few columns bound a score from
above. Columns where the query is heavy say most: about half of a soft tree's columns leave a percent or two of the rows
to compare in full; a few of a sharp tree's do. Stored numbers are rounded up to a byte and the query's down, so that
the bound holds. Importing this module imports numba: do it when first needed.

Letters: N rows, C columns, T tiles of R rows.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask, Rows
from palmette.search.kernels import compiled, overlap, replace_lowest
from palmette.threads import get_threads, run_in_threads

_TILE = 8192  # bytes of a column read at a time; the deficits of its rows stay in the cache
_SAMPLE = 512  # rows by which the step of the codes is chosen
_CUT = 0.005  # share of a row's mass that may lie above the highest code
_FIRST, _SPARE = 0.2, 50  # share of the query read at first; rows compared then, beyond the k wanted
_CHUNK = 32  # columns read between two counts of the rows that are left
_CHUNK_COST = 30.0  # µs to narrow a tile further
_ROW_COST, _BYTE_COST = 0.05, 1e-4  # µs to compare a row instead

Fixed = NDArray[np.uint16]


class Columns(NamedTuple):
    """A block's numbers by column, a byte each."""

    data: Fixed
    """[N, C] the rows."""
    codes: NDArray[np.uint8]
    """[T, C, R] numbers in units of ``step``, rounded up; 255 for whatever is above 254."""
    step: int

    @classmethod
    def build(cls, data: Fixed) -> Columns:
        """Encode the rows of a block."""
        sample = data[:: -(-len(data) // _SAMPLE)].astype(np.float32)
        step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if s == 256 or _cut(sample, s) < _CUT)
        size = -(-len(data) // (-(-len(data) // _TILE) * 128)) * 128
        codes = np.empty((-(-len(data) // size), data.shape[1], size), np.uint8)
        scale = np.float32(1 / step)
        run_in_threads(
            [partial(_encode, data[t * size : (t + 1) * size], scale, codes[t]) for t in range(len(codes))]
        )
        return cls(data, codes, step)

    def search(self, rows: Rows | None, query: Fixed, k: int) -> tuple[Rows, NDArray[np.int64], int, int]:
        """Find rows that include the ``k`` best for a query [C]: rows, scores, rows compared, bytes read."""
        excluded = np.zeros(len(self.data), np.bool_)
        if rows is not None:
            excluded[:] = True
            excluded[rows] = False
        order = np.argsort(-query.astype(np.int32), kind="stable").astype(np.int32)  # heaviest first
        codes = np.minimum(query[order] // self.step, 254).astype(np.uint8)
        edges = np.linspace(0, len(self.codes), min(get_threads(), len(self.codes)) + 1).astype(int).tolist()
        tasks = [partial(self._search, excluded, query, order, codes, k, a, b) for a, b in pairwise(edges)]
        found = run_in_threads(tasks)
        near, scores = (np.concatenate(parts) for parts in zip(*(part[:2] for part in found), strict=True))
        return near, scores, sum(part[2] for part in found), sum(part[3] for part in found)

    def _search(
        self, excluded: Mask, query: Fixed, order: Any, asked: Any, k: int, first: int, last: int
    ) -> tuple[Rows, NDArray[np.int64], int, int]:
        """Search the tiles of one thread."""
        size = self.codes.shape[2]
        begin, codes = first * size, self.codes[first:last]
        data = self.data[begin : last * size]
        skip, deficit = excluded[begin : begin + len(data)].copy(), np.zeros(len(data), np.uint16)
        seen, width = np.cumsum(asked, dtype=np.int64), np.count_nonzero(asked)
        start = min(int((seen < _FIRST * seen[-1]).sum()) // 8 * 8 + 8, width)
        few = _CHUNK_COST / (_ROW_COST + _BYTE_COST * data[0].nbytes)
        heap, found = np.full(k, -1, np.int64), np.empty(len(data), np.int64)
        scores, reading = np.empty_like(found), (start, width, k + _SPARE, few)
        room = (deficit, skip, heap, found, scores)
        filled, read = _search_tiles(codes, data, query, order, asked, self.step, *reading, *room)
        kept = scores[:filled] >= heap[0]
        return found[:filled][kept] + begin, scores[:filled][kept], filled, read + filled * data[0].nbytes


def _cut(sample: Floats, step: int) -> float:
    """Share of some rows' mass that lies above the highest code."""
    return float(np.maximum(sample - 254 * step, 0).sum() / sample.sum().clip(1))


@compiled
def _encode(data: Any, scale: Any, codes: Any) -> None:
    """Rows of a tile [n, C] → codes [C, R]: scaled numbers rounded up; 255 for whatever is above 254."""
    count, width = data.shape
    span = 64  # rows and columns transposed together, in a corner of the L1 cache
    corner = np.empty((span, span), np.uint8)
    for first in range(0, count, span):
        last = min(first + span, count)
        for left in range(0, width, span):
            right = min(left + span, width)
            for i in range(first, last):
                for j in range(left, right):
                    up = np.ceil(np.float32(data[i, j]) * scale)
                    corner[j - left, i - first] = np.uint8(min(up, np.float32(255)))
            for j in range(left, right):
                codes[j, first:last] = corner[j - left, : last - first]


@compiled
def _less(q: Any, x: Any) -> Any:
    """(q − x)⁺ of bytes."""
    return np.uint16(np.uint8(max(q, x) - x))


@compiled
def _add(codes: Any, columns: Any, asked: Any, deficit: Any) -> None:
    """Add what each row surely lacks of some columns: deficit [n] += Σ (asked − code)⁺."""
    n, c = len(deficit), 0
    while c + 8 <= len(columns):  # eight streams keep the memory busy
        q0, q1, q2, q3 = asked[c], asked[c + 1], asked[c + 2], asked[c + 3]
        q4, q5, q6, q7 = asked[c + 4], asked[c + 5], asked[c + 6], asked[c + 7]
        x0, x1 = codes[columns[c]], codes[columns[c + 1]]
        x2, x3 = codes[columns[c + 2]], codes[columns[c + 3]]
        x4, x5 = codes[columns[c + 4]], codes[columns[c + 5]]
        x6, x7 = codes[columns[c + 6]], codes[columns[c + 7]]
        for i in range(n):
            a = np.uint16(_less(q0, x0[i]) + _less(q1, x1[i]))
            b = np.uint16(_less(q2, x2[i]) + _less(q3, x3[i]))
            d = np.uint16(_less(q4, x4[i]) + _less(q5, x5[i]))
            e = np.uint16(_less(q6, x6[i]) + _less(q7, x7[i]))
            deficit[i] = np.uint16(deficit[i] + np.uint16(np.uint16(a + b) + np.uint16(d + e)))
        c += 8
    while c < len(columns):
        q0, x0 = asked[c], codes[columns[c]]
        for i in range(n):
            deficit[i] = np.uint16(deficit[i] + _less(q0, x0[i]))
        c += 1


@compiled
def _narrow(
    codes: Any, order: Any, asked: Any, start: Any, stop: Any, limit: Any, few: Any, deficit: Any
) -> Any:
    """Read columns from ``start`` to ``stop``, until ``few`` rows lack at most ``limit``; returns where it ends."""
    bar = np.uint16(min(max(limit, 0), 65535))
    c = start
    while c < stop:
        end = min(c + _CHUNK, stop)
        _add(codes, order[c:end], asked[c:end], deficit)
        c, left = end, np.uint16(0)
        for i in range(len(deficit)):
            left = np.uint16(left + np.uint16(deficit[i] <= bar))
        if left <= few:
            break
    return c


@compiled
def _cutoff(deficit: Any, skip: Any, many: Any) -> Any:
    """Least number, to within a few, that ``many`` open rows lack at most."""
    bins = np.zeros(4097, np.int64)
    for i in range(len(deficit)):
        bins[deficit[i] >> 4] += not skip[i]
    top, seen = 0, bins[0]
    while seen < many and top < 4096:
        top += 1
        seen += bins[top]
    return min(((top + 1) << 4) - 1, 65535)


@compiled
def _compare(
    data: Any,
    query: Any,
    total: Any,
    step: Any,
    bar: Any,
    deficit: Any,
    skip: Any,
    heap: Any,
    rows: Any,
    scores: Any,
) -> Any:
    """Score the open rows that lack at most ``bar`` and may be among the best; returns how many."""
    count, limit = 0, min(bar, (total - heap[0]) // step)
    for i in range(len(deficit)):
        if deficit[i] <= limit and not skip[i]:
            skip[i] = True
            score = np.int64(overlap(data[i], query))
            rows[count], scores[count] = i, score
            count += 1
            if score > heap[0]:
                replace_lowest(heap, score)
                limit = min(bar, (total - heap[0]) // step)
    return count


@compiled
def _search_tiles(
    codes: Any,  # [T, C, R]
    data: Any,  # [n, C] the rows of these tiles
    query: Any,  # [C]
    order: Any,  # [C] columns, heaviest first
    asked: Any,  # [C] the query's codes in that order
    step: Any,
    start: Any,  # columns read at first
    width: Any,  # columns worth reading
    many: Any,  # rows compared at first
    few: Any,  # rows left in a tile that are compared rather than narrowed further
    deficit: Any,  # [n] zeros
    skip: Any,  # [n] rows not to compare
    heap: Any,  # [k] −1: the best scores, the lowest first
    found: Any,  # [n] room for rows
    scores: Any,  # [n] and their scores
) -> Any:
    """Find rows that include the k best; returns how many were compared, and the bytes of codes read."""
    size, total, read = codes.shape[2], np.int64(0), 0
    for j in range(len(query)):
        total += np.int64(query[j])
    # the heaviest columns find rows good enough to measure the others by
    for t in range(len(codes)):
        _narrow(codes[t], order, asked, 0, start, 0, -1, deficit[t * size : min((t + 1) * size, len(data))])
    bar = _cutoff(deficit, skip, many)
    filled = _compare(data, query, total, step, bar, deficit, skip, heap, found, scores)
    for t in range(len(codes)):
        begin, end = t * size, min((t + 1) * size, len(data))
        limit = (total - heap[0]) // step
        c = _narrow(codes[t], order, asked, start, width, limit, few, deficit[begin:end])
        read += c * (end - begin)
        count = _compare(
            data[begin:end],
            query,
            total,
            step,
            65535,
            deficit[begin:end],
            skip[begin:end],
            heap,
            found[filled:],
            scores[filled:],
        )
        for i in range(filled, filled + count):
            found[i] += begin
        filled += count
    return filled, read
