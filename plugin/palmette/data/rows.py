"""Arithmetic on rows: lists of rows per row, and which documents of a batch are known answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Positives", "RowLists", "groups"]

Rows = NDArray[np.int64]


def groups(texts: Iterable[str]) -> Rows:
    """[N] a number per text, the same for texts that differ only in case or in blanks at the ends."""
    seen: dict[str, int] = {}
    return np.asarray([seen.setdefault(text.strip().casefold(), len(seen)) for text in texts], np.int64)


@dataclass(frozen=True)
class RowLists:
    """A list of rows for each of N rows: ``values[starts[i]:starts[i + 1]]``."""

    starts: Rows
    values: Rows

    @classmethod
    def of(cls, keys: Rows, values: Rows, size: int) -> RowLists:
        """Gather ``values`` by ``keys`` (parallel, keys below ``size``)."""
        order = np.lexsort((values, keys))
        return cls(np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=size))]), values[order])

    def __getitem__(self, row: int) -> Rows:
        return self.values[self.starts[row] : self.starts[row + 1]]

    def flat(self, rows: Rows) -> tuple[Rows, Rows]:
        """The lists of ``rows`` on end, preceded by the place in ``rows`` that each value belongs to."""
        sizes = self.starts[rows + 1] - self.starts[rows]
        owner = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return owner, self.values[self.starts[rows][owner] + within]

    def sample(self, rows: Rows, count: int, random: np.random.Generator) -> Rows:
        """[B, count] draws with replacement from each row's list; −1 where the list is empty."""
        sizes = (self.starts[rows + 1] - self.starts[rows])[:, None]
        if not len(self.values):
            return np.full((len(rows), count), -1, np.int64)
        drawn = self.starts[rows][:, None] + random.integers(0, np.maximum(sizes, 1), (len(rows), count))
        return np.where(sizes > 0, self.values[np.minimum(drawn, len(self.values) - 1)], -1)


class Positives:
    """Known answers, for masking them out of a batch's negatives.

    A batch costs its queries' known answers, looked up among its distinct documents; never B² searches.
    """

    def __init__(self, queries: Rows, documents: Rows, query_groups: Rows, doc_groups: Rows) -> None:
        self.query_groups, self.doc_groups = query_groups, doc_groups
        size = int(query_groups.max(initial=-1)) + 1
        self.answers = RowLists.of(query_groups[queries], doc_groups[documents], size)

    def mask(self, query_rows: Rows, doc_rows: Rows) -> NDArray[np.bool_]:
        """[B, B'] true where the document is a known answer to the query, under whichever id."""
        if not len(query_rows) or not len(doc_rows):
            return np.zeros((len(query_rows), len(doc_rows)), bool)
        documents, inverse = np.unique(self.doc_groups[doc_rows], return_inverse=True)  # [U], [B']
        owner, answer = self.answers.flat(self.query_groups[query_rows])
        at = np.minimum(np.searchsorted(documents, answer), len(documents) - 1)
        known = np.zeros((len(query_rows), len(documents)), bool)  # [B, U]
        hits = documents[at] == answer
        known[owner[hits], at[hits]] = True
        return known[:, inverse]
