"""A view of documents and arrays in lists: the least that a storage must do, written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette import Document
from palmette.arrays import Ragged, as_floats
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.search.plan import Candidates, Score, SearchPlan, WordMatches, ranked_by


class PlainView:
    """Documents and arrays in lists: compares everything with everything, and leaves rescoring to the caller.

    Keys are 10 more than places, so that nobody takes one for the other.
    """

    def __init__(self, given: Sequence[Document], arrays: Mapping[str, Any]) -> None:
        self.given, self.arrays = given, arrays
        self.collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in given])

    def __len__(self) -> int:
        return len(self.given)

    def keys(self) -> NDArray[np.int64]:
        return np.arange(len(self.given)) + 10

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[Any]:
        return self.arrays[array][np.asarray(keys, np.int64) - 10]

    def ragged(self, array: str, keys: Sequence[int]) -> Ragged:
        every = self.arrays[array]
        rows = [every.row(key - 10) for key in keys]
        return Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))

    def note(self, name: str) -> None:
        return None

    def documents(self, keys: Sequence[int]) -> list[Document]:
        return [self.given[key - 10] for key in keys]

    def ids(self, keys: Sequence[int]) -> list[str]:
        return [document.key for document in self.documents(keys)]

    def keys_of(self, ids: Sequence[str]) -> dict[str, list[int]]:
        return {document.key: [place + 10] for place, document in enumerate(self.given) if document.key in ids}

    def scope_keys(self) -> None:
        return None

    def word_parts(self, text: str, key: int) -> NDArray[np.float32]:
        return self.words(text, 0, only=np.array([key])).scores  # one part: all words together

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        return np.bincount(self.arrays[array].ravel())

    def words(self, text: str, k: int, only: NDArray[np.int64] | None = None) -> WordMatches:
        matched = self.collection.matches(text)
        shares = matched.scores  # one column: all words together
        keys = only
        if keys is None:
            order = np.lexsort((np.arange(len(shares)), -shares))
            keys = order[shares[order] > 0][:k] + 10
        return WordMatches([text], shares[keys - 10], keys, rarity=matched.rarity)

    def expect(self, *search: Any) -> None:
        pass

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        keys = self.keys() if plan.only is None else plan.only
        scores = self._table(plan.first, keys)  # [Q, N]
        allowed = np.ones(scores.shape, bool)
        if plan.lists is not None:
            own = self.rows(plan.lists.array, keys)
            allowed = np.array([np.isin(own, row[row >= 0]).any(axis=1) for row in plan.lists.chosen])
        scores = np.where(allowed, scores, -np.inf).astype(np.float32)
        depth = min(len(keys), k if plan.rescore is None else max(k, plan.fetch or k))
        order = np.array([np.lexsort((keys, -row))[:depth] for row in scores])
        best = np.take_along_axis(scores, order, 1)
        found = Candidates(np.where(np.isinf(best), -1, keys[order]), best, float(allowed.sum(axis=1).mean()))
        if plan.first.part_weights is not None:
            found = rescored(self, SearchPlan(plan.first, rescore=plan.first), found, depth)
        return found if plan.rescore is None else rescored(self, plan, found, k)

    def _table(self, score: Score, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        data, queries = as_floats(self.rows(score.array, keys)).astype(np.float64), score.queries.astype(np.float64)
        if score.scales is not None:
            data = data * self.rows(score.scales, keys)[..., None]
        if score.part_weights is not None:
            parts = np.einsum("qd,nfd->qnf", queries, data) * score.part_weights
            return parts[..., score.part_weights > 0].max(axis=2)
        data = data.reshape(len(keys), -1, score.fold).sum(axis=2)
        if score.metric == "overlap":
            return np.minimum(data[None], queries[:, None]).sum(axis=2)
        return queries @ data.T


def rescored(view: Any, plan: SearchPlan, candidates: Candidates, k: int) -> Candidates:
    """Candidates ranked by the best weighted part of each, written out; evidence says which part."""
    score, keys, share = plan.rescore, candidates.keys, plan.share
    assert score is not None
    assert score.part_weights is not None
    scores, parts = np.full(keys.shape, -np.inf), np.zeros(keys.shape, np.int64)
    for query, place in zip(*np.nonzero(keys >= 0), strict=True):
        key = [int(keys[query, place])]
        data = view.rows(score.array, key)[0].astype(np.float64)  # [F, d]
        factors = 1.0 if score.scales is None else view.rows(score.scales, key)[0].astype(np.float64)
        table = data @ score.queries[query].astype(np.float64) * score.part_weights * factors
        table[(table == 0) | (score.part_weights == 0)] = -np.inf  # vectors of zeros are missing parts
        own = 0.0 if np.isinf(table).all() else table.max()
        scores[query, place] = share * candidates.scores[query, place] + (1 - share) * own
        parts[query, place] = table.argmax()
    return ranked_by(replace(candidates, evidence={"part": parts}), scores.astype(np.float32), k)
