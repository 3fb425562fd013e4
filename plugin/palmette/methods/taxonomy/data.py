"""Users' data → training queries and their matches; how training draws from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.data import RetrievalData, load_data
from palmette.errors import InputError
from palmette.methods.taxonomy.hierarchy import Hierarchy, Matches, name_of_node

DEV = 500
"""Validation queries, at most."""
DEV_SHARE = 10
"""One node in this many has its name held out for validation; its text remains in training."""
MOST_MATCHES = 64
"""Matches of one query per draw of ``every``, at most, so that a batch stays a batch."""


@dataclass(frozen=True, repr=False)
class TaxonomyData(RetrievalData):
    """Collection whose documents are the nodes of a hierarchy; queries, if there are any, name their exact matches."""

    hierarchy: Hierarchy | None = None
    """``None`` where only matches are known."""

    @property
    def trainable(self) -> bool:
        """A hierarchy is enough: every node is a query for itself by its own name."""
        return self.hierarchy is not None or bool(self.qrels.get("train"))

    @classmethod
    def load(cls, data: Any, edges: Iterable[tuple[str, str]] | None = None, seed: int = 0) -> TaxonomyData:
        """Load a hierarchy, documents that name their parents (or ``edges`` that do), or pairs alone."""
        if isinstance(data, TaxonomyData):
            return data
        if isinstance(data, Hierarchy):
            return cls("hierarchy", data.documents(), {}, {}, hierarchy=data)
        loaded = data if isinstance(data, RetrievalData) else load_data(data, seed=seed)
        hierarchy = Hierarchy.from_documents(loaded.corpus, edges)
        if hierarchy is None and not loaded.labelled:
            raise InputError(
                f"{loaded.name}: no document names its parents in metadata ('parents'), and there are no pairs of "
                "query and document: name them, or give edges= or pairs"
            )
        known = {field.name: getattr(loaded, field.name) for field in fields(RetrievalData)}
        return cls(**known, hierarchy=hierarchy)


@dataclass(frozen=True)
class TrainingQueries:
    """Queries and their matches."""

    inputs: NDArray[Any]
    """[Q] texts, or rows of the nodes in a lookup table."""
    matches: Matches

    def __len__(self) -> int:
        return len(self.matches)

    def take(self, queries: Rows) -> TrainingQueries:
        """Some of the queries."""
        return TrainingQueries(self.inputs[queries], self.matches.take(queries))


def training_queries(
    data: TaxonomyData, *, lookup: bool, max_distance: int | None, seed: int
) -> tuple[TrainingQueries, TrainingQueries]:
    """Training and validation queries of a collection.

    With a hierarchy every node is a query, by its name and by its text, for itself and its ancestors; judged queries
    match their documents and the ancestors of those. Without one they match what they are judged to, at the distance
    (best grade − grade). Validation queries are not trained on, except where nodes have one text or none (tables).
    """
    nodes = len(data.corpus)
    closure = None if data.hierarchy is None else data.hierarchy.matches(max_distance)
    draw = np.random.default_rng(seed)
    if lookup:
        if closure is None:
            raise InputError("queries='lookup' needs a hierarchy: give edges, parents in metadata, or a Hierarchy")
        train = TrainingQueries(np.arange(nodes), closure)
        return train, train.take(np.sort(draw.permutation(nodes)[:DEV]))
    train, dev = (_judged(data, closure, split) for split in ("train", "dev"))
    if closure is None:
        return train, dev
    texts = [list(dict.fromkeys((name_of_node(node), node.content))) for node in data.corpus]
    if not len(dev):
        two = np.flatnonzero([len(names) == 2 for names in texts])
        dev_rows = np.sort(draw.permutation(two)[: min(DEV, len(two) // DEV_SHARE)])
        dev = TrainingQueries(np.array([texts[row].pop(0) for row in dev_rows], object), closure.take(dev_rows))
    judged, own = train.matches, closure.take(np.repeat(np.arange(nodes), [len(names) for names in texts]))
    matches = Matches(
        np.concatenate([judged.starts, judged.starts[-1] + own.starts[1:]]),
        np.concatenate([judged.documents, own.documents]),
        np.concatenate([judged.distances, own.distances]),
        nodes,
    )
    train = TrainingQueries(np.array([*train.inputs, *chain.from_iterable(texts)], object), matches)
    return train, dev if len(dev) else train.take(np.sort(draw.permutation(len(train))[:DEV]))


def _judged(data: TaxonomyData, closure: Matches | None, split: str) -> TrainingQueries:
    """Queries of a split that have matches."""
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
        above = closure.take(document)
        query, document = query[above.owners], above.documents.astype(np.int64)
        distance = above.distances.astype(np.int64)
    matches = Matches.of(query, document, distance, len(qrels), len(data.corpus))
    queries = TrainingQueries(np.array([data.queries[id] for id in qrels], object), matches)
    return queries.take(np.flatnonzero(matches.counts))


@dataclass(frozen=True)
class Sampler:
    """Draws matches of each query."""

    matches: Matches
    kind: Literal["every", "regular", "heavy-tail"] = "every"
    """``every`` takes all matches of a query, the others one: ``regular`` any of them, ``heavy-tail`` in proportion to
    its distance (the exact match never).
    """

    def __post_init__(self) -> None:
        if self.kind == "heavy-tail" and not (self.matches.distances > 0).any():
            raise InputError(
                "no match lies at a distance above 0: heavy-tail sampling has nothing to draw; give a hierarchy, "
                "or grades, or use another sampling"
            )

    def draw(self, queries: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
        """Drawn matches of some queries: the place among ``queries`` (ascending) and the document of each."""
        random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        if self.kind == "every":
            matches = self.matches.take(queries)
            owner, documents = matches.owners, matches.documents
            if matches.counts.max(initial=0) > MOST_MATCHES:
                order = np.lexsort((random.random(len(owner)), owner))  # shuffled within each query
                chosen = np.sort(order[np.arange(len(owner)) - matches.starts[owner] < MOST_MATCHES])
                owner, documents = owner[chosen], documents[chosen]
        else:
            starts, ends = self.matches.starts[queries], self.matches.starts[queries + 1]
            low, high = self._sums[starts], self._sums[ends]
            owner = np.flatnonzero(high > low)
            target = (low + random.random(len(queries)) * (high - low))[owner]
            places = np.searchsorted(self._sums, target, side="right") - 1
            documents = self.matches.documents[np.clip(places, starts[owner], ends[owner] - 1)]
        return owner, documents.astype(np.int64)

    @cached_property
    def _probability(self) -> NDArray[np.float64]:
        """[P] P(document | query) of one draw."""
        owners, distances = self.matches.owners, self.matches.distances.astype(np.float64)
        if self.kind != "heavy-tail":
            return np.asarray(1 / self.matches.counts[owners])
        total = np.bincount(owners, distances, len(self.matches))[owners]
        return np.asarray(distances / np.maximum(total, 1))

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(self._probability)])  # [P + 1]

    @cached_property
    def log_frequencies(self) -> torch.Tensor:
        """[documents] log P(a query draws this document); floor 1/P for documents never drawn."""
        matches, weights = self.matches, self._probability
        if self.kind == "every":
            weights = np.minimum(1.0, MOST_MATCHES / np.maximum(1, matches.counts))[matches.owners]  # [P]
        drawn = np.bincount(matches.documents, weights=weights, minlength=matches.size)
        total = len(matches) if self.kind == "every" else float(weights.sum())
        frequency, least = drawn / max(1.0, total), 1 / max(1, len(matches.documents))
        return torch.from_numpy(np.log(np.where(frequency > 0, frequency, least)).astype(np.float32))
