"""Weights of the layers' rankings, chosen on held-out queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats
from palmette.data.metrics import Judgements
from palmette.ranking.calibration import ndcg_by_query


def best_weights(tables: Floats, judgements: Judgements | None) -> tuple[float, ...]:
    """Weigh several rankings' scores [M, Q, N]: equally, moved where held-out judgements clearly gain by it."""
    count = len(tables)
    weights = np.full(count, 1 / count)
    if judgements is None:
        return tuple(weights.tolist())
    rated = judgements.relevant > 0

    def quality(mix: NDArray[np.float64]) -> NDArray[np.float64]:
        return ndcg_by_query(np.tensordot(mix, tables, 1), judgements)[rated]

    best = quality(weights)  # nDCG of each judged query
    for place in (*range(count), *range(count)):
        for factor in (0.0, 0.5, 2.0, 4.0):
            tried = weights.copy()
            tried[place] *= factor
            if tried.sum() == 0:
                continue
            tried /= tried.sum()
            gain = quality(tried) - best
            if gain.mean() > gain.std() / np.sqrt(max(1, rated.sum())):
                weights, best = tried, best + gain
    return tuple(weights.tolist())
