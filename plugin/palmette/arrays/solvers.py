"""k-means and Newton's method in NumPy (n vectors, d numbers each, K centres)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows

ROUNDS = 300
"""Rounds of k-means at most."""
TOLERANCE = 1e-4
"""Movement of the centres, in parts of the vectors' variance, below which k-means ends."""
Derivatives = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64], NDArray[np.float64]]]
"""Weights [F] → a loss, its gradient [F] and its second derivatives [F, F]."""


def k_means(vectors: Floats, count: int, seed: int) -> tuple[Floats, Rows]:
    """Cluster vectors [n, d] into at most ``count`` groups: centres [K, d], and the group of each vector [n].

    The first centres are drawn by k-means++: each is the best of some vectors drawn by their squared distance from the
    centres before.
    """
    draw, x = np.random.default_rng(seed), np.ascontiguousarray(vectors, np.float32)
    squares = np.einsum("nd,nd->n", x, x)  # [n]

    def distances(centres: Floats) -> Floats:  # squared: [n, K]
        products = squares[:, None] - 2 * (x @ centres.T) + np.einsum("kd,kd->k", centres, centres)
        return np.asarray(np.maximum(products, 0))

    # 1. draw the first centres
    trials, first = 2 + int(np.log(max(1, count))), [int(draw.integers(len(x)))]
    nearest = distances(x[first])[:, 0].astype(np.float64)
    while len(first) < count and (total := nearest.sum()) > 0:
        tried = np.searchsorted(np.cumsum(nearest), draw.random(trials) * total).clip(max=len(x) - 1)
        reached = np.minimum(nearest[:, None], distances(x[tried]))  # [n, trials]
        best = int(reached.sum(axis=0).argmin())
        first.append(int(tried[best]))
        nearest = reached[:, best].astype(np.float64)
    centres = x[first]
    # 2. move every centre to the mean of the vectors nearest to it, until none moves
    limit = TOLERANCE * float(x.var(axis=0).mean())
    for _ in range(ROUNDS):
        apart = distances(centres)
        group = apart.argmin(axis=1)
        order, sizes = np.argsort(group, kind="stable"), np.bincount(group, minlength=len(centres))
        present = np.flatnonzero(sizes)
        sums = np.add.reduceat(x[order], np.cumsum(sizes)[present] - sizes[present], axis=0, dtype=np.float64)
        moved = centres.copy()
        moved[present] = sums / sizes[present, None]
        # a centre without vectors takes the one that is farthest from its own
        empty = np.flatnonzero(sizes == 0)
        moved[empty] = x[np.argsort(-apart.min(axis=1), kind="stable")[: len(empty)]]
        shift, centres = float(np.square(moved - centres).sum()), moved
        if shift <= limit:
            break
    return centres, distances(centres).argmin(axis=1).astype(np.int64)


def minimise_convex(derivatives: Derivatives, start: Sequence[float], lowest: Sequence[float]) -> NDArray[np.float64]:
    """Minimise a convex loss of a few weights by Newton's method; each weight stays at its ``lowest`` or above."""
    weights, bounds = np.array(start, np.float64), np.array(lowest, np.float64)
    for _ in range(100):
        value, gradient, curvature = derivatives(weights)
        free = (weights > bounds) | (gradient < 0)
        step: NDArray[Any] = np.zeros(len(weights))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        for part in 0.5 ** np.arange(40):
            moved = np.maximum(weights - part * step, bounds)
            if derivatives(moved)[0] <= value:
                break
        moving, weights = float(np.abs(moved - weights).max()), moved
        if moving < 1e-9:
            break
    return weights


def sigmoid(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(−x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(values, np.float64))))
