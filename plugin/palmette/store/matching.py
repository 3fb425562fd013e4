"""Searching a state of a local index by words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.bm25 import Asked, norms, shares, weights
from palmette.lexical.kernels import counts_of, peak_of
from palmette.lexical.skipping import Listed, candidates
from palmette.search.probe import Floats, Found, Keys
from palmette.store.segments import Segment

__all__ = ["Matcher"]

Rows = NDArray[np.int64]

_KEPT = 1024  # queries whose postings are remembered
_WORDS = 1 << 16  # words whose facts are remembered
_FEW = 16  # a filter that leaves one document in so many is looked at document by document


class _Facts(NamedTuple):
    """Of a word in a segment: living documents that hold it, and the most it makes of its weight in any."""

    holding: int
    peak: float


class Matcher:
    """BM25 over the segments of one snapshot; its statistics are those of the documents that are alive."""

    def __init__(self, segments: Sequence[Segment], alive: Sequence[Rows | None]) -> None:
        self.segments, self._living = segments, alive
        self._queries: dict[tuple[int, ...], list[list[Listed]]] = {}  # one query asks several times
        self._words: dict[tuple[int, int], _Facts] = {}
        self._alive: list[NDArray[np.bool_]] = []  # per segment [N]; empty where all are
        total = self.documents = 0
        for segment, rows in zip(segments, alive, strict=True):
            self._alive.append(np.empty(0, bool) if rows is None else _mask(segment, rows))
            self.documents += segment.count if rows is None else len(rows)
            total += segment.words.total if rows is None else int(segment.words.lengths[rows].sum())
        self.mean = max(1.0, total / max(1, self.documents))
        """Words per document."""

    @cached_property
    def _norms(self) -> list[Floats]:
        return [norms(segment.words.lengths, self.mean) for segment in self.segments]

    def _facts(self, place: int, term: int) -> _Facts:
        """Read from all postings of a word, once."""
        known = self._words.get((place, term))
        if known is None:
            (rows, counts), alive = self.segments[place].words.find(term), self._alive[place]
            holding = int(alive[rows].sum()) if len(alive) else len(rows)
            if len(self._words) >= _WORDS:
                self._words.clear()
            known = self._words[place, term] = _Facts(holding, peak_of(rows, counts, self._norms[place]))
        return known

    def _lists(self, asked: Asked) -> list[list[Listed]]:
        """The postings of a query's words, per segment."""
        key = (*asked.terms, *asked.times)
        known = self._queries.get(key)
        if known is None:
            facts = [
                [self._facts(place, term) for term in asked.terms] for place in range(len(self.segments))
            ]
            holding = [sum(found[at].holding for found in facts) for at in range(len(asked.terms))]
            weight = weights(asked.times, holding, self.documents)
            known = [
                [
                    Listed(*segment.words.find(term), share, float(share) * fact.peak)
                    for term, share, fact in zip(asked.terms, weight, found, strict=True)
                ]
                for segment, found in zip(self.segments, facts, strict=True)
            ]
            if len(self._queries) >= _KEPT:
                self._queries.clear()
            self._queries[key] = known
        return known

    def best(
        self, asked: Asked, within: Sequence[Rows | None], k: int, floor: float = 0.0
    ) -> tuple[Keys, Floats]:
        """The ``k`` best documents that share a word, among some rows of each segment (``None`` for all alive).

        What scores less than ``floor`` may be left out.
        """
        keys, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        for place, (segment, rows) in enumerate(zip(self.segments, within, strict=True)):
            among, mask = None, np.empty(0, bool)
            if rows is not None:
                if rows is self._living[place]:
                    mask = self._alive[place]
                elif len(rows) * _FEW <= segment.count:
                    among = rows.astype(np.int32)
                else:
                    mask = _mask(segment, rows)
            lists = self._lists(asked)[place]
            found = candidates(lists, self._norms[place], k, floor, mask, among)
            parts = self._parts(place, lists, found)
            sums = np.zeros(len(found), np.float32)
            for column in parts.T:
                sums += column
            matched = np.flatnonzero((sums >= floor) & (sums > 0))
            keys = np.concatenate([keys, segment.keys[found[matched]]])
            scores = np.concatenate([scores, sums[matched]])
            if len(keys) > k:
                kept = _best(scores, k)
                keys, scores = keys[kept], scores[kept]
            if len(keys) == k:
                floor = max(floor, float(scores.min()))
        order = np.lexsort((keys, -scores))
        return keys[order], scores[order]

    def _parts(self, place: int, lists: Sequence[Listed], rows: NDArray[np.integer]) -> Floats:
        """What each word adds to these rows (rising) of a segment: [n, T]."""
        held, norm = rows.astype(np.int32, copy=False), self._norms[place][rows]
        parts = np.zeros((len(held), len(lists)), np.float32)
        for column, one in enumerate(lists):
            if len(one.rows):
                parts[:, column] = shares(counts_of(held, one.rows, one.counts), norm, one.weight)
        return parts

    def parts(self, asked: Asked, keys: Keys) -> Floats:
        """What each word adds to these documents (any order, all alive): [n, T]."""
        order = np.argsort(keys, kind="stable")
        parts = np.zeros((len(keys), len(asked.terms)), np.float32)
        start, rising = 0, keys[order]
        for place, (segment, lists) in enumerate(zip(self.segments, self._lists(asked), strict=True)):
            stop = int(np.searchsorted(rising, segment.keys[-1], side="right"))
            if stop > start:
                parts[order[start:stop]] = self._parts(place, lists, segment.rows(rising[start:stop]))
            start = stop
        return parts


def _mask(segment: Segment, rows: Rows) -> NDArray[np.bool_]:
    mask = np.zeros(segment.count, bool)
    mask[rows] = True
    return mask


def _best(scores: Floats, k: int) -> Rows:
    """Places of the ``k`` best, the earlier ones among equals."""
    last = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > last)
    return np.concatenate([above, np.flatnonzero(scores == last)[: k - len(above)]])


def as_found(lists: Sequence[tuple[Keys, Floats]]) -> Found:
    """Several queries' documents in one rectangle."""
    width = max(1, *(len(keys) for keys, _ in lists)) if lists else 1
    found = Found(
        np.full((len(lists), width), -1, np.int64), np.full((len(lists), width), -np.inf, np.float32)
    )
    for row, (keys, scores) in enumerate(lists):
        found.keys[row, : len(keys)], found.scores[row, : len(keys)] = keys, scores
    return found
