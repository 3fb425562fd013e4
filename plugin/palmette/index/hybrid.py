"""Words and structure in one search, as exact as both are.

A hybrid score needs both scores of a document. Each side gives its best documents, the other side scores those too;
what neither side has shown cannot score more than the last ones shown (Fagin's threshold): if that is not less than
the k-th best, both sides show more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.mix import Mix
from palmette.model import Model, Queries
from palmette.search.probe import Floats, Found, Keys, Shared
from palmette.store.backend import WordView

__all__ = ["Hybrid", "hybrid_search"]

DEPTH = 100
"""Documents each side shows at first."""
DEEPER = 4


@dataclass(frozen=True)
class Hybrid:
    """What a hybrid search found, and which words of each query stand in each hit: parts [k, T] per query."""

    found: Found
    words: Sequence[Shared]


@dataclass(frozen=True)
class _Ranked:
    """Documents of one query, best first."""

    keys: Keys
    scores: Floats
    words: Shared
    evidence: dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class _Shown:
    """Documents that a method has scored for one query."""

    keys: Keys
    scores: Floats
    evidence: dict[str, NDArray[np.generic]]

    @classmethod
    def of(cls, found: Found, row: int) -> _Shown:
        """A row of what was found."""
        held = found.keys[row] >= 0
        evidence = {name: array[row][held] for name, array in found.evidence.items()}
        return cls(found.keys[row][held], found.scores[row][held], evidence)

    def joined(self, other: _Shown) -> _Shown:
        """Both, by rising keys."""
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys)
        scores = np.concatenate([self.scores, other.scores])[order]
        evidence = {n: np.concatenate([a, other.evidence[n]])[order] for n, a in self.evidence.items()}
        return _Shown(keys[order], scores, evidence)


def hybrid_search(
    model: Model,
    view: WordView,
    texts: Sequence[str],
    queries: Queries,
    k: int,
    options: Any,
    mix: Mix,
) -> Hybrid:
    """The ``k`` best documents by method and words together.

    The method decides what can be found: a document that it would not return for a query (outside the leaves it
    visits, below its cut-off) is not found by its words either.
    """
    depth = max(DEPTH, 2 * k)
    found = model.search(view, queries, min(depth, max(1, len(view))), options)
    matching = view.matching(texts, depth)
    ranked = []
    for row, text in enumerate(texts):
        one = {name: array[row : row + 1] for name, array in queries.items()}
        search = _Search(model, view, text, one, k, options, mix)
        ranked.append(search.run(found, matching, row, depth))
    return Hybrid(_rectangle(ranked, found), [one.words for one in ranked])


@dataclass(frozen=True)
class _Search:
    """The search of one query."""

    model: Model
    view: WordView
    text: str
    query: Queries
    k: int
    options: Any
    mix: Mix

    def run(self, found: Found, matching: Found, row: int, depth: int) -> _Ranked:
        while True:
            shown = _Shown.of(found, row)
            words = matching.keys[row] >= 0
            ranked, last = self._rank(shown, matching.keys[row][words])
            everything = len(shown.keys) < min(depth, len(self.view)) or depth >= len(self.view)
            if everything or last >= self._beyond(shown, matching.scores[row][words], depth):
                return ranked
            depth, row = depth * DEEPER, 0
            found = self.model.search(self.view, self.query, min(depth, len(self.view)), self.options)
            matching = self.view.matching([self.text], depth)

    def _beyond(self, shown: _Shown, matching: Floats, depth: int) -> float:
        """What a document can score at most that neither side has shown."""
        word = float(matching[-1]) if len(matching) == depth else 0.0
        return float(self.mix.score(shown.scores.min(), np.asarray(word)))

    def _rank(self, shown: _Shown, matching: Keys) -> tuple[_Ranked, float]:
        """The best of all that either side has shown, and the score of the k-th of them."""
        missing = np.setdiff1d(matching, shown.keys)
        if len(missing):
            few = self.view.within(missing)
            shown = shown.joined(_Shown.of(self.model.search(few, self.query, len(missing), self.options), 0))
        words = self.view.shared(self.text, shown.keys.tolist())
        scores = self.mix.score(shown.scores, words.scores)
        best = np.lexsort((shown.keys, -shown.scores, -scores))[: self.k]
        evidence = {name: array[best] for name, array in shown.evidence.items()}
        kept = Shared(words.words, words.parts[best])
        ranked = _Ranked(shown.keys[best], scores[best].astype(np.float32), kept, evidence)
        return ranked, float(scores[best[-1]]) if len(best) == self.k else -np.inf


def _rectangle(ranked: Sequence[_Ranked], found: Found) -> Found:
    """Several queries' documents as one result."""
    width = max((len(one.keys) for one in ranked), default=0)
    keys = np.full((len(ranked), width), -1, np.int64)
    scores = np.full((len(ranked), width), -np.inf, np.float32)
    evidence = {n: np.zeros((len(ranked), width, *a.shape[2:]), a.dtype) for n, a in found.evidence.items()}
    for row, one in enumerate(ranked):
        keys[row, : len(one.keys)], scores[row, : len(one.keys)] = one.keys, one.scores
        for name, array in one.evidence.items():
            evidence[name][row, : len(array)] = array
    return Found(keys, scores, found.compared, evidence)
