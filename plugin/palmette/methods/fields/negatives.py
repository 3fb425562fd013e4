"""Hard negatives: documents that look like answers and are none, one for each query of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.data.rows import RowLists
from palmette.store.local import LocalBackend

if TYPE_CHECKING:
    from palmette.data import RetrievalData

__all__ = ["HardNegativeSource", "by_words", "mined_from"]

Rows = NDArray[np.int64]
Ranks = Callable[[Sequence[str], int], Rows]
"""The best documents of some queries: rows [Q, k], −1 where there are fewer."""
Known = Callable[[Rows, Rows], NDArray[np.bool_]]
"""Which documents [M] answer which queries [B]: [B, M]."""


class HardNegativeSource:
    """Where hard negatives come from, and when they are looked for again."""

    def __init__(self, lists: RowLists, *, rounds: int = 1) -> None:
        self.lists, self.rounds = lists, rounds
        self._round = -1

    def due(self, progress: float) -> bool:
        """Whether a new round of mining begins at this share of the steps."""
        now = int(progress * self.rounds)
        before, self._round = self._round, now
        return now != before

    def sample(self, queries: Rows, draw: np.random.Generator) -> Rows:
        """One document for each query that has any: [≤ B], each once."""
        found = np.unique(self.lists.sample(queries, 1, draw))
        return found[found >= 0]


def mined_from(data: RetrievalData, queries: Rows, ranks: Ranks, known: Known, depth: int) -> RowLists:
    """The best documents of some queries that are not known to answer them, by query row."""
    found = ranks([data.query_texts[row] for row in queries.tolist()], depth)  # [Q, depth]
    wrong = found >= 0
    for start in range(0, len(queries), 256):
        part = slice(start, start + 256)
        distinct = np.unique(found[part][wrong[part]])
        answers = known(queries[part], distinct)  # [q, U]
        at = np.searchsorted(distinct, found[part]).clip(max=max(0, len(distinct) - 1))
        if len(distinct):
            wrong[part] &= ~np.take_along_axis(answers, at, axis=1)
    rows, columns = np.nonzero(wrong)
    return RowLists.of(queries[rows], found[rows, columns], len(data.queries))


def by_words(data: RetrievalData) -> Ranks:
    """Documents that share words with a query (BM25)."""

    def ranks(texts: Sequence[str], k: int) -> Rows:
        with LocalBackend.in_memory(()) as backend:
            with backend.write() as writer:
                writer.put(data.corpus, {})
            with backend.read() as view:
                found = view.matching(texts, k).keys  # [Q, k]
                rows: Rows = np.where(found >= 0, np.searchsorted(view.keys(), found), -1)
                return rows

    return ranks
