"""How much words should count beside a method: its scale from scores alone, the weight from judged queries.

Measured on four collections (tests/benchmarks/results/hybrid.md): with the method's scale known, one weight serves
queries of all kinds; weights by query (length, rarity of words, numbers, how clear each side's best document stands
out), learned on three collections, did worse on the fourth than one weight for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.mix import Mix
from palmette.metrics import Judgements, query_scores
from palmette.search.best import best_of_each
from palmette.search.probe import Floats

__all__ = ["WEIGHTS", "best_weights", "calibrated", "scale_of"]

LIFT = 2.5
"""What full agreement in words is worth, in distances of a query's best document from the average one."""
WEIGHTS = (
    0.0,
    0.05,
    0.1,
    0.15,
    0.2,
    0.25,
    0.3,
    0.35,
    0.4,
    0.45,
    0.5,
    0.55,
    0.6,
    0.65,
    0.7,
    0.75,
    0.8,
    0.9,
    1.0,
)
K = 10


def scale_of(method: Floats) -> float:
    """From a method's scores [Q, N] of any queries and documents: how far the best stands above the average."""
    lift = float(np.mean(method.max(axis=1) - method.mean(axis=1, dtype=np.float64)))
    return max(round(LIFT * lift, 4), 1e-6)


def calibrated(method: Floats, words: Floats, judgements: Judgements | None) -> Mix:
    """A method's mix, from its scores and the shares of words, [Q, N] each, of the same queries and documents.

    With judgements it takes the best weight by nDCG@10, less what :func:`_doubt` takes from weights far from a half.
    """
    plain = Mix(scale=scale_of(method))
    if judgements is None:
        return plain
    rated = judgements.relevant > 0
    quality = np.stack(
        [_ndcg(plain.replace(weight=w).score(method, words), judgements)[rated] for w in WEIGHTS]
    )  # [W, Q]
    return plain.replace(weight=WEIGHTS[int((quality.mean(axis=1) - _doubt(int(rated.sum()))).argmax())])


def _doubt(queries: int) -> NDArray[np.float64]:
    """How much nDCG each weight [W] must gain over a half for so many judged queries to be believed.

    A prior worth one query, and worth five when there are only ten. With held-out queries of four collections drawn
    again and again it is as good as the best weight from a hundred queries on, and far steadier below.
    """
    away = np.array(WEIGHTS) - Mix().weight
    return (1 + 40 / queries) / queries * away**2


def _ndcg(scores: NDArray[np.floating[Any]], judgements: Judgements) -> NDArray[np.float64]:
    return query_scores(best_of_each(scores, K), judgements, ks=(K,))[f"ndcg@{K}"]


def best_weights(tables: Floats, judgements: Judgements | None) -> tuple[float, ...]:
    """Weights of several rankings' scores [M, Q, N]: equal ones, moved where held-out judgements clearly gain by it."""
    count = len(tables)
    weights = np.full(count, 1 / count)
    if judgements is None:
        return tuple(weights.tolist())
    rated = judgements.relevant > 0

    def quality(given: NDArray[np.float64]) -> NDArray[np.float64]:
        return _ndcg(np.tensordot(given, tables, 1), judgements)[rated]

    held = quality(weights)
    for place in (*range(count), *range(count)):
        for factor in (0.0, 0.5, 2.0, 4.0):
            tried = weights.copy()
            tried[place] *= factor
            if tried.sum() == 0:
                continue
            tried /= tried.sum()
            gain = quality(tried) - held
            if gain.mean() > gain.std() / np.sqrt(max(1, rated.sum())):
                weights, held = tried, held + gain
    return tuple(weights.tolist())
