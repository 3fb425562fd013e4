"""Former names, for methods that are not converted yet."""  # moved: delete after the merge

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.arrays import Floats as Floats
from palmette.arrays import Keys as Keys
from palmette.search.plan import ArraySpec as ArraySpec
from palmette.search.plan import Candidates as Found
from palmette.search.plan import Lists as Lists
from palmette.search.plan import Metric as Metric
from palmette.search.plan import Score, SearchPlan
from palmette.search.plan import WordMatches as Shared
from palmette.search.plan import stack_rows as joined

__all__ = ["ArraySpec", "Floats", "Found", "Keys", "Lists", "Metric", "Parts", "Probe", "Shared", "joined"]


@dataclass(frozen=True)
class Probe:  # noqa: D101
    array: str
    queries: Floats
    metric: Metric
    fold: Any = 1
    lists: Lists | None = None
    rough: bool = False

    def plan(self) -> SearchPlan:  # noqa: D102
        return SearchPlan(Score(self.array, self.queries, self.metric, self.fold), self.lists)


@dataclass(frozen=True)
class Parts:  # noqa: D101
    array: str
    queries: Floats
    weights: Floats
    scales: str | None = None
    own: Floats | None = None
    share: float = 0.0

    def plan(self) -> SearchPlan:  # noqa: D102
        return SearchPlan(Score(self.array, self.queries, part_weights=self.weights, scales=self.scales))

    def found(self, keys: Keys) -> Found:  # noqa: D102
        return Found(keys, np.zeros(keys.shape, np.float32) if self.own is None else self.own)
