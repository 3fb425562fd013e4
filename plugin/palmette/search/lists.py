"""Search within lists: documents lie in numbered lists, and a query looks into some of them.

A list's rows stand next to each other in memory, so that visiting it is reading on, not gathering. The fast scores
only propose, as everywhere; exact ones decide, and the result is that of comparing every visited document.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from palmette.search import kernels
from palmette.search.engine import Best
from palmette.search.kernels import Rows
from palmette.search.listing import ListedPart, Listing
from palmette.search.probe import Floats, Found, Lists
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["nearest_listed"]

_BATCH = 64  # queries that go over the lists together
_ROOM = 1 << 24  # scores held at a time
_GATHER = 8  # rows read on in the time that one is fetched from elsewhere
_SHARED = 4  # queries from which on reading each list once for all of them is faster
_ROOM_EACH = 1024  # contenders of one query that there is room for at first
_WORTH_A_THREAD = 1 << 22  # numbers to multiply before a second thread pays
_NEVER = np.float32(-1e38)  # below it lie rows that do not count


def nearest_listed(parts: Sequence[ListedPart], queries: Floats, lists: Lists, k: int) -> Found:
    """The ``k`` best inner products of each query [Q, d] among the documents of its lists.

    Returns keys and scores [Q, min(k, number of rows)], with −1 and −inf where the lists hold fewer.
    """
    total = sum(len(part.block.keys) if part.rows is None else len(part.rows) for part in parts)
    width, queries = min(k, total), np.ascontiguousarray(queries)
    keys = np.full((len(queries), width), -1, np.int64)
    scores = np.full((len(queries), width), -np.inf, np.float32)
    visited = 0
    for start in range(0, len(queries), _BATCH):
        batch, chosen = queries[start : start + _BATCH], lists.chosen[start : start + _BATCH]
        best = Best(len(batch), width)
        for part in parts:
            if part.rows is None or len(part.rows):
                of, rows, seen = _proposed(part, batch, chosen, k)
                exact = kernels.exact_scores(part.block.data, rows, batch, of, "inner_product")
                best.add(of, part.block.keys[rows], exact)
                visited += seen
        best.write(keys[start : start + _BATCH], scores[start : start + _BATCH])
    each = visited / max(1, len(queries))
    return Found(keys, scores, each, refined=each, read=each * queries[:1].nbytes)


class _Pairs(NamedTuple):
    """Queries with their lists, one pair each, in the order in which they are read."""

    of: Rows
    lists: Rows
    lengths: Rows

    @classmethod
    def of_part(cls, listing: Listing, chosen: Rows) -> _Pairs:
        """By list, so that all its queries share one reading; by query, where a row may come up in two lists."""
        of, at = np.nonzero((chosen >= 0) & (chosen < len(listing)))
        lists = chosen[of, at]
        filled = listing.whole[lists] > 0
        of, lists = of[filled], lists[filled]
        order = np.lexsort((of, lists)) if listing.lists.shape[1] == 1 else np.lexsort((lists, of))
        return cls(of[order], lists[order], listing.whole[lists[order]])


def _proposed(part: ListedPart, queries: Floats, chosen: Rows, k: int) -> tuple[Rows, Rows, int]:
    """(query, row) that may be among the ``k`` best, and how many documents were visited, over all queries."""
    pairs = _Pairs.of_part(part.listing, chosen)
    margins = 2 * kernels.error_bound(queries, part.block.scale("inner_product"), "inner_product")
    if part.rows is not None and len(part.rows) * _GATHER * len(queries) < pairs.lengths.sum():
        return _gathered(part, queries, chosen, margins, k)
    if len(queries) < _SHARED and get_threads() == 1:
        return _one_by_one(part, queries, pairs, margins, k)
    found_of, found_rows, visited = [], [], 0
    counts = np.bincount(pairs.of, pairs.lengths, minlength=len(queries)).astype(np.int64)  # [Q]
    for begin, end in _batches(counts):
        inside = (pairs.of >= begin) & (pairs.of < end)
        some = _Pairs(*(column[inside] for column in pairs)) if end - begin < len(queries) else pairs
        scores, places = _scored(part, queries, some, counts, begin)
        bounds = np.concatenate([[0], np.cumsum(counts[begin:end])])
        order = np.argsort(places, kind="stable")
        ordered, first = places[order], part.listing.starts[some.lists[order]]
        for q in range(begin, end):
            low, high = bounds[q - begin], bounds[q - begin + 1]
            at, seen = _contenders(scores[low:high], margins[q], k)
            pair = np.searchsorted(ordered, at + low, side="right") - 1
            found_rows.append(part.listing.rows[first[pair] + at + low - ordered[pair]].astype(np.int64))
            found_of.append(np.full(len(at), q))
            visited += seen
    return np.concatenate(found_of), np.concatenate(found_rows), visited


def _one_by_one(
    part: ListedPart, queries: Floats, pairs: _Pairs, margins: Floats, k: int
) -> tuple[Rows, Rows, int]:
    """The same for few queries: one pass that keeps the best as it goes."""
    from palmette.search import list_loops

    listing = part.listing
    data, several = listing.ordered(part.block), listing.lists.shape[1] > 1
    allowed = np.ones(0, np.bool_) if part.rows is None else listing.allowed(part.rows)
    found_of, found_rows, visited = [], [], 0
    for q, query in enumerate(queries):
        lists = pairs.lists[pairs.of == q]
        room = _ROOM_EACH + 4 * k
        while True:
            at, scores = np.empty(room, np.int64), np.empty(room, np.float32)
            heap = np.full(k, list_loops.NEVER, np.float32)
            seen = np.zeros(len(part.block.keys) if several else 0, np.bool_)
            held = (data, listing.rows, allowed, seen, listing.starts)
            kept, looked = list_loops.best(*held, lists, query, margins[q], heap, at, scores)
            if kept >= 0:
                break
            room *= 8  # very many equal scores
        found_rows.append(listing.rows[at[:kept]].astype(np.int64))
        found_of.append(np.full(kept, q))
        visited += looked
    return np.concatenate(found_of), np.concatenate(found_rows), visited


def _batches(counts: Rows) -> list[tuple[int, int]]:
    """Runs of queries whose scores fit into the room."""
    runs, begin, held = [], 0, 0
    for q, count in enumerate(counts.tolist()):
        if held and held + count > _ROOM:
            runs.append((begin, q))
            begin, held = q, 0
        held += count
    return [*runs, (begin, len(counts))]


def _scored(
    part: ListedPart, queries: Floats, pairs: _Pairs, counts: Rows, begin: int
) -> tuple[Floats, Rows]:
    """Fast scores of all pairs, each query's together, and where each pair's begin."""
    from palmette.search import list_loops

    listing, block = part.listing, part.block
    by_query = np.argsort(pairs.of, kind="stable")
    places = np.empty(len(by_query), np.int64)
    places[by_query] = np.cumsum(pairs.lengths[by_query]) - pairs.lengths[by_query]
    out = np.empty(int(pairs.lengths.sum()), np.float32)
    several = listing.lists.shape[1] > 1
    allowed = np.ones(0, np.bool_) if part.rows is None else listing.allowed(part.rows)
    data, work = listing.ordered(block), len(out) * queries.shape[1]
    threads = min(get_threads(), work // _WORTH_A_THREAD + 1, max(1, len(pairs.of)))
    shares = np.searchsorted(np.cumsum(pairs.lengths), np.arange(1, threads) * len(out) / threads)
    if several and threads > 1:  # all lists of a query in one thread: it must know what it has seen
        shares = np.searchsorted(pairs.of, pairs.of[np.minimum(shares, len(pairs.of) - 1)])
    bounds = [0, *shares.tolist(), len(pairs.of)]

    def run(low: int, high: int) -> None:
        seen = np.zeros(len(block.keys) if several else 0, np.int32)
        some = slice(low, high)
        list_loops.scan(
            data,
            listing.rows,
            allowed,
            seen,
            listing.starts,
            pairs.lists[some],
            pairs.of[some],
            queries,
            places[some],
            out,
        )

    run_in_threads([partial(run, *span) for span in pairwise(bounds)])
    return out, places


def _contenders(scores: Floats, margin: float, k: int) -> tuple[Rows, int]:
    """Where the scores are that rounding could make the ``k`` best, and how many are there at all."""
    there = int(np.count_nonzero(scores > _NEVER))
    if there <= k:
        return np.flatnonzero(scores > _NEVER), there
    floor = np.partition(scores, len(scores) - k)[len(scores) - k] - margin
    return np.flatnonzero(scores >= floor), there


def _gathered(
    part: ListedPart, queries: Floats, chosen: Rows, margins: Floats, k: int
) -> tuple[Rows, Rows, int]:
    """The same where so few rows count that they are fetched one by one."""
    assert part.rows is not None
    lists, found_of, found_rows, visited = part.listing.lists[part.rows], [], [], 0
    for q, looked in enumerate(chosen):
        table = np.zeros(len(part.listing), np.bool_)
        table[looked[(looked >= 0) & (looked < len(table))]] = True
        inside = part.rows[table[lists].any(axis=1)]
        visited += len(inside)
        if len(inside):
            scores = kernels.fast_scores(part.block.data, inside, queries[q : q + 1], "inner_product")[0]
            at, _ = _contenders(scores, float(margins[q]), k)
            found_rows.append(inside[at])
            found_of.append(np.full(len(at), q))
    if not found_of:
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    return np.concatenate(found_of), np.concatenate(found_rows), visited
