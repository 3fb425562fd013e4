"""The loops over columns that numba compiles. Importing this module imports numba: do it when first needed.

Letters: N rows, C columns, Q queries, T tiles of R rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled, push, shared

__all__ = ["compare", "encode", "encode_halves", "glance", "promising", "search"]

_CHUNK = 32  # columns read between two looks at how many rows are left
_SPAN = 1024  # bytes of each column that stay in the L1 cache while both halves are read


@compiled
def _less(q: Any, x: Any) -> Any:
    """(q − x)⁺ of bytes."""
    return np.uint8(max(q, x) - x)


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
def _half(x: Any, scale: Any, first: Any) -> Any:
    """A scaled number less ``first``, rounded up; 15 for whatever is above 14, 0 for whatever is below 0."""
    return np.uint8(min(max(np.ceil(np.float32(x) * scale - first), np.float32(0)), np.float32(15)))


@compiled
def encode_halves(data: Any, scale: Any, first: Any, codes: Any) -> None:
    """Rows of a tile [n, C] → codes [C, R / 2], four bits each: row i in the lower half of byte i, i + R / 2 above."""
    count, width = data.shape
    room, span = codes.shape[1], 64
    corner = np.empty((span, span), np.uint8)
    for begin in range(0, room, span):
        end = min(begin + span, room)
        for left in range(0, width, span):
            right = min(left + span, width)
            corner[:] = 255
            for i in range(begin, min(end, count)):
                for j in range(left, right):
                    corner[j - left, i - begin] = np.uint8(240) | _half(data[i, j], scale, first)
            for i in range(begin, min(end, count - room)):
                for j in range(left, right):
                    high = np.uint8(_half(data[i + room, j], scale, first) << 4)
                    corner[j - left, i - begin] = (corner[j - left, i - begin] & np.uint8(15)) | high
            for j in range(left, right):
                codes[j, begin:end] = corner[j - left, : end - begin]


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
def _low(q: Any, x: Any) -> Any:
    """(q − 2 c)⁺ of the lower half c of a byte."""
    return _less(q, np.uint8(np.uint8(x << 1) & np.uint8(30)))


@compiled
def _high(q: Any, x: Any) -> Any:
    """The same of the upper half."""
    return _less(q, np.uint8(np.uint8(x >> 3) & np.uint8(30)))


@compiled
def _add_halves(codes: Any, columns: Any, asked: Any, lacked: Any) -> None:
    """The same of half bytes, which count twice: those of eight columns add up to 240 at most, in a byte."""
    room, c = codes.shape[1], 0
    low, high = np.empty(_SPAN, np.uint8), np.empty(_SPAN, np.uint8)  # bytes alone take the widest registers
    while c + 8 <= len(columns):
        q0, q1, q2, q3 = asked[c], asked[c + 1], asked[c + 2], asked[c + 3]
        q4, q5, q6, q7 = asked[c + 4], asked[c + 5], asked[c + 6], asked[c + 7]
        for first in range(0, room, _SPAN):
            last = min(first + _SPAN, room)
            x0, x1 = codes[columns[c], first:last], codes[columns[c + 1], first:last]
            x2, x3 = codes[columns[c + 2], first:last], codes[columns[c + 3], first:last]
            x4, x5 = codes[columns[c + 4], first:last], codes[columns[c + 5], first:last]
            x6, x7 = codes[columns[c + 6], first:last], codes[columns[c + 7], first:last]
            for i in range(last - first):
                a = np.uint8(_low(q0, x0[i]) + _low(q1, x1[i]))
                b = np.uint8(_low(q2, x2[i]) + _low(q3, x3[i]))
                d = np.uint8(_low(q4, x4[i]) + _low(q5, x5[i]))
                e = np.uint8(_low(q6, x6[i]) + _low(q7, x7[i]))
                low[i] = np.uint8(np.uint8(a + b) + np.uint8(d + e))
                a = np.uint8(_high(q0, x0[i]) + _high(q1, x1[i]))
                b = np.uint8(_high(q2, x2[i]) + _high(q3, x3[i]))
                d = np.uint8(_high(q4, x4[i]) + _high(q5, x5[i]))
                e = np.uint8(_high(q6, x6[i]) + _high(q7, x7[i]))
                high[i] = np.uint8(np.uint8(a + b) + np.uint8(d + e))
            _sum(low, lacked[first:last])
            _sum(high, lacked[room + first : room + last])
        c += 8
    while c < len(columns):
        q0, x0 = asked[c], codes[columns[c]]
        for i in range(min(room, len(lacked))):
            lacked[i] = np.uint16(lacked[i] + np.uint16(_low(q0, x0[i])))
        for i in range(len(lacked) - room):
            lacked[room + i] = np.uint16(lacked[room + i] + np.uint16(_high(q0, x0[i])))
        c += 1


@compiled
def _sum(some: Any, lacked: Any) -> None:
    for i in range(len(lacked)):
        lacked[i] = np.uint16(lacked[i] + np.uint16(some[i]))


@compiled
def _narrow(
    codes: Any, half: Any, order: Any, asked: Any, start: Any, stop: Any, limit: Any, few: Any, lacked: Any
) -> Any:
    """Read columns from ``start`` to ``stop``, until ``few`` rows lack no more than ``limit``; returns how far."""
    bar = np.uint16(min(max(np.floor(limit), 0), 65535))
    c = start
    while c < stop:
        end = min(c + _CHUNK, stop)
        if half:
            _add_halves(codes, order[c:end], asked[c:end], lacked)
        else:
            _add(codes, order[c:end], asked[c:end], lacked)
        c, left = end, np.uint16(0)
        for i in range(len(lacked)):
            left = np.uint16(left + np.uint16(lacked[i] <= bar))
        if left <= few:
            break
    return c


@compiled
def glance(codes: Any, half: Any, order: Any, asked: Any, stops: Any, lacked: Any) -> None:
    """Begin with each query's heaviest columns, over some tiles: lacked [Q, rows]."""
    size = codes.shape[2] * (1 + half)
    for t in range(len(codes)):
        begin, end = t * size, min((t + 1) * size, lacked.shape[1])
        for q in range(len(order)):
            _narrow(codes[t], half, order[q], asked[q], 0, stops[q], 0.0, -1, lacked[q, begin:end])


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
            score = shared(data[i], query) * unit
            if score >= heap[0] - margin:
                rows[kept], scores[kept] = i, score
                kept += 1
                if score > heap[0]:
                    push(heap, score)
                    limit = min(limit, most - (heap[0] - margin) * parts)
    return compared, kept


@compiled
def search(
    codes: Any,  # [T, C, R], or [T, C, R / 2]
    half: Any,  # whether these are half bytes
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
    size, filled = codes.shape[2] * (1 + half), 0
    while place[0] < len(codes):
        begin, end = place[0] * size, min((place[0] + 1) * size, len(data))
        while place[1] < len(queries):
            q = place[1]
            if filled + end - begin > len(out[0]):
                return filled
            limit = most[q] - (heaps[q, 0] - margins[q]) * units[1]
            c = _narrow(
                codes[place[0]],
                half,
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
            work[1] += c * (end - begin) // (1 + half) + compared * data.shape[1] * data.itemsize
            place[1] += 1
        place[0] += 1
        place[1] = 0
    return filled
