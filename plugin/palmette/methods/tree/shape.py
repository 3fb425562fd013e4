"""Which split nodes a tree has: a perfect tree, less the subtrees that were never grown or were pruned away.

Nodes are numbered as in a heap: the root is 0, node t has children 2t + 1 (left) and 2t + 2 (right). A node that
ends above the last level is *closed*: it is a leaf there, and stands for itself on every deeper level.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from palmette.errors import ConfigError

__all__ = ["Shape", "level_of", "name_of", "node_of"]

Nodes = NDArray[np.int64]


def level_of(node: int) -> int:
    """The root's is 0."""
    return (node + 1).bit_length() - 1


def name_of(node: int) -> str:
    """The way from the root, a letter a turn: node 4 (left, then right) is ``LR``; the root is empty."""
    return bin(node + 1)[3:].replace("0", "L").replace("1", "R")


def node_of(name: str) -> int:
    """The node that :func:`name_of` names so."""
    if set(name) - {"L", "R"}:
        raise ConfigError(f"a node is named by its turns from the root, such as 'LRL'; got {name!r}")
    return int("1" + name.replace("L", "0").replace("R", "1"), 2) - 1


class Shape:
    """The nodes of every level, left to right.

    Args:
        depth: Levels D of split nodes.
        closed: Nodes above level D that do not split.

    Attributes:
        levels: Nodes present on levels 0 … D; ``levels[D]`` are the leaves, the columns of a representation.
        splits: The nodes that split, level by level.
        opened: How many nodes split on each level 0 … D − 1.
    """

    def __init__(self, depth: int, closed: Iterable[int] = ()) -> None:
        self.depth, self.closed = depth, tuple(closed)
        shut, inner = set(self.closed), (1 << depth) - 1
        self.levels: list[Nodes] = [np.zeros(1, np.int64)]
        splits: list[int] = []
        self.opened: list[int] = []
        for level in range(depth):
            below: list[int] = []
            for node in self.levels[-1].tolist():
                if level_of(node) == level and node not in shut:
                    splits.append(node)
                    below += [2 * node + 1, 2 * node + 2]
                else:
                    below.append(node)
            self.opened.append(len(splits) - sum(self.opened))
            self.levels.append(np.array(below, np.int64))
        self.splits: Nodes = np.array(splits, np.int64)
        self._runs: dict[int, int | tuple[int, ...]] = {}
        self._moves: dict[int, tuple[Nodes, Nodes]] = {}
        idle = [node for node in self.closed if not (0 < node < inner and node in self.levels[-1])]
        if idle or list(self.closed) != sorted(shut):
            raise ConfigError(
                f"tree: closed nodes must be rising leaves above level {depth}, got {idle or closed}"
            )

    @property
    def perfect(self) -> bool:
        """Whether every path is D turns long."""
        return not self.closed

    @property
    def leaves(self) -> int:
        """Columns of the finest representation."""
        return len(self.levels[-1])

    def needed(self, level: int) -> int:
        """How many split nodes, the first in order, decide the nodes of a level."""
        return sum(self.opened[:level])

    def runs(self, level: int) -> int | tuple[int, ...]:
        """How many leaves each node of a level holds: one number when all hold the same."""
        if self.perfect:
            return 1 << (self.depth - level)
        if level in self._runs:  # every search asks
            return self._runs[level]
        at = {node: place for place, node in enumerate(self.levels[level].tolist())}
        counts = [0] * len(at)
        for leaf in self.levels[-1].tolist():
            node = leaf
            while node not in at:
                node = (node - 1) // 2
            counts[at[node]] += 1
        self._runs[level] = counts[0] if len(set(counts)) == 1 else tuple(counts)
        return self._runs[level]

    def moves(self, level: int) -> tuple[Nodes, Nodes]:
        """How the nodes of ``level + 1`` come from those of ``level``.

        Returns:
            For each of them, the place of the node it comes from, and what its probability is multiplied by:
            entry j of [left of every split, right of every split, 1].
        """
        if level in self._moves:
            return self._moves[level]
        here, opened = self.levels[level].tolist(), self.opened[level]
        split = {
            node: place
            for place, node in enumerate(n for n in here if level_of(n) == level and n not in self.closed)
        }
        source, factor = [], []
        for place, node in enumerate(here):
            if node in split:
                source += [place, place]
                factor += [split[node], opened + split[node]]
            else:
                source.append(place)
                factor.append(2 * opened)
        self._moves[level] = np.array(source, np.int64), np.array(factor, np.int64)
        return self._moves[level]

    def ancestors(self) -> tuple[Nodes, NDArray[np.float32]]:
        """For every leaf the splits on its way, as places in ``splits``, and the turns there.

        Returns:
            [C, D] places (0 where the way is shorter), and [C, D] turns: 1 left, −1 right, 0 none.
        """
        place = {node: at for at, node in enumerate(self.splits.tolist())}
        where = np.zeros((self.leaves, self.depth), np.int64)
        turns = np.zeros((self.leaves, self.depth), np.float32)
        for row, leaf in enumerate(self.levels[-1].tolist()):
            node = leaf
            while node:
                parent = (node - 1) // 2
                at = level_of(parent)
                where[row, at], turns[row, at] = place[parent], 1.0 if node % 2 else -1.0
                node = parent
        return where, turns
