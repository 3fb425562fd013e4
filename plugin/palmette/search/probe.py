"""What a method asks of an index: nearest neighbours in one stored array, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError

__all__ = [
    "ArraySpec",
    "Floats",
    "Found",
    "Keys",
    "Lists",
    "Metric",
    "Parts",
    "Probe",
    "Shared",
    "joined",
    "row_of",
]

Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
Metric = Literal["inner_product", "overlap"]


@dataclass(frozen=True)
class ArraySpec:
    """One array that a method keeps for every document: its name, shape per document, dtype.

    ``uint16`` holds fractions in parts of 2⁻¹⁵ (:mod:`palmette.search.fixed`); other numbers stand for themselves.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Lists:
    """Documents lie in numbered lists; each query is compared with those of some lists only.

    Attributes:
        array: Name of the stored array that holds the numbers of each document's lists, each number once.
        chosen: [Q, β] the lists of each query, each once; −1 where a query has fewer.
    """

    array: str
    chosen: Keys


@dataclass(frozen=True)
class Probe:
    """Query vectors to compare with a stored array. Any engine can answer it; nothing here is local.

    Attributes:
        array: Name of the stored array.
        queries: [Q, d], float32.
        metric: ``inner_product`` is Σ q·x; ``overlap`` is Σ min(q, x), which for distributions is one minus
            their total variation distance (and −nTVD + 1).
        fold: Neighbouring columns of the stored array summed before they are compared, one run a number of the
            query: a coarser level of a consistent hierarchy. The length of all runs, or of each.
        lists: Where to look, if not everywhere (inner products only).
        rough: What an engine that does not look everywhere finds at first is enough, by its own scores: nothing is
            scored again, and no search is widened that found fewer than ``k``.
    """

    array: str
    queries: Floats
    metric: Metric
    fold: int | tuple[int, ...] = 1
    lists: Lists | None = None
    rough: bool = False

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.queries.dtype != np.float32:
            raise InputError(
                f"probe queries must be [Q, d] float32, got {self.queries.shape} {self.queries.dtype}"
            )
        if self.lists is not None and (self.metric != "inner_product" or self.fold != 1):
            raise InputError("a probe of lists compares by inner_product, with fold=1")

    def fits(self, columns: int) -> bool:
        """Whether the runs cover a stored array of so many columns, and the queries have one number for each."""
        width = self.queries.shape[1]
        if isinstance(self.fold, int):
            return self.fold > 0 and width * self.fold == columns
        return len(self.fold) == width and min(self.fold) > 0 and sum(self.fold) == columns


@dataclass(frozen=True)
class Parts:
    """Query vectors to compare with documents of several vectors each, of which the best inner product counts.

    Attributes:
        array: Name of the stored array [F, d]: int8, float16 or float32.
        queries: [Q, d], float32.
        weights: [F] what each part's products are multiplied by; 0 for parts that do not count.
        scales: Name of the stored array [F] of what int8 vectors are to be multiplied by.
        own: [Q, n] what the documents to be rescored score already.
        share: How much of that goes into their score; the best part makes the rest.
    """

    array: str
    queries: Floats
    weights: Floats
    scales: str | None = None
    own: Floats | None = None
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.queries.dtype != np.float32 or self.weights.dtype != np.float32:
            raise InputError(
                f"queries must be [Q, d] and weights [F], of float32; got {self.queries.shape} "
                f"{self.queries.dtype} and {self.weights.shape} {self.weights.dtype}"
            )
        if not (self.weights >= 0).all() or not (self.weights > 0).any():
            raise InputError(
                f"weights of parts must be at least 0, and one above it; got {self.weights.tolist()}"
            )


@dataclass(frozen=True)
class Found:
    """Neighbours per query, best first: ``keys`` [Q, k] (−1 where fewer exist), ``scores`` [Q, k] (−inf there).

    Equal scores are ordered by key, so that the same search twice gives the same answer. ``compared`` is how many
    documents each query was compared with, on average: what a search visited. ``evidence`` is what a method wants
    to remember of each hit for its explanation (the layer that found it, …): arrays [Q, k] by name. ``refined`` is how
    many documents were compared number by number, the others being surely worse, and ``read`` the bytes that took,
    both per query. ``approximate``: an engine that does not look everywhere has searched.
    """

    keys: Keys
    scores: Floats
    compared: float = 0.0
    evidence: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    refined: float = 0.0
    read: float = 0.0
    approximate: bool = False


def row_of(found: Found, row: int) -> Found:
    """What was found for one query."""
    evidence = {name: array[row : row + 1] for name, array in found.evidence.items()}
    return replace(
        found, keys=found.keys[row : row + 1], scores=found.scores[row : row + 1], evidence=evidence
    )


def joined(rows: Sequence[tuple[Keys, Floats, Mapping[str, NDArray[np.generic]]]], like: Found) -> Found:
    """Keys, scores and evidence of several queries as one result; ``like`` lends what is known of the effort."""
    width = max((len(keys) for keys, _, _ in rows), default=0)
    keys = np.full((len(rows), width), -1, np.int64)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    evidence = {n: np.zeros((len(rows), width, *a.shape[2:]), a.dtype) for n, a in like.evidence.items()}
    for row, (found, scored, remembered) in enumerate(rows):
        keys[row, : len(found)], scores[row, : len(found)] = found, scored
        for name, array in remembered.items():
            evidence[name][row, : len(found)] = array
    return replace(like, keys=keys, scores=scores, evidence=evidence)


@dataclass(frozen=True)
class Shared:
    """What the words of one query add to the scores of some documents, [n, T]: rows add up to the score."""

    words: Sequence[str]
    parts: Floats

    @property
    def scores(self) -> Floats:
        """[n] added in the words' order, as a search does."""
        sums = np.zeros(len(self.parts), np.float32)
        for column in self.parts.T:
            sums += column
        return sums
