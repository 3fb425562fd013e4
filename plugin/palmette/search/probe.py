"""Nearest neighbours in one stored array: what the engines understand. Methods write a ``SearchPlan`` (plan.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from palmette.errors import InputError
from palmette.search.plan import ArraySpec, Candidates, Floats, Keys, Lists, Metric, WordMatches, stack_rows

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

Found = Candidates
Shared = WordMatches
joined = stack_rows


def row_of(found: Candidates, row: int) -> Candidates:
    """Candidates of one query."""
    return found.one_query(row)


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
