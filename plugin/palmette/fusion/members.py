"""Several models' arrays, views and checkpoints side by side, each under the member's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from palmette.hub import Checkpoint
from palmette.model import Queries
from palmette.search.plan import Candidates, SearchPlan, View
from palmette.search.probe import Found, Keys, Parts

__all__ = ["MemberCheckpoint", "MemberView", "file_of", "named", "of_member", "one_query", "together"]


class MemberCheckpoint(Checkpoint):
    """A member's checkpoint inside that of its fusion."""

    whole: Checkpoint
    place: int

    @classmethod
    def inside(cls, whole: Checkpoint, place: int, facts: Mapping[str, Any]) -> Self:
        """The files of one member."""
        start = file_of(place, "")
        files = {
            name.removeprefix(start): entry for name, entry in whole.files.items() if name.startswith(start)
        }
        made = cls(whole.path, dict(facts), str(facts["fingerprint"]), files, whole.origin, whole.revision)
        object.__setattr__(made, "whole", whole)
        object.__setattr__(made, "place", place)
        return made

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        """Its part of the weights."""
        start = f"{self.place}."
        every = self.whole.tensors(device)
        return {name.removeprefix(start): value for name, value in every.items() if name.startswith(start)}

    def file(self, name: str) -> bytes:
        """One of its files."""
        return self.whole.file(file_of(self.place, name))


class MemberView:
    """A view in which one member finds its arrays under their own names."""

    def __init__(self, view: View, place: int) -> None:
        self.view, self.place = view, place

    def __len__(self) -> int:
        return len(self.view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def within(self, keys: Any) -> MemberView:
        """The same member, of these documents alone."""
        return MemberView(self.view.within(keys), self.place)  # type: ignore[attr-defined]

    def nearest(self, probe: Any, k: int) -> Found:
        """By its own array."""
        lists = probe.lists and replace(probe.lists, array=named(self.place, probe.lists.array))
        return self.view.nearest(  # type: ignore[attr-defined]
            replace(probe, array=named(self.place, probe.array), lists=lists), k
        )

    def nearest_part(self, parts: Parts, k: int) -> Found:
        """By the best of its own parts."""
        return self.view.nearest_part(self._own(parts), k)

    def rescored(self, keys: Keys, parts: Parts, k: int) -> Found:
        """By its own parts, again."""
        return self.view.rescored(keys, self._own(parts), k)

    def _own(self, parts: Parts) -> Parts:
        scales = parts.scales and named(self.place, parts.scales)
        return replace(parts, array=named(self.place, parts.array), scales=scales)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """By the member's own arrays."""
        first = replace(plan.first, array=named(self.place, plan.first.array))
        if first.scales:
            first = replace(first, scales=named(self.place, first.scales))
        second = plan.rescore
        if second is not None:
            scales = second.scales and named(self.place, second.scales)
            second = replace(second, array=named(self.place, second.array), scales=scales)
        lists = plan.lists and replace(plan.lists, array=named(self.place, plan.lists.array))
        return self.view.candidates(replace(plan, first=first, rescore=second, lists=lists), k)

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Its own."""
        return self.view.rows(named(self.place, array), keys)

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        """Of its own lists."""
        return self.view.list_sizes(named(self.place, array))

    def sizes(self, name: str) -> NDArray[np.int64]:
        """Of its own lists."""
        return self.view.sizes(named(self.place, name))

    def array(self, name: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Its own."""
        return self.view.array(named(self.place, name), keys)


def named(place: int, name: str) -> str:
    """A member's array among those of all."""
    return f"of{place}_{name}"


def file_of(place: int, name: str) -> str:
    """A member's file among those of all."""
    return f"member{place}-{name}"


def together(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The members' arrays under names that differ."""
    return {named(place, name): array for place, one in enumerate(members) for name, array in one.items()}


def of_member(arrays: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One member's of them."""
    start = named(place, "")
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def one_query(queries: Queries, row: int) -> Queries:
    """The arrays of one query."""
    return {name: array[row : row + 1] for name, array in queries.items()}
