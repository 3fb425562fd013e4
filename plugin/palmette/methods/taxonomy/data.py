"""From what a user has to what training reads: queries, what each matches, and a share to validate by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.data import RetrievalData, iter_documents, load_data
from palmette.data.load import from_documents
from palmette.errors import InputError
from palmette.methods.taxonomy.hierarchy import Hierarchy, name_of
from palmette.methods.taxonomy.matches import Matches

__all__ = ["Asked", "Lessons", "TaxonomyData", "lessons"]

Rows = NDArray[np.int64]

DEV = 500
"""Queries to validate by, at most."""
DEV_SHARE = 10
"""Of one node in this many the name is kept from training, to validate by; its text remains."""


@dataclass(frozen=True, repr=False)
class TaxonomyData(RetrievalData):
    """A collection whose documents are the nodes of a hierarchy; queries name their exact matches, if there are any.

    Attributes:
        hierarchy: Which document lies above which; ``None`` where only matches are known.
    """

    hierarchy: Hierarchy | None = None

    @property
    def trainable(self) -> bool:
        """A hierarchy is enough: every node is asked for by its own name."""
        return self.hierarchy is not None or bool(self.qrels.get("train"))

    @classmethod
    def load(
        cls,
        data: Any,
        edges: Iterable[tuple[str, str]] | None = None,
        parents: str | None = None,
        seed: int = 0,
    ) -> TaxonomyData:
        """From a hierarchy, from documents that name their parents (or ``edges`` that do), or from pairs alone."""
        if isinstance(data, TaxonomyData):
            return data
        if isinstance(data, Hierarchy):
            return cls("hierarchy", data.documents(), {}, {}, hierarchy=data)
        if isinstance(data, Iterable) and not isinstance(data, str | Path | RetrievalData | Mapping):
            data = list(data)
        known = data if isinstance(data, RetrievalData) else None
        if known is None and _plain(data):
            documents = list(iter_documents(data))
            hierarchy = _hierarchy(documents, edges, parents)
            if hierarchy is not None:
                name = Path(data).name if isinstance(data, str | Path) else "documents"
                return cls(name, documents, {}, {}, hierarchy=hierarchy)
        loaded = known or load_data(data, seed=seed, kinds=())
        hierarchy = _hierarchy(list(loaded.corpus), edges, parents)
        if hierarchy is not None and not loaded.labelled:  # names serve better than self-made queries
            return cls(loaded.name, loaded.corpus, {}, {}, hierarchy=hierarchy)
        if not loaded.queries:
            loaded = from_documents(loaded.corpus, name=loaded.name, seed=seed).with_dev(0.1, seed)
        return cls(
            loaded.name,
            loaded.corpus,
            loaded.queries,
            loaded.qrels,
            loaded.labelled,
            loaded.remainders,
            hierarchy=hierarchy,
        )


def _plain(data: Any) -> bool:
    """Whether it is documents, not pairs: those are looked at by ``load_data``."""
    if isinstance(data, str | Path):
        return False
    first = next(iter(data), None)
    return first is not None and not isinstance(first, tuple) and not _asks(first)


def _asks(value: Any) -> bool:
    return hasattr(value, "query") or (
        isinstance(value, Mapping) and bool({"query", "question", "anchor"} & set(value))
    )


def _hierarchy(documents: Any, edges: Any, parents: str | None) -> Hierarchy | None:
    if edges is None:
        return None if parents == "" else Hierarchy.from_documents(documents, parents)
    made = Hierarchy.from_edges(edges, [document.key for document in documents])
    return Hierarchy(made.ids, [name_of(document) for document in documents], made.parents)


@dataclass(frozen=True)
class Asked:
    """Queries and what they match: texts, or (lookup) the rows of the nodes that ask."""

    texts: list[str]
    rows: Rows
    matches: Matches

    def __len__(self) -> int:
        return len(self.matches)

    def take(self, queries: Rows) -> Asked:
        """Some of them."""
        texts = [self.texts[row] for row in queries] if self.texts else []
        return Asked(texts, self.rows[queries], self.matches.take(queries))


@dataclass(frozen=True)
class Lessons:
    """What there is to learn, and to validate by.

    Attributes:
        train: The training queries.
        dev: Queries that training does not see; some that it does, where nodes have one text or none (tables).
    """

    train: Asked
    dev: Asked


def lessons(data: TaxonomyData, *, lookup: bool, max_distance: int | None, seed: int) -> Lessons:
    """The training and validation queries of a collection.

    With a hierarchy every node asks for itself and what lies above it, by its name and by its text; judged
    queries ask for their documents and what lies above those. Without one they ask for what they are judged
    to match, at the distance (best grade − grade).
    """
    nodes = len(data.corpus)
    closure = None if data.hierarchy is None else data.hierarchy.matches(max_distance)
    draw = np.random.default_rng(seed)
    if lookup:
        if closure is None:
            raise InputError(
                "queries='lookup' needs a hierarchy: give edges, parents in metadata, or a Hierarchy"
            )
        every, some = np.arange(nodes), np.sort(draw.permutation(nodes)[:DEV])
        return Lessons(Asked([], every, closure), Asked([], some, closure.take(some)))
    train, dev = (_judged(data, closure, split) for split in ("train", "dev"))
    if closure is None:
        return Lessons(train, dev)
    texts = [list(dict.fromkeys((name_of(node), node.content))) for node in data.corpus]
    if len(dev):
        return Lessons(_joined(train, _own(texts, closure)), dev)
    two = draw.permutation(np.flatnonzero([len(some) == 2 for some in texts]))
    held = {int(row): texts[row].pop(0) for row in np.sort(two[: min(DEV, len(two) // DEV_SHARE)])}
    train = _joined(train, _own(texts, closure))
    if held:
        rows = np.array(list(held), np.int64)
        return Lessons(train, Asked(list(held.values()), rows, closure.take(rows)))
    some = np.sort(draw.permutation(len(train))[:DEV])
    return Lessons(train, train.take(some))


def _own(texts: list[list[str]], closure: Matches) -> Asked:
    """Nodes asked for by their texts."""
    asked = np.repeat(np.arange(len(texts)), [len(some) for some in texts])
    return Asked([text for some in texts for text in some], asked, closure.take(asked))


def _judged(data: TaxonomyData, closure: Matches | None, split: str) -> Asked:
    """The queries of a split."""
    qrels = data.qrels.get(split, {})
    best = max((grade for judged in qrels.values() for grade in judged.values()), default=0)
    flat = [
        (row, data.rows[id], best - grade)
        for row, judged in enumerate(qrels.values())
        for id, grade in judged.items()
        if grade > 0
    ]
    query, document, distance = np.array(flat, np.int64).reshape(-1, 3).T
    if closure is not None:
        owner, above = closure.lists.flat(document)
        distance = closure.distances[closure.places(document)].astype(np.int64)
        query, document = query[owner], above
    matches = Matches.of(query, document, distance, len(qrels), len(data.corpus))
    asking = np.flatnonzero(matches.counts)  # without an answer there is nothing to learn
    texts = [data.queries[id] for id in qrels]
    return Asked([texts[row] for row in asking], np.full(len(asking), -1), matches.take(asking))


def _joined(a: Asked, b: Asked) -> Asked:
    matches = Matches(
        np.concatenate([a.matches.starts, a.matches.starts[-1] + b.matches.starts[1:]]),
        np.concatenate([a.matches.documents, b.matches.documents]),
        np.concatenate([a.matches.distances, b.matches.distances]),
        a.matches.size,
    )
    return Asked(a.texts + b.texts, np.concatenate([a.rows, b.rows]), matches)
