"""Search within lists: documents lie in numbered lists, and a query looks into some of them.

A list's rows stand next to each other in memory, so that visiting it is reading on, not gathering; and they stand there
as bytes, since it is reading that takes the time. Their scores only propose, as everywhere; exact ones decide, and the
result is that of comparing every visited document.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from palmette.search import kernels
from palmette.search.kernels import Rows
from palmette.search.listing import ListedPart, unit_of
from palmette.search.probe import Floats, Found, Keys, Lists
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["nearest_listed"]

_GATHER = 16  # rows read on in the time that one is fetched from elsewhere
_ROOM_EACH = 1024  # contenders of one query that there is room for at first
_WORTH_A_THREAD = 1 << 22  # numbers to multiply before a second thread pays
_EVERY = np.ones(0, np.bool_)  # stands for all rows


def nearest_listed(parts: Sequence[ListedPart], queries: Floats, lists: Lists, k: int) -> Found:
    """The ``k`` best inner products of each query [Q, d] among the documents of its lists.

    Returns keys and scores [Q, min(k, number of rows)], with −1 and −inf where the lists hold fewer.
    """
    total = sum(len(part.block.keys) if part.rows is None else len(part.rows) for part in parts)
    parts = [part for part in parts if part.rows is None or len(part.rows)]
    width, queries = min(k, total), np.ascontiguousarray(queries)
    keys = np.full((len(queries), width), -1, np.int64)
    scores = np.full((len(queries), width), -np.inf, np.float32)
    lengths = np.sqrt(np.einsum("qd,qd->q", queries, queries)) * np.float32(1.001)
    threads = _threads(parts, queries, lists.chosen)

    def answer(some: Sequence[int], threads: int) -> tuple[int, int]:
        visited = refined = 0
        for q in some:
            asked = _Asked(queries[q : q + 1], lengths[q], lists.chosen[q], k, threads)
            found, exact, looked, compared = _best(parts, asked)
            keys[q, : len(found)], scores[q, : len(found)] = found, exact
            visited, refined = visited + looked, refined + compared
        return visited, refined

    every = range(len(queries))
    if len(queries) > 1:
        shares = [partial(answer, every[at::threads], 1) for at in range(threads)]
        visited, refined = np.sum(run_in_threads(shares), axis=0).tolist()
    else:
        visited, refined = answer(every, threads)
    each, more = visited / max(1, len(queries)), refined / max(1, len(queries))
    read = each * queries.shape[1] + more * queries[:1].nbytes
    return Found(keys, scores, each, refined=more, read=read)


class _Asked(NamedTuple):
    """One query [1, d], at least its length, the lists it looks into, and how many documents and threads it wants."""

    query: Floats
    length: np.float32
    lists: Rows
    k: int
    threads: int


def _threads(parts: Sequence[ListedPart], queries: Floats, lists: Keys) -> int:
    """How many are worth it, by about how much there is to multiply."""
    if get_threads() == 1:
        return 1
    each = sum(len(part.listing.rows) / max(1, len(part.listing)) for part in parts)
    work = int(each * np.count_nonzero(lists >= 0) * queries.shape[1])
    return max(1, min(get_threads(), work // _WORTH_A_THREAD + 1, lists.size))


def _best(parts: Sequence[ListedPart], asked: _Asked) -> tuple[Keys, Floats, int, int]:
    """Keys and scores of the best; how many documents were visited, and how many compared in full."""
    keys, scores, visited = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0
    for part in parts:
        rows, looked = _proposed(part, asked)
        of = np.zeros(len(rows), np.int64)
        keys.append(part.block.keys[rows])
        scores.append(kernels.exact_scores(part.block.data, rows, asked.query, of, "inner_product"))
        visited += looked
    found, exact = np.concatenate(keys), np.concatenate(scores)
    order = np.lexsort((found, -exact))[: asked.k]
    return found[order], exact[order], visited, len(found)


def _proposed(part: ListedPart, asked: _Asked) -> tuple[Rows, int]:
    """Rows that may be among the best, and how many were visited."""
    from palmette.search import list_loops

    lists, data = asked.lists, part.block.data
    if part.rows is not None:
        lists = lists[(lists >= 0) & (lists < len(part.listing))]
    if part.rows is not None and len(part.rows) * _GATHER < part.listing.whole[lists].sum():
        rows = part.rows[np.isin(part.listing.lists[part.rows], lists).any(axis=1)]
        visited = len(rows)
    else:
        rows, visited = _scanned(part, asked)
    if len(rows) > asked.k:  # few enough to look at the numbers themselves
        heap, room = np.full(asked.k, kernels.NEVER, np.float32), np.empty(len(rows), np.float32)
        off = asked.length * np.float32(
            kernels.rounding_of(data.shape[1]) * part.block.scale("inner_product")
        )
        kept = list_loops.narrow(data, unit_of(data), rows, asked.query[0], 2 * off, heap, room)
        rows = rows[:kept]
    return rows, visited


def _scanned(part: ListedPart, asked: _Asked) -> tuple[Rows, int]:
    """Rows that may be among the best by their bytes: one pass that keeps them as it goes."""
    from palmette.search import list_loops

    listing, codes, k = part.listing, part.listing.codes(part.block), asked.k
    several = listing.lists.shape[1] > 1
    allowed = _EVERY if part.rows is None else listing.allowed(part.rows)

    def run(lists: Rows) -> tuple[Rows, int]:
        room = _ROOM_EACH + 4 * k
        while True:
            rows, scores = np.empty(room, np.int64), np.empty(room, np.float32)
            heap = np.full(k, kernels.NEVER, np.float32)
            seen = np.zeros(len(part.block.keys), np.bool_) if several else _EVERY
            held = (*codes, listing.rows, allowed, seen, listing.starts)
            kept, visited = list_loops.best(*held, lists, asked.query[0], asked.length, heap, rows, scores)
            if kept >= 0:
                return rows[:kept], visited
            room *= 8  # very many equal scores

    if asked.threads == 1 or several:  # what comes up twice is seen by one thread
        return run(asked.lists)
    found = run_in_threads([partial(run, asked.lists[at :: asked.threads]) for at in range(asked.threads)])
    return np.concatenate([rows for rows, _ in found]), sum(visited for _, visited in found)
