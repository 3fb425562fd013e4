"""Loops compiled by numba, for searches. Importing this module imports numba: do it when first needed.

Letters: N rows of a block, C columns, Q queries, m scored pairs, L lists with n·l entries, F vectors per document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from palmette.machine.compiled import machine_code, reraise_interrupt

LOWEST = np.float32(-3e38)
"""Initial score of heaps."""
HIGHEST = np.float32(3e38)
"""Score beyond which sums may overflow float32."""
TINY = 1e-44
"""Difference of scores that float32 rounds to 0."""
FAST = {"reassoc", "nsz", "arcp", "contract", "afn"}
"""LLVM fast-math flags: sums in any order, but infinities keep their meaning, since scores may overflow."""
_CHUNK = 32
"""Scores tested together; most chunks contain none above the limit."""
_PRODUCTS_PER_TEST = 64
"""Products tested together."""


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop per combination of types, without bounds checks."""
    return machine_code(loop, fastmath=FAST, boundscheck=False, error_model="numpy")


def called(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that Python calls and that returns several things; see :func:`reraise_interrupt`."""
    return reraise_interrupt(compiled(loop))


# -- heaps with the lowest score first -------------------------------------------------------------------


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


@called
def at_least(scores: Any, limits: Any) -> Any:
    """Find scores [Q, n] of at least ``limits`` [Q]: queries and columns, in the order of ``np.nonzero``."""
    count, many = 0, scores.shape[1]
    for q in range(len(scores)):
        for i in range(many):
            count += scores[q, i] >= limits[q]
    of, at, filled = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for q in range(len(scores)):
        for start in range(0, many, _CHUNK):
            stop, any_above = min(start + _CHUNK, many), 0
            for i in range(start, stop):
                any_above += scores[q, i] >= limits[q]
            if any_above:
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
def exact_scores(data: Any, unit: Any, rows: Any, queries: Any, of: Any, by_overlap: Any, out: Any) -> None:
    """Score m pairs: row ``rows[i]`` of the data with query ``of[i]``, by overlap or by inner product, into ``out[i]``.

    Products are summed in float64 in one fixed order and rounded once, so that a pair's score is always the same.
    data [N, C], in which a stored 1 has the value ``unit``; queries [Q, C]; rows, of and out [m].
    """
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
def best_parts(data: Any, scales: Any, rows: Any, of: Any, queries: Any, weights: Any, scores: Any, which: Any) -> None:
    """Score documents ``rows`` for queries ``of`` by the best weighted inner product of their F vectors.

    data [N, F, C] with scales [N, F] (width 0: no scales), queries [Q, C], weights [F] (0 leaves a part out), rows and
    of [m] → scores [m], and the part that gave each (the first of equal ones) in which [m]. A zero vector stands for a
    part that a document lacks: it never beats another part, and a document without parts scores 0.
    """
    scaled = scales.shape[1] > 0
    for i in range(len(rows)):
        best, at, has_part = np.float32(0), 0, False
        for f in range(len(weights)):
            if weights[f] > 0:
                score = weights[f] * _dot(data[rows[i], f], queries[of[i]])
                if scaled:
                    score *= scales[rows[i], f]
                if score != 0 and (score > best or not has_part):
                    best, at, has_part = score, f, True
        scores[i], which[i] = best, at


# -- rows as bytes ------------------------------------------------------------------------------------------


@compiled
def encode(data: Any, numbers: Any, steps: Any, errors: Any, lengths: Any) -> None:
    """Encode float32 rows [N, C] as int8 [N, C] with one step per row [N], and bound ‖x − x̂‖ and ‖x̂‖ [N]."""
    for i in range(len(data)):
        x, codes, top, bad = data[i], numbers[i], np.float32(0), 0
        for c in range(len(x)):
            size = abs(x[c])
            top = size if size > top else top
            bad += not size <= HIGHEST
        step = np.float32(top / np.float32(127)) if bad == 0 and top > 1e-30 else np.float32(0)
        inverse = np.float32(1) / step if step > 0 else np.float32(0)
        for c in range(len(x)):
            codes[c] = np.int8(np.rint(x[c] * inverse))  # at most 127: quotients are off by 2⁻²³
        lost = norm = 0.0
        for c in range(len(x)):
            value = np.float32(codes[c]) * step
            lost += np.float64(x[c] - value) ** 2
            norm += np.float64(value) ** 2
        steps[i], lengths[i] = step, 1.001 * np.sqrt(norm)
        errors[i] = 1.001 * (np.sqrt(lost) + 2.0**-20 * np.sqrt(norm)) + 1e-43 if bad == 0 else np.inf


@compiled
def dot(x: Any, query: Any) -> Any:
    """Inner product of two int8 vectors."""
    total = np.int32(0)
    for j in range(len(query)):
        total = np.int32(total + np.int32(np.int32(x[j]) * np.int32(query[j])))
    return total


@compiled
def multiply(numbers: Any, rows: Any, queries: Any, out: Any) -> None:
    """Inner products of rows [n] of ``numbers`` [N, C] with queries [Q, C]: out [Q, n]."""
    for i in range(len(rows)):
        for q in range(len(queries)):
            out[q, i] = dot(numbers[rows[i]], queries[q])


@compiled
def push_bound(heap: Any, lower: Any) -> None:
    """Push a lower bound; scores beyond float32 count as equal."""
    if lower > heap[0] and lower > LOWEST:
        replace_lowest(heap, min(lower, np.float64(HIGHEST)))


@compiled
def drop_below(heaps: Any, filled: Any, pairs: Any, upper: Any) -> Any:
    """Drop pairs whose upper bound is below the k-th best lower bound; return the number of pairs left."""
    count = 0
    for i in range(filled):
        if not upper[i] < heaps[pairs[0, i], 0]:
            pairs[:, count], upper[count] = pairs[:, i], upper[i]
            count += 1
    return count


@compiled
def append(heaps: Any, filled: Any, pairs: Any, upper: Any, query: Any, row: Any, bound: Any) -> Any:
    """Append the pair of a query and a row, with the upper bound of its score, to ``filled`` pairs.

    If the arrays are full, pairs that cannot reach the k best are dropped; if most remain, the room is doubled.
    """
    if filled == len(upper):
        filled = drop_below(heaps, filled, pairs, upper)
        if 2 * filled > len(upper):
            wider, longer = np.empty((2, 2 * len(upper)), np.int64), np.empty(2 * len(upper))
            wider[:, :filled], longer[:filled] = pairs[:, :filled], upper[:filled]
            pairs, upper = wider, longer
    pairs[0, filled], pairs[1, filled], upper[filled] = query, row, bound
    return filled + 1, pairs, upper


@called
def keep(products: Any, rows: Any, bounds: Any, query_bounds: Any, heaps: Any, survivors: Any) -> Any:
    """Collect pairs of a query and a row that may be among the query's k best.

    ``products`` [Q, n] are integer products of queries and ``rows`` [n]; ``bounds`` and ``query_bounds`` are steps,
    errors and lengths of both; ``heaps`` [Q, k] contain the best lower bounds so far. Returns ``survivors``: the number
    of pairs, pairs [2, room] and upper bounds [room].

    Two error bounds are used. ``off`` is that of one row, and ``most`` the largest ``off`` of all n rows, known before
    a row is read. So 64 scores are tested by comparisons with heap[0] − most alone (``bar`` is this limit without the
    query's step), and only rows above it pay for their own bound. For example, heap[0] = .70 and most = .05:

        scores   .12  .31  .72  .40      the limit is .65; .72 ± .02 is pushed, and raises heap[0] to .70 or more
    """
    (steps, errors, lengths), (filled, pairs, upper) = bounds, survivors
    query_steps, query_errors, query_lengths = query_bounds
    many, worst, longest = products.shape[1], np.float32(0), np.float32(0)
    for i in range(many):
        worst, longest = max(worst, errors[i]), max(longest, lengths[i])
    for q in range(len(products)):
        step, lost, length, heap = query_steps[q], query_errors[q], query_lengths[q], heaps[q]
        most = length * worst + lost * longest + TINY
        bar = _least(heap[0] - most, step)
        for start in range(0, many, _PRODUCTS_PER_TEST):
            stop = min(start + _PRODUCTS_PER_TEST, many)
            if _any_reaches(products[q, start:stop], steps[start:stop], bar):
                for i in range(start, stop):
                    if np.float32(products[q, i]) * steps[i] < bar:
                        continue
                    score = step * steps[i] * products[q, i]
                    off = length * errors[i] + lost * lengths[i] + TINY
                    if not score + off < heap[0]:
                        filled, pairs, upper = append(heaps, filled, pairs, upper, q, rows[i], score + off)
                        push_bound(heap, score - off)
                bar = _least(heap[0] - most, step)
    return filled, pairs, upper


@compiled
def _any_reaches(products: Any, steps: Any, bar: Any) -> Any:
    count = np.int32(0)
    for i in range(len(products)):
        count = np.int32(count + np.int32(np.float32(products[i]) * steps[i] >= bar))
    return count > 0


@compiled
def _least(score: Any, step: Any) -> Any:
    """Return the smallest product that gives a score with a query's step, in float32 and rounded down."""
    if step > 0 and score > -np.inf:  # else NaN
        least = score / step
        return np.float32(least - 2.0**-20 * abs(least))
    return np.float32(-np.inf)


# -- rows in numbered lists ---------------------------------------------------------------------------------


@called
def scan_lists(codes: Any, rows: Any, allowed: Any, starts: Any, lists: Any, query: Any, heaps: Any) -> Any:
    """Select rows of some ``lists`` that may be among one query's k best, and count the rows visited.

    Codes and ``rows`` [n] are in the order of their lists, which begin at ``starts`` [L + 1]; unknown list numbers
    are skipped. ``allowed`` [N] masks rows (empty: all are allowed). ``heaps`` [1, k] begins with −∞.
    """
    numbers, steps, errors, lengths = codes
    query_numbers, query_steps, query_errors, query_lengths = query
    filled = visited = 0
    pairs, upper = np.empty((2, 256), np.int64), np.empty(256)
    for number in lists:
        if number < 0 or number + 1 >= len(starts):
            continue
        for r in range(starts[number], starts[number + 1]):
            row = rows[r]
            if len(allowed) and not allowed[row]:
                continue
            visited += 1
            score = query_steps[0] * steps[r] * dot(numbers[r], query_numbers[0])
            off = query_lengths[0] * errors[r] + query_errors[0] * lengths[r] + TINY
            if not score + off < heaps[0, 0]:
                filled, pairs, upper = append(heaps, filled, pairs, upper, 0, row, score + off)
                push_bound(heaps[0], score - off)
    filled = drop_below(heaps, filled, pairs, upper)
    return pairs[1, :filled], visited
