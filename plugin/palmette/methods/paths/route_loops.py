"""One query's leaves, as a loop that numba compiles: what `routing.py` does for many, without their overhead.

Importing this module imports numba: do it when first needed (m width, B leaves of one height).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled

__all__ = ["visits"]


@compiled
def _times(x: Any, matrix: Any, out: Any) -> None:
    """Add x @ matrix to ``out``, reading it as it lies in memory."""
    for i in range(len(x)):
        for j in range(len(out)):
            out[j] += x[i] * matrix[i, j]


@compiled
def _ahead(score: Any, one: Any, other: Any) -> Any:
    """Whether a leaf comes before another: the smaller number where both score alike."""
    return score[one] > score[other] or (score[one] == score[other] and one < other)


@compiled
def _sink(heap: Any, score: Any, at: Any, size: Any) -> None:
    """Put a heap of leaves, the first one on top, in order again below a place."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _ahead(score, heap[child + 1], heap[child]):
            child += 1
        if _ahead(score, heap[at], heap[child]):
            break
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@compiled
def _scores(x: Any, inner: Any, outer: Any, bias: Any, centres: Any, nearness: Any, least: Any) -> Any:
    """What leaves are put in order by: [B]."""
    k = np.zeros(len(x), np.float32)
    _times(x, inner, k)
    for i in range(len(x)):
        k[i] = x[i] + max(k[i], np.float32(0))
    logits, near = bias.copy(), np.zeros(len(bias), np.float32)
    _times(k, outer, logits)
    if nearness == 0:
        return logits
    _times(x, centres, near)
    top, total = logits.max(), np.float32(0)
    for j in range(len(logits)):
        total += np.exp(logits[j] - top)
    shift = top + np.log(total)
    for j in range(len(logits)):
        logits[j] = max(logits[j] - shift, least) + nearness * near[j]
    return logits


@compiled
def visits(
    x: Any,  # [m]
    inner: Any,  # [m, m] U
    outer: Any,  # [m, B] W
    bias: Any,  # [B]
    centres: Any,  # [m, B] mean documents of the leaves
    nearness: Any,  # what a cosine with them counts
    least: Any,  # the least log probability that counts
    sizes: Any,  # [B] documents of each leaf
    budget: Any,  # documents that may be looked at, where there is no beam
    needed: Any,  # documents that must be, whatever is said
    beam: Any,  # leaves to visit; 0 for as many as the budget holds
) -> Any:
    """The leaves to visit, first ones first: [β]."""
    score = _scores(x, inner, outer, bias, centres, nearness, least)
    heap, size = np.arange(len(score)), len(score)
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, score, at, size)
    leaves, count, held = np.empty(size, np.int64), 0, 0
    while size:
        after = held + sizes[heap[0]]
        within = count < beam if beam else after <= budget or count == 0
        if not within and held >= needed:
            break
        leaves[count] = heap[0]
        count, held, size = count + 1, after, size - 1
        heap[0] = heap[size]
        _sink(heap, score, 0, size)
    return leaves[:count]
