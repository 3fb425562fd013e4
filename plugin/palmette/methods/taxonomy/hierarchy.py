"""Hierarchies and what they imply, as flat arrays that hold a million nodes.

Edges point from a node to the more general ones, its parents. Nothing here is quadratic in the nodes: reachable
ancestors are one list per node, and refused where those lists would not fit in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.config import parse_json
from palmette.data.retrieval import RowLists
from palmette.errors import DuplicateIdError, InputError, NotFoundError, shown
from palmette.types import Document

PARENT_KEYS = ("parents", "parent")
"""Metadata that names a document's parents; the first that any document has."""
AROUND = ".,;:!?()[]{}'\""
"""Punctuation that may surround a code."""
SHORTEST_CODE = 4
"""Characters of the shortest code: shorter ones are numbers that mean other things."""
MAX_PAIRS = 300_000_000
"""Ancestors of all nodes together, at most: about 4 GB."""


@dataclass(frozen=True)
class Matches:
    """Matching documents S(q) of every query: query i has ``documents[starts[i]:starts[i + 1]]``, ascending."""

    starts: Rows
    """[Q + 1]."""
    documents: NDArray[np.int32]
    """[P] rows of documents."""
    distances: NDArray[np.int16]
    """[P] distance from the query's exact match: steps in a hierarchy, or a proxy."""
    size: int
    """Number of documents."""

    @classmethod
    def of(cls, queries: Rows, documents: Rows, distances: Rows, count: int, size: int) -> Matches:
        """Sort parallel rows [P] into the matches of ``count`` queries among ``size`` documents.

        Of a match given twice the shorter distance counts.
        """
        order = np.argsort(distances, kind="stable")
        keys, first = np.unique(queries[order] * size + documents[order], return_index=True)
        starts = np.searchsorted(keys, np.arange(count + 1) * size)
        return cls(starts, (keys % size).astype(np.int32), distances[order][first].astype(np.int16), size)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def counts(self) -> Rows:
        """[Q] |S(q)|."""
        return np.diff(self.starts)

    @cached_property
    def owners(self) -> Rows:
        """[P] query of each match."""
        return np.repeat(np.arange(len(self)), self.counts)

    def take(self, queries: Rows) -> Matches:
        """Matches of some queries, which become rows 0, 1 and so on."""
        counts = self.counts[queries]
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[queries] - starts[:-1], counts)
        return Matches(starts, self.documents[places], self.distances[places], self.size)

    def among(self, queries: Rows, documents: Rows) -> tuple[Rows, Rows]:
        """Pairs of some queries and some documents (ascending, distinct) that match: places of both, by query."""
        matches = self.take(queries)
        at = np.minimum(np.searchsorted(documents, matches.documents), len(documents) - 1)
        hits = documents[at] == matches.documents
        return matches.owners[hits], at[hits]


@dataclass(frozen=True)
class Hierarchy:
    """A directed acyclic graph of nodes, by row, and their parents; a node may have several."""

    ids: Sequence[str]
    names: Sequence[str]
    parents: RowLists

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError("a hierarchy needs at least one node")
        if len(self.rows) != len(self.ids):
            twice = next(id for row, id in enumerate(self.ids) if self.rows[id] != row)
            raise DuplicateIdError(f"the hierarchy has node {twice!r} twice; ids must differ")
        _ = self.depths  # refuses a cycle at once, not in the middle of training

    @classmethod
    def from_edges(
        cls, edges: Iterable[tuple[str, str]], nodes: Iterable[str] | None = None, names: Sequence[str] | None = None
    ) -> Self:
        """Build from (child id, parent id); an edge given twice counts once.

        ``nodes`` gives all ids, where there are nodes without edges or unknown ids are to be refused; by default they
        are those of the edges. ``names`` are by default the ids.
        """
        listed: list[Any] = list(edges)  # a user's edges may be anything
        for position, edge in enumerate(listed):
            if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) != 2:
                raise InputError(f"edge {position} must be (child id, parent id), got {shown(edge)}")
            if not all(isinstance(id, str) for id in edge):
                raise InputError(f"edge {position}: ids are str, got {shown(edge)}")
        ids = list(dict.fromkeys(id for edge in listed for id in edge) if nodes is None else nodes)
        rows = {id: row for row, id in enumerate(ids)}
        if lost := [edge for edge in listed if not rows.keys() >= {*edge}]:
            child, parent = lost[0]
            unknown = parent if child in rows else child
            raise InputError(
                f"{len(lost)} of {len(listed)} edges name nodes that are not there, such as {unknown!r} in "
                f"{child!r} → {parent!r}; add those nodes or leave the edges out"
            )
        pairs = {(rows[child], rows[parent]) for child, parent in listed}
        children, parents = np.array(list(pairs), np.int64).reshape(-1, 2).T
        return cls(ids, ids if names is None else names, RowLists.of(children, parents, len(ids)))

    @classmethod
    def from_paths(cls, paths: Iterable[str], separator: str = ">") -> Self:
        """Build from paths, general first: ``"Animals > Dogs > Retrievers"``.

        A node's id is its whole path, so that two "Others" stay two; its name is the last part.
        """
        names: dict[str, str] = {}
        edges: dict[tuple[str, str], None] = {}
        for path in paths:
            steps = [step.strip() for step in path.split(separator)]
            if not all(steps):
                raise InputError(f"path {shown(path)} has an empty step between its {separator!r}")
            ids = [f" {separator} ".join(steps[: depth + 1]) for depth in range(len(steps))]
            names |= dict(zip(ids, steps, strict=True))
            edges |= {(child, parent): None for parent, child in pairwise(ids)}
        return cls.from_edges(edges, names, list(names.values()))

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], edges: Iterable[tuple[str, str]] | None = None
    ) -> Self | None:
        """Build from given edges, else from the ids of parents in metadata, one id or a list under ``"parents"``.

        Returns ``None`` if no document has any.
        """
        if edges is None:
            key = next((name for name in PARENT_KEYS if any(d.metadata.get(name) for d in documents)), None)
            if key is None:
                return None
            edges = [(d.key, parent) for d in documents for parent in _parents(d, key)]
        return cls.from_edges(edges, [d.key for d in documents], [name_of_node(d) for d in documents])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        edges, depth = len(self.parents.values), int(self.depths.max())
        return f"Hierarchy({len(self)} nodes, {edges} edges, depth {depth})"

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id → row."""
        return _rows_of(self.ids)

    def row(self, id: str) -> int:
        """Row of a node."""
        if id not in self.rows:
            raise NotFoundError(f"the hierarchy has no node {id!r}; it has {len(self)}, such as {self.ids[0]!r}")
        return self.rows[id]

    @cached_property
    def depths(self) -> Rows:
        """[N] longest way from a root: a node is deeper than all its ancestors."""
        missing = np.diff(self.parents.starts)  # parents not yet placed
        depths, level, depth = np.zeros(len(self), np.int64), np.flatnonzero(missing == 0), 0
        while len(level):
            depths[level] = depth
            below, ways = np.unique(self.children.flat(level)[1], return_counts=True)
            missing[below] -= ways
            level, depth = below[missing[below] == 0], depth + 1
        if missing.any():  # every node that was never placed has a parent that was not either
            row, path = int(missing.argmax()), dict[int, None]()
            while row not in path:
                path[row] = None
                row = next(parent for parent in self.parents[row].tolist() if missing[parent])
            words = [repr(self.ids[step]) for step in [*list(path)[list(path).index(row) :], row]]
            cycle = " → ".join(words if len(words) < 9 else [*words[:4], "…", *words[-4:]])
            raise InputError(f"the hierarchy has a cycle: {cycle}; take one of its edges out")
        return depths

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
        """Match every node with itself and its ancestors up to a distance (``None``: all), the shortest way to each."""
        size, tree = len(self), bool((np.diff(self.parents.starts) <= 1).all())
        levels = [np.arange(size, dtype=np.int64) * (size + 1)]  # node · N + ancestor, by distance
        while len(levels[-1]) and len(levels) - 1 != max_distance:
            owner, above = self.parents.flat(levels[-1] % size)
            reached = levels[-1][owner] // size * size + above
            if not tree:  # a second way to the same ancestor is longer, or as long
                reached = np.setdiff1d(reached, np.concatenate(levels))
            levels.append(reached)
            if sum(map(len, levels)) > MAX_PAIRS:
                raise InputError(
                    f"the {size} nodes have more than {MAX_PAIRS} ancestors within distance {len(levels) - 1}: "
                    f"give max_distance (below {len(levels) - 1})"
                )
        node, ancestor = np.divmod(np.concatenate(levels), size)
        return Matches.of(node, ancestor, np.repeat(np.arange(len(levels)), [*map(len, levels)]), size, size)

    def documents(self) -> list[Document]:
        """Nodes as documents whose text is their name, where there is no more than a hierarchy."""
        return [
            Document(id, name, {"name": name, "parents": [self.ids[p] for p in self.parents[row]]})
            for row, (id, name) in enumerate(zip(self.ids, self.names, strict=True))
        ]


@dataclass(frozen=True)
class Nodes:
    """Documents that a model was trained on, by row, as its checkpoint keeps them."""

    ids: Sequence[str]
    names: Sequence[str]
    digests: Sequence[str]
    """Hashes of their contents: a document whose text has changed is no longer the node."""
    hierarchy: Hierarchy | None
    """``None`` if the model was trained on pairs alone."""
    generality: NDArray[np.float32]
    """[N] log frequency as an answer; used without a hierarchy only."""

    @classmethod
    def of(cls, documents: Sequence[Document], hierarchy: Hierarchy | None, generality: NDArray[np.float32]) -> Self:
        """Nodes of a corpus."""
        names = [name_of_node(document) for document in documents]
        return cls([d.key for d in documents], names, [_digest(d) for d in documents], hierarchy, generality)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id → row."""
        return _rows_of(self.ids)

    @cached_property
    def _by_digest(self) -> dict[str, int]:
        return _rows_of(self.digests)

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return _rows_of([name.casefold() for name in self.names])

    def find(self, documents: Sequence[Document]) -> tuple[Rows, Rows]:
        """[B] rows of documents by their ids, and by their contents whatever their ids; −1 for unknown ones."""
        by_id = [self.rows.get(document.key, -1) for document in documents]
        by_content = [self._by_digest.get(_digest(document), -1) for document in documents]
        return np.array(by_id, np.int64), np.array(by_content, np.int64)

    def named(self, text: str) -> int:
        """Row of the node with this id or name, in any case."""
        row = self.rows.get(text, self._by_name.get(text.strip().casefold()))
        if row is None:
            raise NotFoundError(
                f"no node is called {shown(text)}: a model with queries='lookup' knows its {len(self)} nodes by id "
                f"or name, such as {self.names[0]!r}; train one with queries='text' to ask anything"
            )
        return row

    @cached_property
    def _by_code(self) -> dict[str, int]:
        """Code → row of the only node that has it as its id or in its name."""
        rows: dict[str, int] = {}
        for row, words in enumerate(map(str.split, map(" ".join, zip(self.ids, self.names, strict=True)))):
            for code in {word.strip(AROUND).casefold() for word in words if any(map(str.isdigit, word))}:
                rows[code] = row if rows.get(code, row) == row else -1
        return rows

    def spelled_out(self, text: str) -> str:
        """Name of the node that a code (one word with a digit, such as a part number) belongs to; else the text.

        Encoders read little in a code, and training asked for the node by its name.
        """
        code = text.strip().strip(AROUND).casefold()
        row = self._by_code.get(code, -1) if len(code) >= SHORTEST_CODE else -1
        return self.names[row] if row >= 0 else text

    def to_json(self) -> bytes:
        """Content of a checkpoint's ``nodes.json``."""
        facts: dict[str, Any] = {"ids": self.ids, "names": self.names, "digests": self.digests}
        if self.hierarchy is None:
            facts["generality"] = [round(float(value), 4) for value in self.generality]
        else:
            facts["parents"] = self.hierarchy.parents.values.tolist()
            facts["counts"] = np.diff(self.hierarchy.parents.starts).tolist()
        return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Nodes from the output of :meth:`to_json`."""
        facts, hierarchy = parse_json(data), None
        ids, names = facts["ids"], facts["names"]
        for listed in (ids, names, facts["digests"]):
            if len(listed) != len(ids) or not all(isinstance(text, str) for text in listed):
                raise ValueError("ids, names and digests must be as many texts")
        if "parents" in facts:
            counts, parents = (np.array(facts[name], np.int64) for name in ("counts", "parents"))
            if len(counts) != len(ids) or counts.sum() != len(parents):
                raise ValueError("counts of parents must be one per id and add up to their number")
            children = np.repeat(np.arange(len(ids)), counts)
            hierarchy = Hierarchy(ids, names, RowLists.of(children, parents, len(ids)))
        return cls(ids, names, facts["digests"], hierarchy, np.array(facts.get("generality", []), np.float32))


def _rows_of(keys: Sequence[str]) -> dict[str, int]:
    return {key: row for row, key in reversed(list(enumerate(keys)))}  # of equal ones the first


def name_of_node(document: Document) -> str:
    """Name of a node: ``name`` or ``title`` among metadata and fields, else its text."""
    for holder in (document.metadata, document.fields):
        for key in ("name", "title"):
            if isinstance(value := holder.get(key), str) and value.strip():
                return value.strip()
    return document.content


def _digest(document: Document) -> str:
    return hashlib.sha256(document.content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _parents(document: Document, key: str) -> list[str]:
    value, where = document.metadata.get(key), f"document {document.id!r}: metadata {key!r} must"
    listed: object = [value] if isinstance(value, str) else value or []
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise InputError(f"{where} be an id or a list of ids, got {shown(value)}")
    names = list(listed)
    if bad := [parent for parent in names if not isinstance(parent, str)]:
        raise InputError(f"{where} hold ids (str), got {shown(bad[0])}")
    return [parent for parent in names if parent]


def _walk(lists: RowLists, row: int) -> Rows:
    """Everything reachable from a row, breadth first."""
    reached = frontier = np.array([row], np.int64)
    while len(frontier):
        frontier = np.setdiff1d(lists.flat(frontier)[1], reached)
        reached = np.concatenate([reached, frontier])
    return reached
