"""The loops over lists that numba compiles. Importing this module imports numba: do it when first needed.

Letters: n rows, l lists each, L lists, d columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled, push

__all__ = ["best", "encode", "narrow"]


@compiled
def _dot(x: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += np.float32(x[c]) * query[c]
    return total


@compiled
def encode(
    data: Any,  # [n, d]
    unit: Any,  # what a 1 in ``data`` stands for
    rows: Any,  # [n·l] which of them, in the order of the lists
    codes: Any,  # [n·l, d] bytes
    steps: Any,  # [n·l] what a 1 in them stands for
    errors: Any,  # [n·l] how far a product with a unit vector can be off, rounding included
) -> None:
    """Rows as bytes: each by a scale of its own."""
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
            told = np.float64(code) * step
            lost += (unit * x[c] - told) ** 2
            norm += told * told
        steps[i], errors[i] = step, 1.001 * (np.sqrt(lost) + rounding * np.sqrt(norm))


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
def _counts(row: Any, allowed: Any, seen: Any) -> Any:
    """Whether a row is to be looked at, which is done once."""
    if len(allowed) and not allowed[row]:
        return False
    if len(seen) == 0:
        return True
    again = seen[row]
    seen[row] = True
    return not again


@compiled
def best(
    codes: Any,  # [n·l, d] rows in the order of the lists
    steps: Any,  # [n·l]
    errors: Any,  # [n·l]
    rows: Any,  # [n·l] which row each is
    allowed: Any,  # [n] which rows count; empty for all
    seen: Any,  # [n] all false, where a row may lie in several lists; else empty
    starts: Any,  # [L + 1] where lists begin
    lists: Any,  # lists to read; numbers that no list has are passed over
    query: Any,  # [d]
    norm: Any,  # its length
    heap: Any,  # [k] NEVER
    found: Any,  # room for contenders: their rows
    scores: Any,  # and what they score at most
) -> Any:
    """Find what may be among one query's k best; returns how many (−1 for lack of room), and how many rows it saw."""
    filled = looked = 0
    for number in lists:
        if number < 0 or number + 1 >= len(starts):
            continue
        for r in range(starts[number], starts[number + 1]):
            if not _counts(rows[r], allowed, seen):
                continue
            looked += 1
            score, off = steps[r] * _dot(codes[r], query), errors[r] * norm
            if score + off >= heap[0]:
                if filled == len(found):
                    filled = _kept(heap[0], filled, found, scores)
                    if 2 * filled > len(found):
                        return -1, looked
                found[filled], scores[filled] = rows[r], score + off
                filled += 1
                if score - off > heap[0]:
                    push(heap, score - off)
    return _kept(heap[0], filled, found, scores), looked


@compiled
def narrow(
    data: Any,  # [n, d]
    unit: Any,  # what a 1 in ``data`` stands for
    found: Any,  # rows that may be among the k best
    query: Any,  # [d]
    margin: Any,  # how far apart two scores may be that are really equal
    heap: Any,  # [k] NEVER
    scores: Any,  # room for as many
) -> Any:
    """Look at the numbers themselves; returns how many of the rows may still be."""
    for i in range(len(found)):
        scores[i] = unit * _dot(data[found[i]], query)
        if scores[i] > heap[0]:
            push(heap, scores[i])
    return _kept(heap[0] - margin, len(found), found, scores)
