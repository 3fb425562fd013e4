"""Which documents match which queries, how far each lies, and how training draws from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from palmette.data.rows import RowLists
from palmette.errors import InputError

__all__ = ["Matches"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Matches:
    """S(q) of every query as flat arrays: query i has ``documents[starts[i]:starts[i + 1]]``, ascending.

    Attributes:
        starts: [Q + 1].
        documents: [P] rows of documents.
        distances: [P] how far each is from the query's exact match: steps in a hierarchy, or a proxy.
        size: How many documents there are.
    """

    starts: Rows
    documents: NDArray[np.int32]
    distances: NDArray[np.int16]
    size: int

    @classmethod
    def of(cls, queries: Rows, documents: Rows, distances: Rows, count: int, size: int) -> Matches:
        """From parallel rows, in any order; of a match given twice the shorter distance counts.

        Args:
            queries: [P].
            documents: [P].
            distances: [P].
            count: How many queries there are.
            size: How many documents there are.
        """
        if len(distances) and int(distances.min()) < 0:
            raise InputError(f"a distance must be 0 or more, got {int(distances.min())}")
        order = np.lexsort((distances, documents, queries))
        query, document, distance = queries[order], documents[order], distances[order]
        first = np.ones(len(query), bool)
        first[1:] = (query[1:] != query[:-1]) | (document[1:] != document[:-1])
        query, document, distance = query[first], document[first], distance[first]
        starts = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=count))])
        return cls(starts, document.astype(np.int32), distance.astype(np.int16), size)

    def __len__(self) -> int:
        """How many queries."""
        return len(self.starts) - 1

    @cached_property
    def counts(self) -> Rows:
        """[Q] |S(q)|."""
        return np.diff(self.starts)

    @cached_property
    def lists(self) -> RowLists:
        """The documents of each query."""
        return RowLists(self.starts, self.documents.astype(np.int64))

    def take(self, queries: Rows) -> Matches:
        """The matches of some queries, which become rows 0, 1 and so on."""
        places = self.places(queries)
        starts = np.concatenate([[0], np.cumsum(self.counts[queries])])
        return Matches(starts, self.documents[places], self.distances[places], self.size)

    def places(self, queries: Rows) -> Rows:
        """Where the matches of these queries lie in ``documents``, on end."""
        sizes = self.counts[queries]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places: Rows = np.repeat(self.starts[queries], sizes) + within
        return places

    @cached_property
    def owners(self) -> Rows:
        """[P] the query of each match."""
        return np.repeat(np.arange(len(self)), self.counts)

    def chances(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """[P] P(document | query) in proportion to weights [P]; zeros for a query whose weights are."""
        total = np.bincount(self.owners, weights=weights, minlength=len(self))[self.owners]
        return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)

    def frequencies(self, chances: NDArray[np.float64]) -> NDArray[np.float64]:
        """[documents] P(document) when queries are drawn alike and documents by ``chances`` [P]."""
        found = np.bincount(self.documents, weights=chances, minlength=self.size)
        return np.asarray(found / max(1.0, float(found.sum())), np.float64)

    def among(self, queries: Rows, documents: Rows) -> tuple[Rows, Rows]:
        """Where some queries match some documents (ascending, each once): places of either, by query."""
        owner, document = self.lists.flat(queries)
        at = np.minimum(np.searchsorted(documents, document), len(documents) - 1)
        hits = documents[at] == document
        return owner[hits], at[hits]
