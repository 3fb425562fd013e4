"""Search within numbered lists: each query is compared with the documents of its chosen lists.

A list's rows stand next to each other in memory, a byte a number, so that visiting a list is reading on. Scores of the
bytes, with a bound of their error, shortlist; exact scores decide, as if every visited document had been compared.

Letters: Q queries, n rows of a block, L lists, d columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Mask, Rows
from palmette.machine.threads import get_threads, run_in_threads
from palmette.search.codes import Codes, QueryCodes
from palmette.search.flat import Block, Shortlist, exact_scores
from palmette.search.plan import Candidates

_GATHER = 16  # rows read on in the time that one is fetched from elsewhere
_WORTH_A_THREAD = 1 << 22  # numbers to multiply before a second thread pays
_EVERY = np.ones(0, np.bool_)  # stands for all rows


class ListOrder:
    """The rows of a stored array of list numbers [n, 1], in the order of their lists."""

    def __init__(self, lists: NDArray[Any]) -> None:
        self.lists = lists[:, 0]
        self.rows = np.argsort(self.lists, kind="stable").astype(np.int32)  # [n]
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(self.lists.astype(np.int64)))])  # [L + 1]
        self._last: tuple[Rows | None, Mask, Rows] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def all_sizes(self) -> Rows:
        """[L] rows of each list."""
        return np.diff(self.starts)

    def among(self, rows: Rows) -> tuple[Mask, Rows]:
        """Mark ``rows`` [n], and count them in each list [L].

        The last result is remembered: after a deletion the rows stay the same from search to search.
        """
        last = self._last
        if last is None or last[0] is not rows:
            allowed = np.zeros(len(self.lists), np.bool_)
            allowed[rows] = True
            sizes = np.bincount(self.lists[rows].astype(np.int64), minlength=len(self))
            last = self._last = (rows, allowed, sizes)
        return last[1:]

    def sizes(self, rows: Rows | None) -> Rows:
        """[L] how many of ``rows`` (``None`` for all) each list holds."""
        return self.all_sizes if rows is None else self.among(rows)[1]


class ListBlock(NamedTuple):
    """Rows to search: a block, its lists, and the rows that count (ascending; ``None`` for all)."""

    block: Block
    order: ListOrder
    rows: Rows | None

    def shortlist(self, query: QueryCodes, lists: Rows, k: int, threads: int) -> tuple[Rows, int]:
        """Shortlist rows for one query; returns how many documents were visited, too."""
        order = self.order
        known = lists[(lists >= 0) & (lists < len(order))]
        if self.rows is not None and len(self.rows) * _GATHER < order.all_sizes[known].sum():
            rows = self.rows[np.isin(order.lists[self.rows], known)]
            return rows, len(rows)
        codes = self.block.memo(("in lists", order), lambda: Codes.encode(self.block.data, order.rows))
        allowed = _EVERY if self.rows is None else order.among(self.rows)[0]

        def scan(chosen_lists: Rows) -> tuple[Rows, int]:
            from palmette.search import kernels

            heaps = np.full((1, k), -np.inf)
            encoded = tuple(codes), order.rows, allowed, order.starts, chosen_lists, tuple(query)
            rows, visited = kernels.scan_lists(*encoded, heaps)
            return rows, visited

        if threads == 1:
            return scan(lists)
        parts = run_in_threads([partial(scan, lists[at::threads]) for at in range(threads)])
        return np.concatenate([rows for rows, _ in parts]), sum(visited for _, visited in parts)


def top_k_in_lists(parts: Sequence[ListBlock], queries: Floats, chosen: Keys, k: int) -> Candidates:
    """Find the ``k`` best inner products of each query among the documents of its ``chosen`` lists [Q, β].

    Returns [Q, min(k, number of rows)], with −1 and −∞ where the lists hold fewer.
    """
    total = sum(len(part.block.keys) if part.rows is None else len(part.rows) for part in parts)
    parts = [part for part in parts if part.rows is None or len(part.rows)]
    queries, shape = np.ascontiguousarray(queries), (len(queries), min(k, total))
    out = Candidates(np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32))
    encoded = QueryCodes.encode(queries)
    each = sum(len(part.order.rows) / max(1, len(part.order)) for part in parts)
    work = int(each * np.count_nonzero(chosen >= 0) * queries.shape[1])
    threads = max(1, min(get_threads(), work // _WORTH_A_THREAD + 1, chosen.size))

    def search(query_numbers: Sequence[int], threads: int) -> int:
        """Search some of the queries in their chosen lists; returns how many documents were visited."""
        visited = 0
        for q in query_numbers:
            query, keys, scores = queries[q : q + 1], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
            for part in parts:
                rows, compared = part.shortlist(encoded.one(q), chosen[q], k, threads)
                near = Shortlist(np.zeros(len(rows), np.int64), rows, 0)
                keys.append(part.block.keys[rows])
                scores.append(exact_scores(part.block, near, query, "inner_product"))
                visited += compared
            candidate_keys, exact = np.concatenate(keys), np.concatenate(scores)
            order = np.lexsort((candidate_keys, -exact))[:k]
            out.keys[q, : len(order)], out.scores[q, : len(order)] = candidate_keys[order], exact[order]
        return visited

    if len(queries) == 1:
        visited = search([0], threads)
    else:
        visited = sum(run_in_threads([partial(search, range(at, len(queries), threads), 1) for at in range(threads)]))
    return Candidates(out.keys, out.scores, visited / max(1, len(queries)))


def add_sizes(sizes: Rows, more: Rows) -> Rows:
    """Add sizes of lists; either may know lists that the other does not."""
    longer, shorter = (sizes, more) if len(sizes) >= len(more) else (more, sizes)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
