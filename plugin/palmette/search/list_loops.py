"""The loop over lists that numba compiles. Importing this module imports numba: do it when first needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled

__all__ = ["NEVER", "scan"]

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
