"""The loops that numba compiles. Importing this module imports numba: do it when first needed.

Letters: N rows, C columns, Q queries, T tiles of R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

__all__ = [
    "compare",
    "compiled",
    "encode",
    "exact",
    "glance",
    "overlaps",
    "promising",
    "push",
    "push_all",
    "reaching",
    "search",
]

_CHUNK = 32  # columns read between two looks at how many rows are left


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for each combination of types, or read it from the cache; without bounds checks or the GIL."""
    options: dict[str, Any] = {"nogil": True, "fastmath": True, "boundscheck": False, "error_model": "numpy"}
    made: Callable[..., Any]
    try:
        made = nb.njit(cache=True, **options)(loop)
    except (RuntimeError, OSError):  # no folder to keep the compiled loop in
        made = nb.njit(**options)(loop)
    return made


@compiled
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


@compiled
def _less(q: Any, x: Any) -> Any:
    """(q − x)⁺ of bytes."""
    return np.uint8(max(q, x) - x)


@compiled
def _shared(x: Any, query: Any) -> Any:
    kind = query.dtype.type
    total = kind(0)
    for j in range(len(query)):
        total = kind(total + min(x[j], query[j]))
    return total


@compiled
def exact(data: Any, rows: Any, queries: Any, of: Any, unit: Any, overlap: Any, out: Any) -> None:
    """Row ``rows[i]`` of data [N, C], times ``unit``, against query ``of[i]``: summed in float64, rounded once."""
    for i in range(len(rows)):
        x, query, total = data[rows[i]], queries[of[i]], 0.0
        if overlap:
            for j in range(len(query)):
                total += np.float64(min(np.float32(x[j]) * unit, query[j]))
        else:
            for j in range(len(query)):
                total += np.float64(np.float32(x[j]) * unit) * np.float64(query[j])
        out[i] = total


@compiled
def reaching(scores: Any, least: Any) -> Any:
    """Where scores [Q, n] are at least ``least`` [Q]: queries and places, as ``np.nonzero`` gives them."""
    count, many = 0, scores.shape[1]
    for q in range(len(scores)):
        for i in range(many):
            count += scores[q, i] >= least[q]
    of, at, room = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for q in range(len(scores)):
        for start in range(0, many, _CHUNK):
            stop, some = min(start + _CHUNK, many), 0
            for i in range(start, stop):
                some += scores[q, i] >= least[q]
            if some:
                for i in range(start, stop):
                    if scores[q, i] >= least[q]:
                        of[room], at[room] = q, i
                        room += 1
    return of, at


@compiled
def encode(data: Any, scale: Any, codes: Any) -> None:
    """Rows of a tile [n, C] → codes [C, R]: scaled numbers rounded up; 255 for whatever is above 254."""
    count, width = data.shape
    span = 64  # rows and columns turned over together, in a corner of the L1 cache
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
def push(heap: Any, score: Any) -> None:
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


@compiled
def push_all(heaps: Any, of: Any, scores: Any) -> None:
    """:func:`push` each score onto the heap of its query: heaps [Q, k], queries and scores [n]."""
    for i in range(len(of)):
        heap = heaps[of[i]]
        if scores[i] > heap[0]:
            push(heap, scores[i])


@compiled
def _add(codes: Any, columns: Any, asked: Any, lacked: Any) -> None:
    """Add what each row surely lacks of some columns: lacked [n] += Σ (asked − code)⁺."""
    n, c = len(lacked), 0
    while c + 8 <= len(columns):  # eight streams keep the memory busy
        q0, q1, q2, q3 = asked[c], asked[c + 1], asked[c + 2], asked[c + 3]
        q4, q5, q6, q7 = asked[c + 4], asked[c + 5], asked[c + 6], asked[c + 7]
        x0, x1, x2, x3 = (
            codes[columns[c]],
            codes[columns[c + 1]],
            codes[columns[c + 2]],
            codes[columns[c + 3]],
        )
        x4, x5, x6, x7 = (
            codes[columns[c + 4]],
            codes[columns[c + 5]],
            codes[columns[c + 6]],
            codes[columns[c + 7]],
        )
        for i in range(n):
            a = np.uint16(np.uint16(_less(q0, x0[i])) + np.uint16(_less(q1, x1[i])))
            b = np.uint16(np.uint16(_less(q2, x2[i])) + np.uint16(_less(q3, x3[i])))
            d = np.uint16(np.uint16(_less(q4, x4[i])) + np.uint16(_less(q5, x5[i])))
            e = np.uint16(np.uint16(_less(q6, x6[i])) + np.uint16(_less(q7, x7[i])))
            lacked[i] = np.uint16(lacked[i] + np.uint16(np.uint16(a + b) + np.uint16(d + e)))
        c += 8
    while c < len(columns):
        q0, x0 = asked[c], codes[columns[c]]
        for i in range(n):
            lacked[i] = np.uint16(lacked[i] + np.uint16(_less(q0, x0[i])))
        c += 1


@compiled
def _narrow(
    codes: Any, order: Any, asked: Any, start: Any, stop: Any, limit: Any, few: Any, lacked: Any
) -> Any:
    """Read columns from ``start`` to ``stop``, until ``few`` rows lack no more than ``limit``; returns how far."""
    bar = np.uint16(min(max(np.floor(limit), 0), 65535))
    c = start
    while c < stop:
        end = min(c + _CHUNK, stop)
        _add(codes, order[c:end], asked[c:end], lacked)
        c, left = end, np.uint16(0)
        for i in range(len(lacked)):
            left = np.uint16(left + np.uint16(lacked[i] <= bar))
        if left <= few:
            break
    return c


@compiled
def glance(codes: Any, order: Any, asked: Any, stops: Any, lacked: Any) -> None:
    """Begin with each query's heaviest columns, over some tiles: lacked [Q, rows]."""
    size = codes.shape[2]
    for t in range(len(codes)):
        begin, end = t * size, min((t + 1) * size, lacked.shape[1])
        for q in range(len(order)):
            _narrow(codes[t], order[q], asked[q], 0, stops[q], 0.0, -1, lacked[q, begin:end])


@compiled
def promising(lacked: Any, done: Any, many: Any) -> Any:
    """The least number, to within a few, that ``many`` open rows lack no more than."""
    bins = np.zeros(4097, np.int64)
    for i in range(len(lacked)):
        bins[lacked[i] >> 4] += not done[i]
    top, seen = 0, bins[0]
    while seen < many and top < 4096:
        top += 1
        seen += bins[top]
    return min(((top + 1) << 4) - 1, 65535)


@compiled
def compare(
    data: Any, lacked: Any, done: Any, query: Any, terms: Any, heap: Any, rows: Any, scores: Any
) -> Any:
    """Score the open rows that may be among the best; returns how many, and how many of them are kept."""
    most, margin, unit, parts, limit = terms
    compared = kept = 0
    limit = min(limit, most - (heap[0] - margin) * parts)
    for i in range(len(lacked)):
        if lacked[i] <= limit and not done[i]:
            done[i] = 1
            compared += 1
            score = _shared(data[i], query) * unit
            if score >= heap[0] - margin:
                rows[kept], scores[kept] = i, score
                kept += 1
                if score > heap[0]:
                    push(heap, score)
                    limit = min(limit, most - (heap[0] - margin) * parts)
    return compared, kept


@compiled
def search(
    codes: Any,  # [T, C, R]
    data: Any,  # [n, C] the rows of these tiles
    asking: Any,  # queries [Q, C]; order, asked [Q, C]: columns by weight and their codes; most, margins [Q]
    units: Any,  # score of 1 in the data's numbers; codes a score of 1 is
    stops: Any,  # [Q] columns already read, columns worth reading
    few: Any,  # rows left in a tile that are compared rather than narrowed down further
    lacked: Any,  # [Q, n] so far
    done: Any,  # [Q, n] rows not to compare
    place: Any,  # [2] tile and query to go on with
    heaps: Any,  # [Q, k] best scores, the lowest first
    out: Any,  # (query, row, score), as much as there is room for
    work: Any,  # [2] rows compared, bytes read
) -> Any:
    """Find the rows that may be among the k best; returns how many lie in ``out``. Call until all tiles are done."""
    queries, order, asked, most, margins = asking
    size, filled = codes.shape[2], 0
    while place[0] < len(codes):
        begin, end = place[0] * size, min((place[0] + 1) * size, len(data))
        while place[1] < len(queries):
            q = place[1]
            if filled + end - begin > len(out[0]):
                return filled
            limit = most[q] - (heaps[q, 0] - margins[q]) * units[1]
            c = _narrow(
                codes[place[0]],
                order[q],
                asked[q],
                stops[0][q],
                stops[1][q],
                limit,
                few,
                lacked[q, begin:end],
            )
            compared, kept = compare(
                data[begin:end],
                lacked[q, begin:end],
                done[q, begin:end],
                queries[q],
                (most[q], margins[q], units[0], units[1], 65535.0),
                heaps[q],
                out[1][filled:],
                out[2][filled:],
            )
            for i in range(filled, filled + kept):
                out[0][i] = q
                out[1][i] += begin
            filled += kept
            work[0] += compared
            work[1] += c * (end - begin) + compared * data.shape[1] * data.itemsize
            place[1] += 1
        place[0] += 1
        place[1] = 0
    return filled
