"""Words and structure in one search, as exact as both are.

A search that ranks a shortlist anew is as exact as its shortlist. With words, its candidates are that shortlist and as
many documents that share most words with the query; each has the score that it has wherever it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.mix import Mix
from palmette.model import Model, Queries
from palmette.model.side import MethodSide
from palmette.search.probe import Floats, Found, Keys, Shared, joined, row_of
from palmette.search.threshold import first_depth, threshold_search
from palmette.store.backend import WordView

__all__ = ["Hybrid", "hybrid_search"]

DEPTH, SHOWN = 50, 2500
"""Documents that the method shows at first, or this part of all: the lower the last one scores, the more must words
make up for, and the fewer documents do. (Measured; a method's search takes hardly longer for it.)"""
WIDER, PART = 8, 64
"""Words show so many times more documents than the method, or this part of all: to score those is little work."""


@dataclass(frozen=True)
class Hybrid:
    """What a search found, and which words of each query stand in each hit: parts [k, T] per query."""

    found: Found
    words: Sequence[Shared]


class _Words:
    """The words of one query as one of two rankings, of which ``method`` is the other.

    What the method has shown says how much in words a document needs at least to be among the ``k`` best; that much
    few documents have, and the others are not looked at.
    """

    bound: float | None = None

    def __init__(self, view: WordView, text: str, method: MethodSide, mix: Mix, k: int) -> None:
        self.view, self.text, self.method, self.mix, self.k = view, text, method, mix, k
        self._keys = np.empty(0, np.int64)  # documents scored, rising
        self._shares = np.empty(0, np.float32)

    def best(self, depth: int) -> Keys:
        """Of those that have enough."""
        known, last = self.method.best(depth), self.method.bound
        if self.method.shortlist is not None:  # a list of their own, whatever the other holds
            return np.union1d(known, self._matching(depth, 0.0)[0])
        if last is None:  # there is nothing else to be found
            return known
        floor, few = self._needed(known, last), WIDER * depth
        limit = max(few, len(self.view) // PART)
        keys, shares = self._matching(limit, floor)
        if len(keys) > few:
            floor = max(floor, self._needed(np.union1d(known, keys[:few]), last))
        if len(keys) == limit and shares[-1] >= floor:
            every, equal = len(self.view), float(shares[-1])
            keys, shares = self._matching(every, equal)  # with all equals of the last one
            floor = float(np.nextafter(shares[-1], np.float32(0)))
        self.bound = floor
        return keys[shares >= floor]

    def _needed(self, known: Keys, last: float) -> float:
        """The share that a document needs which the method scores as its last one shown, if these are scored."""
        mixed = self.mix.score(self.method.scores(known), self.scores(known))
        there = mixed[~np.isnan(mixed)]
        place = len(there) - self.k
        return self.mix.needed(last, float(np.partition(there, place)[place])) if place >= 0 else 0.0

    def _matching(self, limit: int, floor: float) -> tuple[Keys, Floats]:
        found = self.view.matching([self.text], limit, floor)
        held = found.keys[0] >= 0
        keys, shares = found.keys[0][held], found.scores[0][held]
        self._keep(keys, shares)
        return keys, shares

    def _keep(self, keys: Keys, shares: Floats) -> None:
        self._keys, first = np.unique(np.concatenate([self._keys, keys]), return_index=True)
        self._shares = np.concatenate([self._shares, shares])[first]

    def scores(self, keys: Keys) -> Floats:
        """What has been found need not be looked up."""
        missing = np.setdiff1d(keys, self._keys)
        if len(missing):
            self._keep(missing, self.view.shared(self.text, missing.tolist()).scores)
        shares: Floats = self._shares[np.searchsorted(self._keys, keys)]
        return shares


def hybrid_search(
    model: Model,
    view: WordView,
    texts: Sequence[str],
    queries: Queries,
    k: int,
    options: Any,
    mix: Mix,
) -> Hybrid:
    """The ``k`` best documents by method and words together; the method decides what can be found at all."""
    plan = model.plan(queries, k, options, view)
    if plan.rescore is None:
        depth = first_depth(k, len(view), max(DEPTH, len(view) // SHOWN))
    else:
        depth = max(1, min(max(k, plan.fetch or k), len(view)))
    found = model.execute(view, plan, depth, options)
    rows: list[tuple[Keys, Floats, dict[str, NDArray[np.generic]]]] = []
    words = []
    for row, text in enumerate(texts):
        method = MethodSide(model, view, plan.one_query(row), options, row_of(found, row), depth)
        sides = (method, _Words(view, text, method, mix, k))
        best = threshold_search(sides, lambda table: mix.score(*table), k, len(view), depth)
        rows.append((best.keys, best.scores.astype(np.float32), method.evidence(best.keys)))
        words.append(view.shared(text, best.keys.tolist()))
    return Hybrid(joined(rows, found), words)
