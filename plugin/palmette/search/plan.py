"""A search as data: a method writes a SearchPlan, storage executes it and returns Candidates.

Letters: Q queries, d numbers of a vector, F vectors of a document, n candidates, L numbered lists, β lists visited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats as Floats
from palmette.arrays import Keys as Keys
from palmette.errors import EncodingError, InputError

Metric = Literal["inner_product", "overlap"]
Facts = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array stored for every document: its name, shape per document and dtype.

    ``uint16`` holds fractions in units of 2⁻¹⁵ (fixed point); other numbers stand for themselves. A ``ragged`` array
    has any number of rows per document, and ``shape`` is that of one row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    ragged: bool = False
    searched: Metric | Literal["lists"] | None = field(default=None, compare=False)
    """How plans compare the array (``"lists"``: by list number); ``None`` if only rows of documents are read."""
    scales: str | None = field(default=None, compare=False)
    """Stored array of factors of its int8 vectors, if they are searched."""
    valid_range: tuple[int, int] | None = field(default=None, compare=False)
    """Smallest and largest valid value of an array of list or node numbers, checked when an index is opened."""
    aligned: str | None = field(default=None, compare=False)
    """Ragged array with the same number of rows per document."""

    @property
    def layout(self) -> dict[str, Any]:
        """Persisted schema of an array: a storage records it, and compares it when an index is opened."""
        return {"name": self.name, "shape": self.shape, "dtype": self.dtype, "ragged": self.ragged}


@dataclass(frozen=True, slots=True)
class Score:
    """Similarity of query vectors to one stored array."""

    array: str
    queries: Floats
    """[Q, d]"""
    metric: Metric = "inner_product"
    """``inner_product`` is Σ q·x; ``overlap`` is Σ min(q, x): one minus total variation, for distributions."""
    fold: int = 1
    """Neighbouring stored columns summed before they are compared: a coarser level of a tree."""
    part_weights: Floats | None = None
    """[F] float32 factors of several vectors per document, of which the best weighted one counts; 0 leaves one out."""
    scales: str | None = None
    """Stored array [F] of the factors of int8 vectors, with ``part_weights``."""

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.queries.dtype != np.float32:
            raise InputError(f"query vectors must be [Q, d] float32, got {self.queries.shape} {self.queries.dtype}")
        if (bad := ~np.isfinite(self.queries).all(axis=1)).any():
            raise EncodingError(f"query {int(bad.argmax())} holds NaN or infinity; check the encoder's output")


@dataclass(frozen=True, slots=True)
class Lists:
    """Numbered lists of documents; each query is compared with those in its chosen lists only."""

    array: str
    """Stored array with the list numbers of each document, each number once."""
    chosen: Keys
    """[Q, β] lists of each query, each once, padded with −1."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """One search: which query vectors compare with which arrays. Nothing is local, so any engine can execute it."""

    first: Score
    """Finds candidates."""
    lists: Lists | None = None
    """Restricts ``first`` (inner products only)."""
    rescore: Score | None = None
    """Ranks the ``fetch`` best candidates of ``first``, by several vectors per document."""
    fetch: int | None = None
    """Candidates to rescore; never fewer than ``k``."""
    share: float = 0.0
    """Weight of the first score in the final one."""
    group: int = 1
    """Consecutive rows of ``first`` per query; Candidates then have Q·group rows, for ``rank`` to merge."""
    only: Keys | None = None
    """Ascending keys: score exactly these documents."""
    context: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further query arrays that ``rank`` reads, one row per query."""

    @property
    def arrays(self) -> list[str]:
        """Stored arrays that the plan compares."""
        names = [self.first.array, self.first.scales]
        if self.rescore is not None:
            names += [self.rescore.array, self.rescore.scales]
        if self.lists is not None:
            names.append(self.lists.array)
        return list(filter(None, dict.fromkeys(names)))

    def among(self, keys: Keys) -> SearchPlan:
        """Plan that scores exactly these documents (ascending keys), whatever lists they are in."""
        return replace(self, only=keys, lists=None)

    def one_query(self, row: int) -> SearchPlan:
        """Plan of one query."""
        if len(self.first.queries) == self.group:
            return self
        rows = slice(row * self.group, (row + 1) * self.group)
        return replace(
            self,
            first=replace(self.first, queries=self.first.queries[rows]),
            rescore=self.rescore and replace(self.rescore, queries=self.rescore.queries[row : row + 1]),
            lists=self.lists and replace(self.lists, chosen=self.lists.chosen[rows]),
            context={name: array[row : row + 1] for name, array in self.context.items()},
        )


@dataclass(frozen=True)
class Candidates:
    """Documents per query, best first; equal scores are ordered by key, so that a search is repeatable."""

    keys: Keys
    """[Q, n], padded with −1."""
    scores: Floats
    """[Q, n], −∞ where padded."""
    visited: float = 0.0
    """Documents compared with each query, on average."""
    evidence: Facts = field(default_factory=dict)
    """Facts about each hit for its explanation (the layer that found it, …): arrays [Q, n] by name."""

    def one_query(self, row: int) -> Candidates:
        """Candidates of one query, without padding."""
        real = self.keys[row] >= 0
        evidence: dict[str, NDArray[Any]] = {}
        for name, array in self.evidence.items():
            evidence[name] = array[row][real][None]
        return replace(self, keys=self.keys[row][real][None], scores=self.scores[row][real][None], evidence=evidence)


def stack_rows(rows: Sequence[tuple[Keys, Floats, Facts]], like: Candidates) -> Candidates:
    """Stack keys, scores and evidence of one or more queries, with the effort of ``like``."""
    width, evidence = 0, dict[str, NDArray[Any]]()
    for keys_of_query, _, _ in rows:
        width = max(width, len(keys_of_query))
    keys = np.full((len(rows), width), -1, np.int64)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    for row, (keys_of_query, scored, facts) in enumerate(rows):
        keys[row, : len(keys_of_query)], scores[row, : len(keys_of_query)] = keys_of_query, scored
        for name, array in facts.items():
            if name not in evidence:
                evidence[name] = np.zeros((len(rows), width, *array.shape[1:]), array.dtype)
            evidence[name][row, : len(keys_of_query)] = array
    return replace(like, keys=keys, scores=scores, evidence=evidence)


@dataclass(frozen=True)
class WordMatches:
    """Scores of some documents by the words of a query, and each pair of neighbouring words (``"a b"``)."""

    words: Sequence[str]
    scores: Floats
    """[n] 0 … 1."""
    keys: Keys
    """[n] the documents."""
    phrases: bool = False
    """Whether the query has quoted phrases; documents without them score 0."""
    document_frequencies: Sequence[int] = ()
    """Document frequency of each word or pair among ``documents``; empty if the engine does not count."""
    documents: int = 0
    rarity: float = math.inf
    """Weight of the query's words, in words that no document contains."""
    parts: Floats | None = None
    """[T] addition of each word or pair, if the score of one document is explained."""


def ranked_by(candidates: Candidates, scores: Floats, k: int) -> Candidates:
    """Rank candidates by other scores [Q, n]."""
    order = np.lexsort((candidates.keys, -scores), axis=1)[:, :k]
    keys, ranked = np.take_along_axis(candidates.keys, order, 1), np.take_along_axis(scores, order, 1)
    evidence = {name: np.take_along_axis(array, order, 1) for name, array in candidates.evidence.items()}
    return replace(candidates, keys=keys, scores=ranked, evidence=evidence)
