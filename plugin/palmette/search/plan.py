"""A search as data: a method writes a SearchPlan, storage executes it and returns Candidates.

Letters: Q queries, d numbers of a vector, F vectors of a document, n candidates, L numbered lists, β lists visited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from palmette.errors import EncodingError, InputError
from palmette.types import Document

Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
Metric = Literal["inner_product", "overlap"]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array stored for every document: its name, shape per document and dtype.

    ``uint16`` holds fractions in units of 2⁻¹⁵ (fixed point); other numbers stand for themselves.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


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
    """[F] factors of several vectors per document, of which the best weighted one counts; 0 leaves a vector out."""
    scales: str | None = None
    """Stored array [F] of the factors of int8 vectors."""

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.queries.dtype != np.float32:
            raise InputError(
                f"query vectors must be [Q, d] float32, got {self.queries.shape} {self.queries.dtype}"
            )
        bad = ~np.isfinite(self.queries).all(axis=1)
        if bad.any():
            raise EncodingError(
                f"query {int(bad.argmax())} holds NaN or infinity; check the encoder's output"
            )
        if self.part_weights is not None and not (
            self.part_weights.dtype == np.float32
            and (self.part_weights >= 0).all()
            and self.part_weights.any()
        ):
            raise InputError(
                f"part_weights must be float32, at least 0, and one of them above 0; got {self.part_weights.tolist()}"
            )


@dataclass(frozen=True, slots=True)
class Lists:
    """Numbered lists of documents; each query is compared with those in its chosen lists only."""

    array: str
    """Stored array with the list numbers of each document, each number once."""
    chosen: Keys
    """[Q, β] lists of each query, each once, padded with −1."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search compares with what. Nothing in it is local, so that any engine can execute it."""

    first: Score
    """Finds candidates."""
    lists: Lists | None = None
    """Restricts ``first`` (inner products only)."""
    rescore: Score | None = None
    """Ranks the ``fetch`` best candidates of ``first``."""
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

    def one_query(self, row: int) -> SearchPlan:
        """Plan of one query."""
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
    evidence: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Facts about each hit for its explanation (the layer that found it, …): arrays [Q, n] by name."""
    refined: float = 0.0
    """Documents compared number by number, the others being surely worse, per query."""
    read: float = 0.0
    """Bytes read for that, per query."""
    approximate: bool = False
    """Whether an engine searched that does not look everywhere."""

    @property
    def compared(self) -> float:  # noqa: D102 - moved: ``visited``; delete after the merge
        return self.visited

    def one_query(self, row: int) -> Candidates:
        """Candidates of one query."""
        evidence = {name: array[row : row + 1] for name, array in self.evidence.items()}
        return replace(
            self, keys=self.keys[row : row + 1], scores=self.scores[row : row + 1], evidence=evidence
        )


def stack_rows(
    rows: Sequence[tuple[Keys, Floats, Mapping[str, NDArray[np.generic]]]], like: Candidates
) -> Candidates:
    """Keys, scores and evidence of several queries as one result, with the effort of ``like``."""
    width = max((len(keys) for keys, _, _ in rows), default=0)
    keys = np.full((len(rows), width), -1, np.int64)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    evidence = {n: np.zeros((len(rows), width, *a.shape[2:]), a.dtype) for n, a in like.evidence.items()}
    for row, (found, scored, facts) in enumerate(rows):
        keys[row, : len(found)], scores[row, : len(found)] = found, scored
        for name, array in facts.items():
            evidence[name][row, : len(found)] = array
    return replace(like, keys=keys, scores=scores, evidence=evidence)


@dataclass(frozen=True)
class WordMatches:
    """What each word of a query adds to the scores of some documents."""

    words: Sequence[str]
    parts: Floats
    """[n, T]; a row's sum is the document's score."""
    keys: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    """[n] the documents."""

    @property
    def scores(self) -> Floats:
        """[n] sums in the words' order, as a search adds them."""
        sums = np.zeros(len(self.parts), np.float32)
        for column in self.parts.T:
            sums += column
        return sums


class View(Protocol):
    """One consistent state of the documents that pass a filter; no write shows while it is open."""

    def __len__(self) -> int:
        """Number of documents that pass the filter."""
        ...

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """The ``k`` best documents of every row of the plan (all of them when fewer exist)."""
        ...

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array, in the order of ``keys``: [n, *shape]."""
        ...

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        """Number of documents in each list of a stored array of list numbers: [L]."""
        ...

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """Documents in the order of ``keys``."""
        ...

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Document ids in the order of ``keys``, without reading the documents."""
        ...

    def key_of(self, id: str) -> int | None:
        """Key of a document's current version; never reused."""
        ...

    def keys(self) -> Keys:
        """All keys, ascending."""
        ...


def rescore_rows(view: View, plan: SearchPlan, found: Candidates, k: int) -> Candidates:
    """Candidates ranked by ``plan.rescore`` on rows that the view hands out, for storage that cannot do it itself."""
    second = plan.rescore
    assert second is not None
    held = found.keys >= 0
    wanted, where = np.unique(found.keys[held], return_inverse=True)
    rows = view.rows(second.array, wanted.tolist()).astype(np.float64)  # [U, d]
    queries = np.repeat(second.queries.astype(np.float64), held.sum(axis=1), axis=0)
    scores = np.full(found.keys.shape, -np.inf)
    scores[held] = np.einsum("nd,nd->n", queries, rows[where])
    if plan.share:
        scores[held] = plan.share * found.scores[held] + (1 - plan.share) * scores[held]
    scores = scores.astype(np.float32)
    order = np.lexsort((found.keys, -scores), axis=1)[:, :k]
    evidence = {name: np.take_along_axis(array, order, 1) for name, array in found.evidence.items()}
    keys, scores = np.take_along_axis(found.keys, order, 1), np.take_along_axis(scores, order, 1)
    return replace(found, keys=keys, scores=scores, evidence=evidence)
