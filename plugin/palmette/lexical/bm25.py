"""BM25 as a share: how much of a query's weight in words a document answers, 0 … 1.

A word weighs ``times · idf``. A document that holds it answers ``count / (count + norm)`` of that, where ``norm``
grows with the document's length. Divided by the weight of all words, known or not, scores of different queries can be
compared, and stay what they are whatever else is in the index's answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.tokens import Analyser

__all__ = ["Asked", "asked", "norms", "shares", "weights"]

Floats = NDArray[np.float32]

K1, B = 1.2, 0.75
"""Lucene's: how soon repetition stops counting, how much length matters."""


class Asked(NamedTuple):
    """The distinct words of a query in their order, and how often each stands there."""

    words: list[str]
    terms: list[int]
    times: list[int]


def asked(analyser: Analyser, text: str) -> Asked:
    """The words of a query."""
    counted = Counter(analyser.words(text))
    return Asked([w.text for w in counted], [w.term for w in counted], list(counted.values()))


def weights(times: Sequence[int], holding: Sequence[int], documents: int) -> Floats:
    """[T] each word's share of the query's weight, when ``holding`` of ``documents`` hold it."""
    held = np.asarray(holding, np.float64)
    idf = np.log1p((documents - held + 0.5) / (held + 0.5))
    weight = np.asarray(times, np.float64) * idf
    return np.asarray(weight / max(float(weight.sum()), 1e-12), np.float32)


def norms(lengths: NDArray[Any], mean: float) -> Floats:
    """[N] what a word's count is measured against in documents of these lengths."""
    return np.asarray(K1 * (1 - B + B * lengths.astype(np.float64) / mean), np.float32)


def shares(counts: NDArray[Any], norms: Floats, weight: np.float32) -> Floats:
    """What one word adds to documents that hold it ``counts`` times, bit for bit as the kernel does it."""
    many = counts.astype(np.float32)
    share: Floats = weight * (many / (many + norms))
    return share
