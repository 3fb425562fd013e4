"""The loops over lists that numba compiles. Importing this module imports numba: do it when first needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled, push

__all__ = ["NEVER", "best", "scan"]

NEVER = np.float32(-3e38)
"""The score of a row that does not count (infinities have no place in such loops)."""


@compiled
def _dot(x: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += x[c] * query[c]
    return total


@compiled
def scan(
    data: Any,  # [n·l, d] rows in the order of the lists
    rows: Any,  # [n·l] which row each is
    allowed: Any,  # [n] which rows count; empty for all
    seen: Any,  # [n] zeros, where a row may lie in several lists; else empty
    starts: Any,  # [L + 1] where lists begin
    lists: Any,  # [P] lists to read, equal ones together
    of: Any,  # [P] for which query
    queries: Any,  # [Q, d]
    places: Any,  # [P] where the scores go
    out: Any,
) -> None:
    """Inner products of every query with the rows of its lists; ``NEVER`` for rows that do not count or were seen."""
    tile, i = 64, 0  # rows that stay in the cache while all queries of the list pass over them
    every, once = len(allowed) == 0, len(seen) == 0
    while i < len(lists):
        j = i + 1
        while j < len(lists) and lists[j] == lists[i]:
            j += 1
        first, last = starts[lists[i]], starts[lists[i] + 1]
        for begin in range(first, last, tile):
            end = min(begin + tile, last)
            for p in range(i, j):
                at, q = places[p] - first, of[p]
                for r in range(begin, end):
                    wanted = every or allowed[rows[r]]
                    if wanted and not once:
                        wanted = seen[rows[r]] != q + 1
                        seen[rows[r]] = q + 1
                    out[at + r] = _dot(data[r], queries[q]) if wanted else NEVER
        i = j


@compiled
def _kept(floor: Any, filled: Any, at: Any, scores: Any) -> Any:
    """Drop what lies under the floor; returns how many stay."""
    kept = 0
    for i in range(filled):
        if scores[i] >= floor:
            at[kept], scores[kept] = at[i], scores[i]
            kept += 1
    return kept


@compiled
def best(
    data: Any,  # [n·l, d] rows in the order of the lists
    rows: Any,  # [n·l] which row each is
    allowed: Any,  # [n] which rows count; empty for all
    seen: Any,  # [n] all false, where a row may lie in several lists; else empty
    starts: Any,  # [L + 1] where lists begin
    lists: Any,  # lists to read
    query: Any,  # [d]
    margin: Any,  # how far apart two scores may be that are really equal
    heap: Any,  # [k] NEVER
    at: Any,  # room for contenders: where they stand in ``data``
    scores: Any,  # and what they score
) -> Any:
    """Find what may be among one query's k best; returns how many (−1 for lack of room), and how many rows it saw."""
    filled = looked = 0
    every, once = len(allowed) == 0, len(seen) == 0
    floor = heap[0] - margin
    for i in range(len(lists)):
        for r in range(starts[lists[i]], starts[lists[i] + 1]):
            if not every and not allowed[rows[r]]:
                continue
            if not once:
                if seen[rows[r]]:
                    continue
                seen[rows[r]] = True
            looked += 1
            score = _dot(data[r], query)
            if score >= floor:
                if filled == len(at):
                    filled = _kept(floor, filled, at, scores)
                    if 2 * filled > len(at):
                        return -1, looked
                at[filled], scores[filled] = r, score
                filled += 1
                if score > heap[0]:
                    push(heap, score)
                    floor = heap[0] - margin
    return _kept(floor, filled, at, scores), looked
