"""Words of a handful of documents without an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.bm25 import asked, norms, shares, weights
from palmette.lexical.postings import Collector
from palmette.lexical.tokens import Analyser

__all__ = ["shares_among"]


def shares_among(analyser: Analyser, query: str, texts: Sequence[Sequence[str]]) -> NDArray[np.float32]:
    """[n] the share of a query's weight in words that each document (its texts) answers, as if there were no others.

    A word is rare when few of these documents have it. Measured (tests/benchmarks/results/hybrid.md), that orders the
    documents of a first search nearly as well as the whole collection's statistics do.
    """
    collector = Collector(analyser)
    collector.add(texts)
    postings, words = collector.postings(), asked(analyser, query)
    lists = [postings.find(term) for term in words.terms]
    norm = norms(postings.lengths, max(1.0, postings.total / len(texts)))
    sums = np.zeros(len(texts), np.float32)
    held = [len(rows) for rows, _ in lists]
    for (rows, counts), weight in zip(lists, weights(words.times, held, len(texts)), strict=True):
        sums[rows] += shares(counts, norm[rows], weight)
    return sums
