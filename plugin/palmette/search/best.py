"""The k best of plain arrays of scores, in the order that every ranking here has: equal scores by place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["best", "best_of_each", "highest"]

Scores = NDArray[np.floating[Any]]
Places = NDArray[np.int64]


def highest(scores: Scores, k: int) -> Places:
    """Places of the ``k`` highest scores [n], and of all that equal the lowest of these, rising."""
    if k >= len(scores):
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])


def best(scores: Scores, k: int) -> Places:
    """Places of the ``k`` highest scores [n] (all where there are fewer), highest first."""
    places = highest(scores, k)
    ordered: Places = places[np.argsort(-scores[places], kind="stable")][:k]
    return ordered


def best_of_each(scores: Scores, k: int) -> Places:
    """The same for every row [Q, n]: [Q, k]."""
    ranks = np.empty((len(scores), min(k, scores.shape[1])), np.int64)
    for row, rank in zip(scores, ranks, strict=True):
        rank[:] = best(row, k)
    return ranks
