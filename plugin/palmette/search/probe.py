"""What a method asks of an index: nearest neighbours in one stored array, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError

__all__ = ["ArraySpec", "Floats", "Found", "Keys", "Metric", "Probe"]

Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
Metric = Literal["inner_product", "overlap"]


@dataclass(frozen=True)
class ArraySpec:
    """One array that a method keeps for every document: its name, shape per document, dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Probe:
    """Query vectors to compare with a stored array. Any engine can answer it; nothing here is local.

    Attributes:
        array: Name of the stored array.
        queries: [Q, d], float32.
        metric: ``inner_product`` is Σ q·x; ``overlap`` is Σ min(q, x), which for distributions is one minus
            their total variation distance (and −nTVD + 1).
        fold: Columns of the stored array summed in runs of this length before they are compared, so that
            d = stored columns / fold: a coarser level of a consistent hierarchy.
    """

    array: str
    queries: Floats
    metric: Metric
    fold: int = 1

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.queries.dtype != np.float32:
            raise InputError(
                f"probe queries must be [Q, d] float32, got {self.queries.shape} {self.queries.dtype}"
            )


@dataclass(frozen=True)
class Found:
    """Neighbours per query, best first: ``keys`` [Q, k] (−1 where fewer exist), ``scores`` [Q, k] (−inf there).

    Equal scores are ordered by key, so that the same search twice gives the same answer. ``compared`` is how many
    documents each query was compared with, on average: what a search visited. ``evidence`` is what a method wants
    to remember of each hit for its explanation (the layer that found it, …): arrays [Q, k] by name.
    """

    keys: Keys
    scores: Floats
    compared: float = 0.0
    evidence: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
