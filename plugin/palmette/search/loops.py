"""The loops that numba compiles. Importing this module imports numba: do it when first needed.

Letters: N rows, C columns, Q queries, T tiles of R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

from palmette.search.fixed import ONE

__all__ = ["encode", "overlaps", "ranges", "search"]

_ONE = float(ONE)
_CHUNK = 32  # columns read between two looks at how many rows are left
_SEEN = 0.55  # share of a query's mass after which the best rows of a first tile are compared
_SPARE = 16  # rows compared then beyond the k that are asked for


def _fast(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for each combination of types, or read it from the cache; without bounds checks or the GIL."""
    options: dict[str, Any] = {"nogil": True, "fastmath": True, "boundscheck": False, "error_model": "numpy"}
    made: Callable[..., Any]
    try:
        made = nb.njit(cache=True, **options)(loop)
    except (RuntimeError, OSError):  # no folder to keep the compiled loop in
        made = nb.njit(**options)(loop)
    return made


@_fast
def overlaps(data: Any, rows: Any, queries: Any, out: Any) -> None:
    """Σ min(q, x) of some rows: data [N, C], queries [Q, C] → out [Q, len(rows)]."""
    kind = out.dtype.type
    tile = 32  # rows that stay in the L2 cache while all queries pass over them
    count, width = queries.shape
    for start in range(0, len(rows), tile):
        stop = min(start + tile, len(rows))
        whole = count - count % 4
        for q in range(0, whole, 4):
            for i in range(start, stop):
                row = rows[i]
                a = b = c = d = kind(0)
                for j in range(width):
                    x = data[row, j]
                    a = kind(a + min(x, queries[q, j]))
                    b = kind(b + min(x, queries[q + 1, j]))
                    c = kind(c + min(x, queries[q + 2, j]))
                    d = kind(d + min(x, queries[q + 3, j]))
                out[q, i], out[q + 1, i], out[q + 2, i], out[q + 3, i] = a, b, c, d
        for q in range(whole, count):
            for i in range(start, stop):
                out[q, i] = _shared(data[rows[i]], queries[q])


@_fast
def _shared(x: Any, query: Any) -> Any:
    kind = query.dtype.type
    total = kind(0)
    for j in range(len(query)):
        total = kind(total + min(x[j], query[j]))
    return total


@_fast
def ranges(data: Any) -> Any:
    """The lowest number of all, and the highest of each column [C]."""
    low = data[0, 0]
    high = data[0].copy()
    for i in range(len(data)):
        for j in range(data.shape[1]):
            low = min(low, data[i, j])
            high[j] = max(high[j], data[i, j])
    return low, high


@_fast
def encode(data: Any, scale: Any, steps: Any, codes: Any) -> None:
    """Rows of a tile [n, C] → codes [C, R]: the least with ``code · step`` not below the scaled number."""
    count, width = data.shape
    span = 64  # rows and columns turned over together, in a corner of the L1 cache
    corner = np.empty((span, span), np.uint8)
    for first in range(0, count, span):
        last = min(first + span, count)
        for left in range(0, width, span):
            right = min(left + span, width)
            for i in range(first, last):
                for j in range(left, right):
                    whole = np.int32(np.ceil(data[i, j] * scale))
                    step = np.int32(steps[j])
                    corner[j - left, i - first] = np.uint8((whole + step - 1) // step)
            for j in range(left, right):
                codes[j, first:last] = corner[j - left, : last - first]


@_fast
def _push(heap: Any, score: Any) -> None:
    """Let a score take the place of the lowest, which lies on top."""
    at, size = 0, len(heap)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= score:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = score


@_fast
def _add(codes: Any, steps: Any, columns: Any, asked: Any, lacked: Any) -> None:
    """Add what each row surely lacks of some columns: lacked [n] += Σ (asked − code · step)⁺."""
    n, c = len(lacked), 0
    while c + 4 <= len(columns):
        q0, q1, q2, q3 = asked[c], asked[c + 1], asked[c + 2], asked[c + 3]
        j0, j1, j2, j3 = columns[c], columns[c + 1], columns[c + 2], columns[c + 3]
        s0, s1, s2, s3 = steps[j0], steps[j1], steps[j2], steps[j3]
        x0, x1, x2, x3 = codes[j0], codes[j1], codes[j2], codes[j3]
        for i in range(n):
            a0 = np.uint16(x0[i] * s0)
            a1 = np.uint16(x1[i] * s1)
            a2 = np.uint16(x2[i] * s2)
            a3 = np.uint16(x3[i] * s3)
            d01 = np.uint16(np.uint16(max(q0, a0) - a0) + np.uint16(max(q1, a1) - a1))
            d23 = np.uint16(np.uint16(max(q2, a2) - a2) + np.uint16(max(q3, a3) - a3))
            lacked[i] = np.uint16(lacked[i] + np.uint16(d01 + d23))
        c += 4
    while c < len(columns):
        q0, s0, x0 = asked[c], steps[columns[c]], codes[columns[c]]
        for i in range(n):
            a0 = np.uint16(x0[i] * s0)
            lacked[i] = np.uint16(lacked[i] + np.uint16(max(q0, a0) - a0))
        c += 1


@_fast
def _promising(lacked: Any, done: Any, many: Any) -> Any:
    """A number that at least ``many`` open rows lack no more than."""
    bins = np.zeros(513, np.int64)
    for i in range(len(lacked)):
        bins[lacked[i] >> 7] += not done[i]
    top, seen = 0, bins[0]
    while seen < many and top < 512:
        top += 1
        seen += bins[top]
    return min(((top + 1) << 7) - 1, 65535)


@_fast
def _compare(data: Any, begin: Any, lacked: Any, done: Any, query: Any, terms: Any, heap: Any, found: Any) -> Any:
    """Score the open rows of a tile that may be among the best; returns how many, and how many of them are."""
    most, margin, unit, limit = terms
    rows, scores = found
    compared = kept = 0
    limit = min(limit, most - (heap[0] - margin) * _ONE)
    for i in range(len(lacked)):
        if lacked[i] <= limit and not done[i]:
            done[i] = 1
            compared += 1
            score = _shared(data[begin + i], query) * unit
            if score >= heap[0] - margin:
                rows[kept], scores[kept] = begin + i, score
                kept += 1
                if score > heap[0]:
                    _push(heap, score)
                    limit = min(limit, most - (heap[0] - margin) * _ONE)
    return compared, kept


@_fast
def _narrow(codes: Any, steps: Any, order: Any, asked: Any, start: Any, goal: Any, lacked: Any) -> Any:
    """Read columns from ``start`` on, until ``goal`` is met; returns where it stopped.

    The goal is (mass, limit, rows): so much of the query read, or so few rows that lack no more than the limit.
    """
    mass, limit, few = goal
    bar = np.uint16(min(max(np.floor(limit), 0), 65535))
    c, seen = start, np.int64(0)
    for j in range(start):
        seen += asked[j]
    while c < len(order) and asked[c] > 0:
        stop = min(c + _CHUNK, len(order))
        _add(codes, steps, order[c:stop], asked[c:stop], lacked)
        for j in range(c, stop):
            seen += asked[j]
        c = stop
        left = 0
        for i in range(len(lacked)):
            left += lacked[i] <= bar
        if left <= few or seen >= mass:
            break
    return c


@_fast
def search(
    table: Any,  # codes [T, C, R], steps [C], data [N, C]
    wanted: Any,  # rows to search, rising; whether these are all rows
    asking: Any,  # queries [Q, C]; order, asked [Q, C]: columns by weight, parts rounded down; most, margins [Q]
    unit: Any,  # what a score of 1 in the data's numbers stands for
    few: Any,  # rows left in a tile that are compared rather than narrowed down further
    place: Any,  # [2] tile and query to go on with
    last: Any,  # tile to stop before
    heaps: Any,  # [Q, k] best scores, the lowest first
    out: Any,  # (query, row, score), as much as there is room for
    work: Any,  # [2] rows compared, bytes read
) -> Any:
    """Find the rows that may be among the k best; returns how many lie in ``out``. Call until ``place`` is ``last``."""
    codes, steps, data = table
    rows, whole = wanted
    queries, order, asked, most, margins = asking
    size, k, filled = codes.shape[2], heaps.shape[1], 0
    every, closed = np.zeros(size, np.uint16), np.zeros(size, np.uint8)
    while place[0] < last:
        t = place[0]
        begin = t * size
        n = min(size, len(data) - begin)
        low, high = 0, n
        if not whole:
            low, high = np.searchsorted(rows, begin), np.searchsorted(rows, begin + n)
        while place[1] < len(queries) and low < high:
            if filled + n > len(out[0]):
                return filled
            q = place[1]
            heap, lacked, done = heaps[q], every[:n], closed[:n]
            lacked[:] = 0
            done[:] = 0
            if not whole:
                done[:] = 1
                for at in range(low, high):
                    done[rows[at] - begin] = 0
            c = 0
            if heap[0] == -np.inf:  # nothing to measure by yet: the most promising rows say what a good score is
                c = _narrow(codes[t], steps, order[q], asked[q], 0, (_SEEN * most[q], 65535.0, -1), lacked)
                first = min(65535.0, float(_promising(lacked, done, k + _SPARE)))
                terms = (most[q], margins[q], unit, first)
                compared, kept = _compare(
                    data, begin, lacked, done, queries[q], terms, heap, (out[1][filled:], out[2][filled:])
                )
                out[0][filled : filled + kept] = q
                filled += kept
                work[0] += compared
            limit = most[q] - (heap[0] - margins[q]) * _ONE
            goal = (np.inf, limit, few * n / (high - low))
            c = _narrow(codes[t], steps, order[q], asked[q], c, goal, lacked)
            terms = (most[q], margins[q], unit, 65535.0)
            compared, kept = _compare(
                data, begin, lacked, done, queries[q], terms, heap, (out[1][filled:], out[2][filled:])
            )
            out[0][filled : filled + kept] = q
            filled += kept
            work[0] += compared
            work[1] += c * n + compared * data.shape[1] * data.itemsize
            place[1] += 1
        place[0] += 1
        place[1] = 0
    return filled
