"""One exact ranking from several (Fagin's threshold algorithm): a method and words, or the members of a fusion.

Each ranking lists its best documents and scores those that the others list. What no ranking has listed cannot score
more than the sum of their upper bounds: while that could still be among the best, all of them list more.

A search that rescores a shortlist is as exact as its shortlist. With words, the candidates are that shortlist and as
many documents that share most words with the query; each has the score that it has wherever it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys
from palmette.search.plan import Candidates, Evidence, SearchPlan, View, WordMatches, stack_rows

DEPTH, DEEPER = 100, 4
"""Documents that each ranking lists at first, and the factor by which it goes on."""
METHOD_DEPTH, METHOD_PART = 50, 2500
"""With words the method lists so many at first, or this part of all: the lower its last one scores, the more must words
make up for, and the fewer documents do. (Measured; a method's search takes hardly longer for it.)"""
WORDS_MORE, WORDS_PART = 8, 64
"""Words list so many times more documents than the method, or this part of all: scoring those is little work."""

Sums = NDArray[np.float64]
Search = Callable[[Any, int], Candidates]
"""Executes the plan of one query for so many documents."""


class Ranking(Protocol):
    """A ranking of documents for one query."""

    upper_bound: float | None
    """Upper bound on the score of unlisted documents; ``None`` if those cannot be found at all."""

    def best(self, depth: int) -> Keys:
        """List about ``depth`` best documents, the lower keys among equals."""

    def scores(self, keys: Keys) -> Floats:
        """Score documents (ascending keys); NaN for one that cannot be found."""


def exact_sum(
    rankings: Sequence[Ranking], add: Callable[[Floats], Sums], k: int, total: int, depth: int
) -> tuple[Keys, Sums]:
    """Find the ``k`` best of ``total`` documents by ``add``: scores [S, n] → [n], monotone in each ranking.

    At first the rankings list about ``depth`` documents. Equal sums are ordered by the first ranking, then by key.
    """
    while True:
        listed = [ranking.best(depth) for ranking in rankings]
        keys = np.unique(np.concatenate(listed))
        table = np.stack([ranking.scores(keys) for ranking in rankings])  # [S, n]
        held = ~np.isnan(table).any(axis=0)
        keys, table = keys[held], table[:, held]
        sums = add(table)
        best = np.lexsort((keys, -table[0], -sums))[:k]
        bounds = [ranking.upper_bound for ranking in rankings]
        final = depth >= total or None in bounds
        if not final and len(best) == k:
            # an unlisted document of the same sum comes before the last one, unless the first ranking lists that one
            beyond, last = add(np.asarray(bounds, np.float32)[:, None])[0], sums[best[-1]]
            final = bool(last > beyond or (last == beyond and keys[best[-1]] in listed[0]))
        if final:
            return keys[best], sums[best]
        depth = min(depth * DEEPER, total)


class MethodRanking:
    """The ranking of a plan's one query, of which a search of ``depth`` has found ``first``.

    Documents that the method would not return (outside the leaves it visits, below its cut-off) cannot be found. Nor
    can those outside the shortlist of a plan that rescores, unless another ranking lists them.
    """

    def __init__(self, search: Search, plan: Any, first: Candidates, depth: int) -> None:
        self._search, self.plan = search, plan
        self._list(first, depth)

    def _list(self, found: Candidates, depth: int) -> None:
        """Begin with one query's best documents."""
        self._depth, self._evidence = depth, dict[str, NDArray[Any]]()
        self._keys, self._scores = np.empty(0, np.int64), np.empty(0, np.float32)
        self._listed: Keys = found.keys[0]
        whole = self.plan.rescore is None and len(self._listed) == depth  # one score ranks all documents
        self.upper_bound = float(found.scores[0, -1]) if whole else None
        self._keep(found)

    def _keep(self, found: Candidates) -> None:
        """Remember scores by ascending key."""
        keys = np.append(self._keys, found.keys[0])
        order = np.argsort(keys)
        for name, array in found.evidence.items():
            before = self._evidence.get(name, array[0, :0])
            self._evidence[name] = np.concatenate([before, array[0]])[order]
        self._keys, self._scores = keys[order], np.append(self._scores, found.scores[0])[order]

    def best(self, depth: int) -> Keys:
        """List the best documents, by another search when the first one is not deep enough."""
        if depth > self._depth:
            self._list(self._search(self.plan, depth).one_query(0), depth)
        return self._listed

    def scores(self, keys: Keys) -> Floats:
        """Score documents; a search of their own finds those that are not listed."""
        missing = np.setdiff1d(keys, self._keys)
        if len(missing):
            self._keep(self._search(replace(self.plan, only=missing), len(missing)).one_query(0))
        scores = np.full(len(keys), np.nan, np.float32)
        held = np.isin(keys, self._keys)
        scores[held] = self._scores[np.searchsorted(self._keys, keys[held])]
        return scores

    def evidence(self, keys: Keys) -> Evidence:
        """Evidence of documents that were scored."""
        at = np.searchsorted(self._keys, keys)
        return {name: array[at] for name, array in self._evidence.items()}


class Mixture(Protocol):
    """How the scores of a method and of words add up (:class:`palmette.lexical.LexicalWeight`)."""

    def score(self, method: NDArray[Any], words: NDArray[Any]) -> NDArray[Any]:
        """Mix scores."""


class WordRanking:
    """The ranking by shared words, beside that of a method."""

    upper_bound: float | None = None

    def __init__(self, view: View, text: str, method: MethodRanking) -> None:
        self.view, self.text, self.method = view, text, method
        self._keys = np.empty(0, np.int64)  # documents scored, ascending
        self._shares = np.empty(0, np.float32)

    def best(self, depth: int) -> Keys:
        """List the best documents."""
        known, last = self.method.best(depth), self.method.upper_bound
        if self.method.plan.rescore is not None:  # a shortlist of its own, whatever the other holds
            return np.union1d(known, self._keep(self.view.words(self.text, depth))[0])
        if last is None:  # there is nothing else to be found
            return known
        limit = max(WORDS_MORE * depth, len(self.view) // WORDS_PART)
        keys, shares = self._keep(self.view.words(self.text, limit))
        self.upper_bound = float(shares[-1]) if len(keys) == limit else 0.0
        return keys

    def _keep(self, found: WordMatches) -> tuple[Keys, Floats]:
        """Remember shares by ascending key."""
        keys, shares = found.keys, found.scores
        self._keys, first = np.unique(np.append(self._keys, keys), return_index=True)
        self._shares = np.append(self._shares, shares)[first]
        return keys, shares

    def scores(self, keys: Keys) -> Floats:
        """Share of the query's weight in words that documents answer."""
        missing = np.setdiff1d(keys, self._keys)
        if len(missing):
            self._keep(self.view.words(self.text, 0, only=missing))
        shares: Floats = self._shares[np.searchsorted(self._keys, keys)]
        return shares


def add_words(
    search: Search, view: View, plan: SearchPlan, texts: Sequence[str], weight: Mixture, k: int
) -> tuple[Candidates, list[WordMatches]]:
    """Find the ``k`` best documents by a method's plan and the words of the texts; the method decides what is found.

    Returns the candidates, and per query what each word adds to each of them.
    """
    depth = max(k, plan.fetch or k)
    if plan.rescore is None:
        depth = max(METHOD_DEPTH, len(view) // METHOD_PART, 2 * k)
    depth = max(1, min(depth, len(view)))
    found, rows, words = search(plan, depth), [], []
    for row, text in enumerate(texts):
        method = MethodRanking(search, plan.one_query(row), found.one_query(row), depth)
        rankings = (method, WordRanking(view, text, method))
        keys, sums = exact_sum(rankings, lambda table: weight.score(*table), k, len(view), depth)
        rows.append((keys, sums.astype(np.float32), method.evidence(keys)))
        words.append(view.words(text, 0, only=keys))
    return stack_rows(rows, found), words
