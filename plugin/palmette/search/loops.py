"""The loops that numba compiles. Importing this module imports numba: do it when first needed.

Letters: N rows, C columns, Q queries, T tiles of R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

__all__ = [
    "compiled",
    "exact",
    "overlaps",
    "push",
    "push_all",
    "reaching",
    "shared",
]

_CHUNK = 32  # scores looked at together, which mostly holds none that counts


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
                out[q, i] = shared(data[rows[i]], queries[q])


@compiled
def shared(x: Any, query: Any) -> Any:
    """Σ min(q, x) of one row."""
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
