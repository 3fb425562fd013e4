"""One ranking from several that are each exact (Fagin's threshold algorithm).

Each side shows its best documents, and scores those that the others show. What no side has shown cannot score more
than the sides' bounds, mixed: while that could still be among the best, all sides show more.
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
    def bound(self) -> float | None:
        """What a document scores at most that it has not shown; ``None`` if those are not to be found at all."""
        ...

    def best(self, depth: int) -> Keys:
        """Its best documents, about ``depth`` of them, the lower keys among equals."""
        ...

    def scores(self, keys: Keys) -> Floats:
        """Its scores of these documents (rising keys); NaN for one that is not to be found."""
        ...


class Standing(NamedTuple):
    """The best documents [k], their mixed scores, and what each side gave them [S, k]."""

    keys: Keys
    scores: Mixed
    sides: Floats


def first_depth(k: int, total: int, least: int = DEPTH) -> int:
    """How many documents each side shows at first: ``least``, or twice as many as are wanted."""
    return max(1, min(max(least, 2 * k), total))


def threshold_search(
    sides: Sequence[Side], mix: Callable[[Floats], Mixed], k: int, total: int, depth: int
) -> Standing:
    """The ``k`` best of ``total`` documents by ``mix``: scores of each side [S, n] → [n], rising with each.

    At first the sides show about ``depth`` documents. Equal ones are ordered by the first side's score, then by key.
    """
    while True:
        shown = [side.best(depth) for side in sides]
        keys = np.unique(np.concatenate(shown))
        table = np.stack([side.scores(keys) for side in sides])  # [S, n]
        there = ~np.isnan(table).any(axis=0)
        keys, table = keys[there], table[:, there]
        mixed = mix(table)
        best = np.lexsort((keys, -table[0], -mixed))[:k]
        if depth >= total or _settled(sides, shown[0], mix, keys[best], mixed[best], k):
            return Standing(keys[best], mixed[best], table[:, best])
        depth = min(depth * DEEPER, total)


def _settled(
    sides: Sequence[Side], first: Keys, mix: Callable[[Floats], Mixed], keys: Keys, scores: Mixed, k: int
) -> bool:
    """Whether nothing that no side has shown can be among the best.

    One that scores as much as the last of them could still come before it, unless the first side has shown that one.
    """
    bounds = [side.bound for side in sides]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return True
    if len(keys) < k:
        return False
    beyond = mix(np.asarray(known, np.float32)[:, None])[0]
    return bool(scores[-1] > beyond or (scores[-1] == beyond and keys[-1] in first))
