"""Words and structure in one search, as exact as both are."""

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


@dataclass(frozen=True)
class Hybrid:
    """What a search found, and which words of each query stand in each hit: parts [k, T] per query."""

    found: Found
    words: Sequence[Shared]


class _Words:
    """The words of one query as one of two rankings; ``first`` is what a search has found already."""

    rest = 0.0

    def __init__(self, view: WordView, text: str, first: Found, depth: int) -> None:
        self.view, self.text, self._depth = view, text, depth
        self._take(first)

    def _take(self, found: Found) -> None:
        held = found.keys[0] >= 0
        self._keys, self._scores = found.keys[0][held], found.scores[0][held]

    def best(self, depth: int) -> tuple[Keys, Floats]:
        if depth > self._depth:
            self._take(self.view.matching([self.text], depth))
            self._depth = depth
        return self._keys, self._scores

    def scores(self, keys: Keys) -> Floats:
        return self.view.shared(self.text, keys.tolist()).scores


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
    depth = first_depth(k, len(view))
    found, matching = model.search(view, queries, depth, options), view.matching(texts, depth)
    rows: list[tuple[Keys, Floats, dict[str, NDArray[np.generic]]]] = []
    words = []
    for row, text in enumerate(texts):
        one = {name: array[row : row + 1] for name, array in queries.items()}
        method = MethodSide(model, view, one, options, row_of(found, row), depth)
        sides = (method, _Words(view, text, row_of(matching, row), depth))
        best = threshold_search(sides, lambda table: mix.score(*table), k, len(view))
        rows.append((best.keys, best.scores.astype(np.float32), method.evidence(best.keys)))
        words.append(view.shared(text, best.keys.tolist()))
    return Hybrid(joined(rows, found), words)
