"""Loops compiled by numba, except those over columns. Importing this module imports numba: do it when first needed.

Letters: N rows of a block, C columns, Q queries, m scored pairs, L lists with n·l entries, F vectors per document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

LOWEST = np.float32(-3e38)
"""Initial score in a heap."""
FAST = {"reassoc", "nsz", "arcp", "contract", "afn"}
"""Liberties of compiled loops: sums in any order, but infinities stay what they are (a score may overflow)."""
_CHUNK = 32  # scores tested together, most of which hold none that counts


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop per combination of types, or read it from the cache; without bounds checks or the GIL."""
    options: dict[str, Any] = {"nogil": True, "fastmath": FAST, "boundscheck": False, "error_model": "numpy"}
    made: Callable[..., Any]
    try:
        made = nb.njit(cache=True, **options)(loop)
    except (RuntimeError, OSError):  # no folder to keep the compiled loop in
        made = nb.njit(**options)(loop)
    return made


# -- heaps: the lowest score stands first -------------------------------------------------------------------


@compiled
def replace_lowest(heap: Any, score: Any) -> None:
    """Replace the lowest score of a heap."""
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
    """Push scores [m] onto the heaps [Q, k] of their queries ``of`` [m]."""
    for i in range(len(of)):
        heap = heaps[of[i]]
        if scores[i] > heap[0]:
            replace_lowest(heap, scores[i])


@compiled
def at_least(scores: Any, limits: Any) -> Any:
    """Find scores [Q, n] that reach ``limits`` [Q]: queries and places, as ``np.nonzero`` gives them."""
    count, many = 0, scores.shape[1]
    for q in range(len(scores)):
        for i in range(many):
            count += scores[q, i] >= limits[q]
    of, at, filled = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for q in range(len(scores)):
        for start in range(0, many, _CHUNK):
            stop, some = min(start + _CHUNK, many), 0
            for i in range(start, stop):
                some += scores[q, i] >= limits[q]
            if some:
                for i in range(start, stop):
                    if scores[q, i] >= limits[q]:
                        of[filled], at[filled] = q, i
                        filled += 1
    return of, at


# -- rows of one vector -------------------------------------------------------------------------------------


@compiled
def overlap(x: Any, query: Any) -> Any:
    """Σ min(q, x) of one row."""
    kind = query.dtype.type
    total = kind(0)
    for j in range(len(query)):
        total = kind(total + min(x[j], query[j]))
    return total


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
                out[q, i] = overlap(data[rows[i]], queries[q])


@compiled
def exact_scores(
    data: Any,  # [N, C]
    unit: Any,  # value of a stored 1
    rows: Any,  # [m] rows to score
    queries: Any,  # [Q, C]
    of: Any,  # [m] the query of each
    by_overlap: Any,  # else by inner product
    out: Any,  # [m]
) -> None:
    """Score pairs of rows and queries: summed in float64 in one fixed order, rounded once."""
    for i in range(len(rows)):
        x, query, total = data[rows[i]], queries[of[i]], 0.0
        if by_overlap:
            for j in range(len(query)):
                total += np.float64(min(np.float32(x[j]) * unit, query[j]))
        else:
            for j in range(len(query)):
                total += np.float64(np.float32(x[j]) * unit) * np.float64(query[j])
        out[i] = total


@compiled
def _dot(x: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += np.float32(x[c]) * query[c]
    return total


# -- several vectors per document ---------------------------------------------------------------------------


@compiled
def best_parts(
    data: Any,  # [N, F, C] vectors of documents
    scales: Any,  # [N, F] factor of each; of width 0 for 1
    rows: Any,  # [m] documents to score
    of: Any,  # [m] the query of each
    queries: Any,  # [Q, C]
    weights: Any,  # [F] of the parts; 0 for those that do not count
    scores: Any,  # [m]
    which: Any,  # [m] the part that scores best
) -> None:
    """Best weighted inner product of each document's vectors, the first of equal ones.

    A vector of zeros is a part that the document lacks: it outranks no other, and gives 0 where there are none.
    """
    scaled = scales.shape[1] > 0
    for i in range(len(rows)):
        best, at, found = np.float32(0), 0, False
        for f in range(len(weights)):
            if weights[f] > 0:
                score = weights[f] * _dot(data[rows[i], f], queries[of[i]])
                if scaled:
                    score *= scales[rows[i], f]
                if score != 0 and (score > best or not found):
                    best, at, found = score, f, True
        scores[i], which[i] = best, at


# -- rows in numbered lists ---------------------------------------------------------------------------------


@compiled
def encode_rows(
    data: Any,  # [N, C]
    unit: Any,  # value of a stored 1
    rows: Any,  # [n·l] rows in the order of the lists
    codes: Any,  # [n·l, C] int8
    steps: Any,  # [n·l] value of a 1 in the codes
    errors: Any,  # [n·l] how far a product with a unit vector can be off, rounding included
) -> None:
    """Encode rows as bytes, each by a scale of its own."""
    width = data.shape[1]
    rounding = (width + 8) * 2.0**-24
    for i in range(len(rows)):
        x, top = data[rows[i]], 0.0
        for c in range(width):
            top = max(top, abs(np.float64(x[c])))
        inverse = 127 / top if top > 1e-30 else 0.0
        step = np.float32(unit * top / 127) if top > 1e-30 else np.float32(0)
        lost = norm = 0.0
        for c in range(width):
            code = np.int8(np.rint(x[c] * inverse))
            codes[i, c] = code
            value = np.float64(code) * step
            lost += (unit * x[c] - value) ** 2
            norm += value * value
        steps[i], errors[i] = step, 1.001 * (np.sqrt(lost) + rounding * np.sqrt(norm))


@compiled
def _drop_below(limit: Any, filled: Any, rows: Any, scores: Any) -> Any:
    kept = 0
    for i in range(filled):
        if scores[i] >= limit:
            rows[kept], scores[kept] = rows[i], scores[i]
            kept += 1
    return kept


@compiled
def scan_lists(  # noqa: C901
    codes: Any,  # [n·l, C] rows in the order of the lists
    steps: Any,  # [n·l]
    errors: Any,  # [n·l]
    rows: Any,  # [n·l] the row of each
    allowed: Any,  # [N] rows that count; empty for all
    seen: Any,  # [N] all false, where a row may lie in several lists; else empty
    starts: Any,  # [L + 1] where lists begin
    lists: Any,  # lists to read; numbers that no list has are passed over
    query: Any,  # [C]
    norm: Any,  # its length
    heap: Any,  # [k] LOWEST
    found: Any,  # room for candidates: their rows
    scores: Any,  # and upper bounds of their scores
) -> Any:
    """Find what may be among one query's k best: how many (−1 for lack of room), and how many rows were visited."""
    filled = visited = 0
    for number in lists:
        if number < 0 or number + 1 >= len(starts):
            continue
        for r in range(starts[number], starts[number + 1]):
            row = rows[r]
            if len(allowed) and not allowed[row]:
                continue
            if len(seen):
                if seen[row]:
                    continue
                seen[row] = True
            visited += 1
            score, off = steps[r] * _dot(codes[r], query), errors[r] * norm
            if score + off >= heap[0]:
                if filled == len(found):
                    filled = _drop_below(heap[0], filled, found, scores)
                    if 2 * filled > len(found):
                        return -1, visited
                found[filled], scores[filled] = row, score + off
                filled += 1
                if score - off > heap[0]:
                    replace_lowest(heap, score - off)
    return _drop_below(heap[0], filled, found, scores), visited


@compiled
def narrow(
    data: Any,  # [N, C]
    unit: Any,  # value of a stored 1
    found: Any,  # rows that may be among the k best
    query: Any,  # [C]
    margin: Any,  # how far apart two fast scores may be that are really equal
    heap: Any,  # [k] LOWEST
    scores: Any,  # room for as many
) -> Any:
    """Score candidates by their numbers; returns how many may still be among the k best."""
    for i in range(len(found)):
        scores[i] = unit * _dot(data[found[i]], query)
        if scores[i] > heap[0]:
            replace_lowest(heap, scores[i])
    return _drop_below(heap[0] - margin, len(found), found, scores)
