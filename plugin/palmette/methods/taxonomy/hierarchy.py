"""Hierarchies: which node lies above which, as flat arrays that hold a million nodes.

Edges point from a node to the more general ones (its parents). Nothing here is quadratic in the nodes: what is
reachable is written as one list of ancestors per node, and refused where those lists would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from palmette.data.rows import RowLists
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.methods.taxonomy.matches import Matches
from palmette.types import Document

__all__ = ["PARENT_KEYS", "Hierarchy"]

Rows = NDArray[np.int64]

PARENT_KEYS = ("parents", "parent")
"""Metadata that names a document's parents, unless another key is given."""
MAX_PAIRS = 300_000_000
"""Ancestors of all nodes together, at most: about 4 GB."""


@dataclass(frozen=True)
class Hierarchy:
    """A directed acyclic graph of nodes and their parents; several parents are welcome.

    Attributes:
        ids: The nodes, by row.
        names: What to call them.
        parents: Rows of the parents of each row.
    """

    ids: Sequence[str]
    names: Sequence[str]
    parents: RowLists

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError("a hierarchy needs at least one node")
        if len(self.rows) != len(self.ids):
            twice = next(id for row, id in enumerate(self.ids) if self.rows[id] != row)
            raise DuplicateIdError(f"the hierarchy has node {twice!r} twice; ids must differ")
        _ = self._order  # a cycle is refused at once, not in the middle of training

    @classmethod
    def of(
        cls, ids: Sequence[str], children: Rows, parents: Rows, names: Sequence[str] | None = None
    ) -> Self:
        """From parallel rows of children and parents; an edge given twice counts once."""
        size = max(1, len(ids))
        edges = np.unique(np.asarray(children, np.int64) * size + np.asarray(parents, np.int64))
        lists = RowLists.of(edges // size, edges % size, len(ids))
        return cls(ids, list(ids) if names is None else names, lists)

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str, str]], nodes: Iterable[str] | None = None) -> Self:
        """From (child, parent) ids.

        Args:
            edges: The edges.
            nodes: All ids, where nodes without edges exist or unknown ids are to be refused; by default those
                that the edges name.
        """
        listed = [_edge(position, edge) for position, edge in enumerate(edges)]
        named = [id for edge in listed for id in edge]
        ids = list(dict.fromkeys(named) if nodes is None else nodes)
        rows = {id: row for row, id in enumerate(ids)}
        if lost := [edge for edge in listed if edge[0] not in rows or edge[1] not in rows]:
            child, parent = lost[0]
            unknown = parent if child in rows else child
            raise InputError(
                f"{len(lost)} of {len(listed)} edges name nodes that are not there, such as {unknown!r} in "
                f"{child!r} → {parent!r}; add those nodes or leave the edges out"
            )
        pairs = np.array([(rows[child], rows[parent]) for child, parent in listed], np.int64).reshape(-1, 2)
        return cls.of(ids, *pairs.T)

    @classmethod
    def from_paths(cls, paths: Iterable[str], separator: str = ">") -> Self:
        """From paths, general first: ``"Animals > Dogs > Retrievers"``.

        A node's id is its whole path, so that two "Others" stay two; its name is the last part.
        """
        names: dict[str, str] = {}
        edges: dict[tuple[str, str], None] = {}
        for path in paths:
            steps = [step.strip() for step in path.split(separator)]
            if not all(steps):
                raise InputError(f"path {path!r:.80} has an empty step between its {separator!r}")
            ids = [f" {separator} ".join(steps[: depth + 1]) for depth in range(len(steps))]
            names |= dict(zip(ids, steps, strict=True))
            edges |= {(child, parent): None for parent, child in pairwise(ids)}
        made = cls.from_edges(edges, names)
        return cls(made.ids, list(names.values()), made.parents)

    @classmethod
    def from_documents(cls, documents: Sequence[Document], key: str | None = None) -> Self | None:
        """From the ids of parents in metadata (one id or a list), or ``None`` where no document has any.

        Args:
            documents: The nodes.
            key: The metadata key; by default ``"parents"`` or ``"parent"``, whichever is there.
        """
        keys = PARENT_KEYS if key is None else (key,)
        used = next((name for name in keys if any(d.metadata.get(name) for d in documents)), None)
        if used is None:
            if key is not None:
                raise InputError(f"no document has metadata {key!r} to name its parents by")
            return None
        edges = [(d.key, parent) for d in documents for parent in _parents(d, used)]
        made = cls.from_edges(edges, [d.key for d in documents])
        return cls(made.ids, [name_of(d) for d in documents], made.parents)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"Hierarchy({len(self)} nodes, {len(self.parents.values)} edges, depth {int(self.depths.max())})"
        )

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id → row."""
        return {id: row for row, id in enumerate(self.ids)}

    def row(self, id: str) -> int:
        """The row of a node."""
        if id not in self.rows:
            raise NotFoundError(
                f"the hierarchy has no node {id!r}; it has {len(self)}, such as {self.ids[0]!r}"
            )
        return self.rows[id]

    @cached_property
    def _order(self) -> tuple[Rows, Rows]:
        """Rows with parents before children, and the depth of each: the longest way up."""
        starts, children = self.children.starts.tolist(), self.children.values.tolist()
        missing = np.diff(self.parents.starts).tolist()  # parents not yet placed
        depths = [0] * len(self)
        order = [row for row, count in enumerate(missing) if not count]
        for row in order:  # grows while it is read
            for child in children[starts[row] : starts[row + 1]]:
                missing[child] -= 1
                depths[child] = max(depths[child], depths[row] + 1)
                if not missing[child]:
                    order.append(child)
        if len(order) < len(self):
            raise InputError(f"the hierarchy has a cycle: {self._cycle(missing)}; take one of its edges out")
        return np.array(order, np.int64), np.array(depths, np.int64)

    def _cycle(self, missing: Sequence[int]) -> str:
        """A cycle in words: every node that was never placed has a parent that was not either."""
        row = next(row for row, count in enumerate(missing) if count)
        seen: dict[int, None] = {}
        while row not in seen:
            seen[row] = None
            row = next(parent for parent in self.parents[row].tolist() if missing[parent])
        walked = list(seen)
        loop = [*walked[walked.index(row) :], row]
        words = [repr(self.ids[step]) for step in loop]
        return " → ".join(words if len(words) < 9 else [*words[:4], "…", *words[-4:]])

    @cached_property
    def depths(self) -> Rows:
        """[N] the longest way from a root: a node is deeper than all its ancestors."""
        return self._order[1]

    @cached_property
    def children(self) -> RowLists:
        """Rows of the children of each row."""
        owners = np.repeat(np.arange(len(self)), np.diff(self.parents.starts))
        return RowLists.of(self.parents.values, owners, len(self))

    def ancestors(self, row: int) -> Rows:
        """A node and all above it, nearest first."""
        return _walk(self.parents, row)

    def descendants(self, row: int) -> Rows:
        """A node and all below it, nearest first."""
        return _walk(self.children, row)

    def leaves(self) -> Rows:
        """Rows without children."""
        return np.flatnonzero(np.diff(self.children.starts) == 0)

    def matches(self, max_distance: int | None = None) -> Matches:
        """For every node: itself and its ancestors, with the length of the shortest way to each.

        Args:
            max_distance: Farther ancestors are left out; ``None`` for all.
        """
        size, tree = len(self), bool((np.diff(self.parents.starts) <= 1).all())
        reached = frontier = np.arange(size, dtype=np.int64) * (size + 1)  # node · N + ancestor
        keys, distances = [frontier], [np.zeros(size, np.int16)]
        total, distance = size, 0
        while len(frontier) and (max_distance is None or distance < max_distance):
            distance += 1
            owner, above = self.parents.flat(frontier % size)
            frontier = (frontier // size)[owner] * size + above
            if not tree:  # a second way to the same ancestor is longer, or as long
                frontier = np.unique(frontier)
                at = np.minimum(np.searchsorted(reached, frontier), len(reached) - 1)
                frontier = frontier[reached[at] != frontier]
                reached = np.sort(np.concatenate([reached, frontier]))
            total += len(frontier)
            if total > MAX_PAIRS:
                raise InputError(
                    f"the {size} nodes have more than {MAX_PAIRS} ancestors within distance {distance}: "
                    f"give max_distance (below {distance})"
                )
            keys.append(frontier)
            distances.append(np.full(len(frontier), distance, np.int16))
        flat, lengths = np.concatenate(keys), np.concatenate(distances)
        order = np.argsort(flat, kind="stable")
        flat, lengths = flat[order], lengths[order]
        starts = np.concatenate([[0], np.cumsum(np.bincount(flat // size, minlength=size))])
        return Matches(starts, (flat % size).astype(np.int32), lengths, size)

    def documents(self) -> list[Document]:
        """The nodes as documents, where a hierarchy is all there is: text and name are the node's name."""
        ids = self.ids
        return [
            Document(id, name, {"name": name, "parents": [ids[p] for p in self.parents[row]]})
            for row, (id, name) in enumerate(zip(ids, self.names, strict=True))
        ]


def name_of(document: Document) -> str:
    """What a node is called: ``name`` or ``title`` among metadata and fields, else its text."""
    for holder in (document.metadata, document.fields):
        for key in ("name", "title"):
            if isinstance(value := holder.get(key), str) and value.strip():
                return value.strip()
    return document.content


def _edge(position: int, edge: object) -> tuple[str, str]:
    if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) != 2:
        raise InputError(f"edge {position} must be (child id, parent id), got {edge!r:.80}")
    child, parent = edge
    if not isinstance(child, str) or not isinstance(parent, str):
        raise InputError(f"edge {position}: ids are str, got {edge!r:.80}")
    return child, parent


def _parents(document: Document, key: str) -> list[str]:
    """The parents that a document's metadata names: a str, a list of str, or nothing."""
    value = document.metadata.get(key)
    listed: object = [value] if isinstance(value, str) else value or []
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise InputError(
            f"document {document.id!r}: metadata {key!r} must be an id or a list of ids, got {value!r:.80}"
        )
    found = list(listed)
    if bad := [parent for parent in found if not isinstance(parent, str)]:
        raise InputError(
            f"document {document.id!r}: metadata {key!r} must hold ids (str), got {bad[0]!r:.80}"
        )
    return [parent for parent in found if parent]


def _walk(lists: RowLists, row: int) -> Rows:
    """Everything reachable from a row, breadth first."""
    seen = frontier = np.array([row], np.int64)
    while len(frontier):
        _, nearer = lists.flat(frontier)
        frontier = np.setdiff1d(nearer, seen)
        seen = np.concatenate([seen, frontier])
    return seen
