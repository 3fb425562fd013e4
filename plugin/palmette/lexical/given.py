"""Words of a handful of documents without an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.bm25 import asked, norms, shares, weights
from palmette.lexical.postings import Collector
from palmette.lexical.tokens import Analyser

__all__ = ["Given", "shares_among"]


class Given:
    """The words of some documents, held for several queries; a word is rare when few have it."""

    def __init__(self, analyser: Analyser, texts: Sequence[str]) -> None:
        collector = Collector(analyser)
        collector.add(texts)
        self.analyser, self.count, self.postings = analyser, len(texts), collector.postings()
        self.norms = norms(self.postings.lengths, max(1.0, self.postings.total / len(texts)))

    def shares(self, query: str) -> NDArray[np.float32]:
        """[n] the share of a query's weight in words that each document answers."""
        words = asked(self.analyser, query)
        lists = [self.postings.find(term) for term in words.terms]
        sums = np.zeros(self.count, np.float32)
        held = [len(rows) for rows, _ in lists]
        for (rows, counts), weight in zip(lists, weights(words.times, held, self.count), strict=True):
            sums[rows] += shares(counts, self.norms[rows], weight)
        return sums


def shares_among(analyser: Analyser, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
    """[n] the share of a query's weight in words that each document answers, as if there were no others.

    Measured (tests/benchmarks/results/hybrid.md), that orders the documents of a first search nearly as well as the
    whole collection's statistics do.
    """
    return Given(analyser, texts).shares(query)
