"""The documents that match each query, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows


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
        order = np.lexsort((distances, documents, queries))
        query, document, distance = queries[order], documents[order], distances[order]
        first = np.ones(len(query), bool)
        first[1:] = (query[1:] != query[:-1]) | (document[1:] != document[:-1])
        starts = np.concatenate([[0], np.cumsum(np.bincount(query[first], minlength=count))])
        return cls(starts, document[first].astype(np.int32), distance[first].astype(np.int16), size)

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

    def flat(self, queries: Rows) -> tuple[Rows, Rows]:
        """Matches of some queries: the place in ``queries`` and the place in ``documents`` of each."""
        sizes = self.counts[queries]
        owner = np.repeat(np.arange(len(queries)), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return owner, self.starts[queries][owner] + within

    def take(self, queries: Rows) -> Matches:
        """Matches of some queries, which become rows 0, 1 and so on."""
        places = self.flat(queries)[1]
        starts = np.concatenate([[0], np.cumsum(self.counts[queries])])
        return Matches(starts, self.documents[places], self.distances[places], self.size)

    def among(self, queries: Rows, documents: Rows) -> tuple[Rows, Rows]:
        """Pairs of some queries and some documents (ascending, distinct) that match: places of both, by query."""
        owner, places = self.flat(queries)
        document = self.documents[places]
        at = np.minimum(np.searchsorted(documents, document), len(documents) - 1)
        hits = documents[at] == document
        return owner[hits], at[hits]
