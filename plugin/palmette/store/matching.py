"""Searching a state of a local index by words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.bm25 import Asked, norms, shares, weights
from palmette.search.probe import Floats, Found, Keys
from palmette.store.segments import Segment

__all__ = ["Matcher"]

Rows = NDArray[np.int64]

_KEPT = 1024  # queries whose weights are remembered


class Matcher:
    """BM25 over the segments of one snapshot; its statistics are those of the documents that are alive."""

    def __init__(self, segments: Sequence[Segment], alive: Sequence[Rows | None]) -> None:
        self.segments = segments
        self._weights: dict[tuple[int, ...], Floats] = {}  # one query asks for them several times
        self._alive: list[NDArray[np.bool_] | None] = []  # per segment [N]; None where all are
        total = self.documents = 0
        for segment, rows in zip(segments, alive, strict=True):
            mask = None
            if rows is not None:
                mask = np.zeros(segment.count, bool)
                mask[rows] = True
            self._alive.append(mask)
            self.documents += segment.count if rows is None else len(rows)
            total += segment.words.total if rows is None else int(segment.words.lengths[rows].sum())
        self.mean = max(1.0, total / max(1, self.documents))
        """Words per document."""

    @cached_property
    def _norms(self) -> list[Floats]:
        return [norms(segment.words.lengths, self.mean) for segment in self.segments]

    @cached_property
    def _every(self) -> list[Rows]:
        return [np.arange(segment.count) for segment in self.segments]

    def weights(self, asked: Asked) -> Floats:
        """[T] what each word of a query weighs."""
        key = (*asked.terms, *asked.times)
        known = self._weights.get(key)
        if known is not None:
            return known
        holding = [
            sum(self._holding(segment, term) for segment in range(len(self.segments))) for term in asked.terms
        ]
        if len(self._weights) >= _KEPT:
            self._weights.clear()
        found = self._weights[key] = weights(asked.times, holding, self.documents)
        return found

    def _holding(self, segment: int, term: int) -> int:
        rows, alive = self.segments[segment].words.find(term)[0], self._alive[segment]
        return len(rows) if alive is None else int(alive[rows].sum())

    def best(self, asked: Asked, within: Sequence[Rows | None], k: int) -> tuple[Keys, Floats]:
        """The ``k`` best documents that share a word, among some rows of each segment (``None`` for all alive)."""
        from palmette.lexical.kernels import add_word, best_rows

        weight = self.weights(asked)
        keys, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for place, (segment, rows) in enumerate(zip(self.segments, within, strict=True)):
            lists = [segment.words.find(term) for term in asked.terms]
            if not any(len(found) for found, _ in lists):
                continue
            sums = np.zeros(segment.count, np.float32)
            for (found, counts), share in zip(lists, weight, strict=True):
                add_word(found, counts, self._norms[place], share, sums)
            best = best_rows(sums, self._every[place] if rows is None else rows, k)
            keys.append(segment.keys[best])
            scores.append(sums[best])
        found_keys, found_scores = np.concatenate(keys), np.concatenate(scores)
        order = np.lexsort((found_keys, -found_scores))[:k]
        return found_keys[order], found_scores[order]

    def parts(self, asked: Asked, keys: Keys) -> Floats:
        """What each word adds to these documents (any order, all alive): [n, T]."""
        order = np.argsort(keys, kind="stable")
        parts, weight = np.zeros((len(keys), len(asked.terms)), np.float32), self.weights(asked)
        start, rising = 0, keys[order]
        for place, segment in enumerate(self.segments):
            stop = int(np.searchsorted(rising, segment.keys[-1], side="right"))
            if stop > start:
                rows = segment.rows(rising[start:stop])
                for column, term in enumerate(asked.terms):
                    found, counts = segment.words.find(term)
                    at = np.searchsorted(found, rows)
                    held = np.flatnonzero(at < len(found))
                    held = held[found[at[held]] == rows[held]]
                    share = shares(counts[at[held]], self._norms[place][rows[held]], weight[column])
                    parts[order[start:stop][held], column] = share
            start = stop
        return parts


def as_found(lists: Sequence[tuple[Keys, Floats]]) -> Found:
    """Several queries' documents in one rectangle."""
    width = max(1, *(len(keys) for keys, _ in lists)) if lists else 1
    found = Found(
        np.full((len(lists), width), -1, np.int64), np.full((len(lists), width), -np.inf, np.float32)
    )
    for row, (keys, scores) in enumerate(lists):
        found.keys[row, : len(keys)], found.scores[row, : len(keys)] = keys, scores
    return found
