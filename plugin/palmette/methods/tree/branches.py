"""The nodes of a tree over its stored columns: each owns a run of leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Branches"]

Ints = NDArray[np.int64]


class Branches:
    """Every node of a tree, parents before children, left before right.

    Args:
        leaves: Names of the leaves, left to right, as the columns of a representation; a name is the turns from
            the root, ``LRL``, and the root's is empty.

    Attributes:
        names: [N] names of all nodes.
        start: [N] first column of each node.
        stop: [N] the column after its last.
        left: [N] place of the left child, −1 for a leaf.
        right: [N] place of the right child, −1 for a leaf.
        parent: [N] place of the parent, −1 for the root.
        level: [N] turns from the root.
        leaves: [C] places of the leaves, left to right.
    """

    def __init__(self, leaves: Sequence[str]) -> None:
        runs: dict[str, list[int]] = {}
        for column, name in enumerate(leaves):
            for turns in range(len(name) + 1):
                runs.setdefault(name[:turns], [column, 0])[1] = column + 1
        self.names = list(runs)
        self.place = {name: place for place, name in enumerate(self.names)}
        self.start: Ints
        self.stop: Ints
        self.start, self.stop = np.array(list(runs.values()), np.int64).T
        self.left, self.right = (
            np.array([self.place.get(name + turn, -1) for name in self.names], np.int64) for turn in "LR"
        )
        self.parent = np.array(
            [self.place.get(name[:-1], -1) if name else -1 for name in self.names], np.int64
        )
        self.level = np.array([len(name) for name in self.names], np.int64)
        self.leaves = np.flatnonzero(self.left < 0)

    def __len__(self) -> int:
        return len(self.names)

    def masses(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Probability of every node, from that of the leaves: [n, C] → [n, N]."""
        sums = np.zeros((len(rows), rows.shape[1] + 1))
        np.cumsum(rows, axis=1, out=sums[:, 1:])
        whole: NDArray[np.float64] = sums[:, self.stop] - sums[:, self.start]
        return whole

    def ways(self) -> Ints:
        """The nodes from the root to each node, by level, and −1 below it: [N, D + 1] places."""
        ways = np.full((len(self), int(self.level.max()) + 1), -1, np.int64)
        for place, (parent, level) in enumerate(zip(self.parent.tolist(), self.level.tolist(), strict=True)):
            if place:
                ways[place] = ways[parent]
            ways[place, level] = place
        return ways

    def counted(self, leaves: Ints) -> Ints:
        """How many of these places lie under each node: [n] → [N]."""
        counts = np.bincount(leaves, minlength=len(self))
        for place in range(len(self) - 1, 0, -1):  # children come after their parents
            counts[self.parent[place]] += counts[place]
        return counts
