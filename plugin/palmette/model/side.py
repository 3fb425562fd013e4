"""A method as one of several rankings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from palmette.search.probe import Floats, Found, Keys

if TYPE_CHECKING:
    from palmette.model.model import Model
    from palmette.search.plan import View

__all__ = ["MethodSide"]


class MethodSide:
    """What a model finds for the plan of one query; ``first`` is what a search of ``depth`` has found.

    A document that the model would not return (outside the leaves it visits, below its cut-off) is not found. Nor is
    one outside a model's ``shortlist``, unless another side shows it.
    """

    def __init__(self, model: Model, view: View, plan: Any, options: Any, first: Found, depth: int) -> None:
        self.model, self.view, self.plan, self.options = model, view, plan, options
        self.shortlist = plan.fetch if plan.rescore is not None else None
        self._depth = depth
        self._show(first)

    @property
    def shown(self) -> Floats:
        """Scores of the documents shown, best first."""
        return self._shown.scores

    @property
    def bound(self) -> float | None:
        """That of the last document shown, where it ranks all of them by one score."""
        every = self.shortlist is None and len(self.shown) == self._depth
        return float(self.shown[-1]) if every else None

    def best(self, depth: int) -> Keys:
        """By another search, when the first one is not deep enough."""
        if depth > self._depth:
            self._depth = depth
            self._show(self.model.execute(self.view, self.plan, depth, self.options))
        return self._shown.keys

    def _show(self, found: Found) -> None:
        self._shown = _Shown.of(found)
        self._every = self._shown.sorted()

    def scores(self, keys: Keys) -> Floats:
        """What was not found is searched for by itself."""
        missing = np.setdiff1d(keys, self._every.keys)
        if len(missing):
            plan = replace(self.plan, only=missing)
            found = self.model.execute(self.view, plan, len(missing), self.options)
            self._every = self._every.joined(_Shown.of(found)).sorted()
        scores = np.full(len(keys), np.nan, np.float32)
        there = np.isin(keys, self._every.keys)
        scores[there] = self._every.scores[np.searchsorted(self._every.keys, keys[there])]
        return scores

    def evidence(self, keys: Keys) -> dict[str, NDArray[np.generic]]:
        """What the search remembers of documents it has scored."""
        at = np.searchsorted(self._every.keys, keys)
        return {name: array[at] for name, array in self._every.evidence.items()}


class _Shown:
    """Documents that a search has scored."""

    def __init__(self, keys: Keys, scores: Floats, evidence: dict[str, NDArray[np.generic]]) -> None:
        self.keys, self.scores, self.evidence = keys, scores, evidence

    @classmethod
    def of(cls, found: Found) -> _Shown:
        """Of one query."""
        held = found.keys[0] >= 0
        evidence = {name: array[0][held] for name, array in found.evidence.items()}
        return cls(found.keys[0][held], found.scores[0][held], evidence)

    def joined(self, other: _Shown) -> _Shown:
        evidence = {n: np.concatenate([a, other.evidence[n]]) for n, a in self.evidence.items()}
        return _Shown(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.scores, other.scores]), evidence
        )

    def sorted(self) -> _Shown:
        """By rising keys."""
        order = np.argsort(self.keys)
        return _Shown(
            self.keys[order], self.scores[order], {name: a[order] for name, a in self.evidence.items()}
        )
