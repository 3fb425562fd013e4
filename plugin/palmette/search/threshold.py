"""One ranking from several that are each exact (Fagin's threshold algorithm).

Each side shows its best documents, and scores those that the others show. What no side has shown cannot score more
than the last ones shown, mixed: while that could still be among the best, all sides show more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from palmette.search.probe import Floats, Keys

__all__ = ["Side", "Standing", "first_depth", "threshold_search"]

DEPTH, DEEPER = 100, 4

Mixed = NDArray[np.float64]


class Side(Protocol):
    """One of the rankings, of one query."""

    @property
    def rest(self) -> float | None:
        """What documents score that are not among all it can show; ``None`` if those are not to be found at all."""
        ...

    def best(self, depth: int) -> tuple[Keys, Floats]:
        """Its best documents and their scores, best first; fewer than ``depth`` when there are no more."""
        ...

    def scores(self, keys: Keys) -> Floats:
        """Its scores of these documents (rising keys); NaN for one that is not to be found."""
        ...


class Standing(NamedTuple):
    """The best documents [k], their mixed scores, and what each side gave them [S, k]."""

    keys: Keys
    scores: Mixed
    sides: Floats


def first_depth(k: int, total: int) -> int:
    """How many documents each side shows at first."""
    return max(1, min(max(DEPTH, 2 * k), total))


def threshold_search(sides: Sequence[Side], mix: Callable[[Floats], Mixed], k: int, total: int) -> Standing:
    """The ``k`` best of ``total`` documents by ``mix``: scores of each side [S, n] → [n], rising with each.

    Equal ones are ordered by the first side's score, then by key.
    """
    depth = first_depth(k, total)
    while True:
        shown = [side.best(depth) for side in sides]
        keys = np.unique(np.concatenate([found for found, _ in shown]))
        table = np.stack([side.scores(keys) for side in sides])  # [S, n]
        there = ~np.isnan(table).any(axis=0)
        keys, table = keys[there], table[:, there]
        mixed = mix(table)
        best = np.lexsort((keys, -table[0], -mixed))[:k]
        if depth >= total or _settled(sides, shown, mix, mixed[best], k, depth):
            return Standing(keys[best], mixed[best], table[:, best])
        depth = min(depth * DEEPER, total)


def _settled(
    sides: Sequence[Side],
    shown: Sequence[tuple[Keys, Floats]],
    mix: Callable[[Floats], Mixed],
    best: Mixed,
    k: int,
    depth: int,
) -> bool:
    """Whether nothing that no side has shown can be among the best."""
    last: list[float] = []
    for side, (_, scores) in zip(sides, shown, strict=True):
        beyond = float(scores[-1]) if len(scores) == depth else side.rest
        if beyond is None:
            return True
        last.append(beyond)
    bound = mix(np.asarray(last, np.float32)[:, None])
    return len(best) == k and bool(best[-1] >= bound[0])
