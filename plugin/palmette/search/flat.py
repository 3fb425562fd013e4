"""Top-k over blocks of rows: exact, whatever the threads, batches and segments.

Overlaps of fixed-point numbers are sums of integers, exact at once. Other scores are computed twice: a fast pass, over
bytes (inner products, :mod:`palmette.search.codes`) or in any order (overlaps), shortlists what its error bound cannot
rule out, and sums in float64, in one fixed order, decide. Equal scores are ordered by key.

Example for the two best of four rows, whose fast scores may be wrong by .02:

    row              a          b          c          d
    fast score     .71        .69        .68        .60
    bounds       .69–.73    .67–.71    .66–.70    .58–.62       the second best lower bound is .67
    shortlist       a          b          c                     d cannot reach it
    exact          .709       .684       .692                   the best are a and c

Letters: Q queries, N rows of a block, d columns, F vectors of a document, m pairs of a query and a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import ONE, Floats, Keys, Rows, as_fixed, as_floats, fold_columns, highest
from palmette.machine.compiled import compiles_loops
from palmette.machine.threads import get_threads, run_in_threads
from palmette.search.codes import Codes, QueryCodes
from palmette.search.plan import Candidates, Metric, Score, ranked_by

PART = "part"
"""Evidence: the vector of a document that scores best."""

_BATCH = 128
"""Queries that share one pass over the rows."""
_PART_BATCH = 16
"""Queries that share one pass over rows of several parts."""
_TILE = 8192  # rows scored between two looks at the k best so far
_PART_TILE = 256  # documents that stay in the cache
_PIECE = 1 << 19  # numbers handled at once: they stay in the cache
_WORTH_A_THREAD = 1 << 22  # numbers to compare before a second thread pays
_PAIRS_IN_FULL = 512  # pairs of a query and a row that are compared in full at once

_T = TypeVar("_T")
_Pairs = tuple[Rows, Rows, Floats]  # query, row and score of each


class Memo:
    """Remembers what is derived from stored rows, across searches and threads."""

    def __init__(self) -> None:
        self._memo: dict[object, Any] = {}
        self._lock = threading.RLock()

    def memo(self, name: object, build: Callable[[], _T]) -> _T:
        """Return what ``build`` made the first time."""
        with self._lock:
            if name not in self._memo:
                self._memo[name] = build()
            value: _T = self._memo[name]
            return value


class Block(Memo):
    """Rows to search, with their ascending keys and what engines derive from them."""

    def __init__(self, data: NDArray[Any], keys: Keys) -> None:
        super().__init__()
        self.data, self.keys = data.view(), keys
        """[N, d] float32, float16, or ``uint16`` in fixed point."""
        self.data.flags.writeable = False

    def margin(self, queries: Floats, metric: Metric) -> Floats:
        """Bound how far apart two fast scores of a query can be that are really equal: [Q]."""

        def largest_norm() -> float:
            """Largest L2 (inner product) or L1 (overlap) norm of the rows."""
            norm, step = 0.0, max(1, _PIECE // self.data.shape[1])
            for start in range(0, len(self.data), step):
                piece = as_floats(self.data[start : start + step])
                squares = np.einsum("nd,nd->n", piece, piece)
                norms = np.abs(piece).sum(axis=1) if metric == "overlap" else np.sqrt(squares)
                norm = max(norm, float(norms.max()))
            return norm * 1.001

        largest = self.memo(("norm", metric), largest_norm)
        if metric == "overlap":
            total = np.abs(queries).sum(axis=1) + largest
        else:
            total = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1)) * largest
        # of a float32 sum of so many products, as a share of Σ|terms|, with room to spare
        rounding = (queries.shape[1] + 8) * 2.0**-24
        bound: Floats = 2 * np.asarray(total * rounding, np.float32)
        return bound


def as_block(stored: NDArray[Any], keys: Keys, fold: int = 1) -> Block:
    """Make a block of a stored array, with its neighbouring columns summed."""
    if fold != 1:
        return Block(fold_columns(stored, fold), keys)
    as_it_is = stored.dtype in (np.uint16, np.float16)
    return Block(np.ascontiguousarray(stored, None if as_it_is else np.float32), keys)


class Shortlist(NamedTuple):
    """Pairs of a query and a row that include the ``k`` best of every query."""

    of: Rows
    """[m] the query of each pair."""
    rows: Rows
    """[m]"""
    compared: int
    """Rows compared number by number, over all queries."""
    scores: Floats | None = None
    """[m] exact scores, where the engine has them."""


def top_k(
    blocks: Sequence[tuple[Block, Rows | None]], queries: Floats, metric: Metric, k: int, engine: ExactEngine
) -> Candidates:
    """Find the ``k`` best of all given rows for each query: [Q, min(k, number of rows)]."""
    # 1. room for the k best of each query
    compared = total = 0
    for block, rows in blocks:
        total += len(block.keys) if rows is None else len(rows)
    queries, shape = np.ascontiguousarray(queries), (len(queries), min(k, total))
    out = Candidates(np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32))
    for start in range(0, len(queries), _BATCH):
        batch, pairs = queries[start : start + _BATCH], []
        for block, rows in blocks:
            # 2. of each block the rows that bounds cannot rule out, and their exact scores
            if rows is None or len(rows):
                near = engine.shortlist(block, rows, batch, metric, k)
                scores = exact_scores(block, near, batch, metric) if near.scores is None else near.scores
                pairs.append((near.of + start, block.keys[near.rows], scores))
                compared += near.compared
        # 3. the best of all blocks
        fill_in(pairs, out)
    each = compared / max(1, len(queries))
    visited = each if engine.approximate else total
    return Candidates(out.keys, out.scores, visited)


def fill_in(pairs: Sequence[tuple[Rows, Keys, Floats]], out: Candidates) -> None:
    """Rank (query, key, score) of all blocks, by score and then by key, and write the best into ``out``."""
    if pairs:
        of, keys, scores = map(np.concatenate, zip(*pairs, strict=True))
        order = np.lexsort((keys, -scores, of))
        of, places = of[order], np.arange(len(of))
        first = np.ones(len(of), bool)
        first[1:] = of[1:] != of[:-1]
        # place among the pairs of its query
        rank = places - np.maximum.accumulate(np.where(first, places, 0))
        within_k = rank < out.keys.shape[1]
        of, rank, order = of[within_k], rank[within_k], order[within_k]
        out.keys[of, rank], out.scores[of, rank] = keys[order], scores[order]


def exact_scores(block: Block, near: Shortlist, queries: Floats, metric: Metric) -> Floats:
    """Score a shortlist: summed in float64 in one fixed order, rounded once."""
    scores = np.empty(len(near.rows), np.float32)
    if not compiles_loops() and metric == "inner_product":
        # By NumPy; the order of a sum in float64 shows in no bit of float32.
        step = max(1, _PIECE // block.data.shape[1])
        for start in range(0, len(scores), step):
            part = slice(start, start + step)
            values, vectors = as_floats(block.data[near.rows[part]]), queries[near.of[part]]
            scores[part] = np.einsum("md,md->m", values.astype(np.float64), vectors.astype(np.float64))
        return scores
    from palmette.search import kernels

    queries = np.ascontiguousarray(queries)
    unit = np.float32(1 / ONE if block.data.dtype == np.uint16 else 1)  # value of a stored 1
    converted = block.data.dtype == np.float16  # which compiled loops do not know
    step = max(1, _PIECE // block.data.shape[1]) if converted else len(scores)
    for start in range(0, len(scores), max(1, step)):
        part = slice(start, start + step)
        data, rows = block.data, near.rows[part]
        if converted:
            data, rows = as_floats(data[rows]), np.arange(len(rows))
        kernels.exact_scores(data, unit, rows, queries, near.of[part], metric == "overlap", scores[part])
    return scores


class ExactEngine:
    """Shortlists the rows that are not surely worse: they include the ``k`` best under exact scores.

    A subclass that is ``approximate`` may miss some of these, but has ``k`` (all there are, if fewer).
    """

    approximate = False

    def shortlist(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Shortlist:
        """Shortlist among ``rows`` (ascending; ``None`` for all)."""
        count = len(block.keys) if rows is None else len(rows)
        if metric == "overlap":
            return _by_overlap(block, np.arange(count) if rows is None else rows, queries, k)
        of, work = np.arange(len(queries)), count * len(queries)
        if count <= k or work <= _PAIRS_IN_FULL:
            near = np.tile(np.arange(count) if rows is None else rows, len(of))
            return Shortlist(np.repeat(of, count), near, work)
        if not compiles_loops():
            return _by_product(block, np.arange(count) if rows is None else rows, queries, k)
        codes: Codes = block.memo("codes", lambda: Codes.encode(block.data))
        of, near = codes.shortlist(rows, QueryCodes.encode(queries), k)
        return Shortlist(of, near, len(near))


def _by_product(block: Block, rows: Rows, queries: Floats, k: int) -> Shortlist:
    """Shortlist by float32 products of NumPy: rows that their rounding cannot rule out."""
    scores, step = np.empty((len(queries), len(rows)), np.float32), max(1, _PIECE // queries.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            scores[:, part] = queries @ as_floats(block.data[rows[part]]).T
        lowest = np.partition(scores, -k, axis=1)[:, -k] - block.margin(queries, "inner_product")
    of, at = np.nonzero(~(scores < lowest[:, None]))  # NaN stays: float64 decides
    return Shortlist(of, rows[at], scores.size)


def _by_overlap(block: Block, rows: Rows, queries: Floats, k: int) -> Shortlist:
    """Compare all of some rows."""
    data = block.data
    if data.dtype != np.uint16:
        data = block.memo("overlap", lambda: as_floats(block.data))
    fixed = as_fixed(queries) if data.dtype == np.uint16 else None
    margin = block.margin(queries, "overlap") if fixed is None else np.zeros(len(queries), np.float32)
    query_rows, work = queries if fixed is None else fixed, len(rows) * queries.size
    shares = np.array_split(rows, min(get_threads(), work // _WORTH_A_THREAD + 1, len(rows)))
    shortlists = run_in_threads([partial(_scan, data, share, query_rows, k, margin) for share in shares])
    lowest = np.partition(np.concatenate([best for _, best in shortlists], axis=1), -k, axis=1)[:, -k]
    of, near, scores = _at_least([pairs for pairs, _ in shortlists], lowest - margin)
    return Shortlist(of, near, len(rows) * len(queries), None if fixed is None else scores)


def _scan(data: NDArray[Any], rows: Rows, queries: NDArray[Any], k: int, margin: Floats) -> tuple[_Pairs, Floats]:
    """Find pairs in the rows of one thread at most ``margin`` [Q] under the k-th best; and the k best scores."""
    from palmette.search import kernels

    best = np.full((len(queries), k), kernels.LOWEST, np.float32)  # [Q, k] heaps
    pieces, size, limit = list[_Pairs](), 0, 2 * best.size + _TILE
    for start in range(0, len(rows), _TILE):
        tile = rows[start : start + _TILE]
        scores, lowest = overlap_scores(data, tile, queries), best[:, 0]
        if start == 0 and len(tile) > k:
            lowest = np.partition(scores, len(tile) - k, axis=1)[:, len(tile) - k]
        of, at = kernels.at_least(scores, lowest - margin)
        pieces.append((of, tile[at], scores[of, at]))
        kernels.push_all(best, of, pieces[-1][2])
        size += len(of)
        if size > limit or start + _TILE >= len(rows):
            pieces = [_at_least(pieces, best[:, 0] - margin)]
            size = len(pieces[0][0])
            limit = max(limit, 2 * size)
    return pieces[0], best


def _at_least(pieces: Sequence[_Pairs], least: Floats) -> _Pairs:
    """Pairs that score at least so much [Q]."""
    of, rows, scores = map(np.concatenate, zip(*pieces, strict=True))
    above = scores >= least[of]
    return of[above], rows[above], scores[above]


def overlap_scores(data: NDArray[Any], rows: Rows, queries: NDArray[Any]) -> Floats:
    """Scores [Q, len(rows)] of ascending rows of ``data`` [N, d], within their error bound.

    Those of two arrays in fixed point (``uint16``) are exact.
    """
    from palmette.search import kernels

    if data.dtype == np.uint16 != queries.dtype:
        data, rows = as_floats(data[rows]), np.arange(len(rows))
    scores = np.empty((len(queries), len(rows)), queries.dtype)
    kernels.overlaps(data, rows, queries, scores)
    return as_floats(scores)


# -- several vectors per document ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PartBlock:
    """Documents of several vectors each, with ascending keys."""

    keys: Keys
    data: NDArray[Any]
    """[n, F, d] int8, float16 or float32."""
    scales: Floats | None = None
    """[n, F] factors of the vectors."""

    def score(self, rows: Rows, of: Rows, by: Score) -> tuple[Floats, Rows]:
        """Score documents ``rows`` [m] for queries ``of`` [m]: scores, and the part that gave each.

        Each document is scored by itself, so that a score has the same bits in every search.
        """
        from palmette.search import kernels

        data = self.data
        scales = np.empty((len(data), 0), np.float32) if self.scales is None else self.scales
        if data.dtype == np.float16:  # which compiled loops do not know
            distinct, rows = np.unique(rows, return_inverse=True)
            data, scales = data[distinct].astype(np.float32), scales[distinct]
        scores, which = np.empty(len(rows), np.float32), np.empty(len(rows), np.int64)
        kernels.best_parts(data, scales, rows, of, by.queries, by.part_weights, scores, which)
        return scores, which

    def scan(self, rows: Rows, of: Rows, by: Score) -> Floats:
        """Score all ``rows`` for the queries ``of``: [len(of), len(rows)]."""
        out = np.empty((len(of), len(rows)), np.float32)

        def scan(start: int, stop: int) -> None:
            for low in range(start, stop, _PART_TILE):
                tile = rows[low : min(low + _PART_TILE, stop)]
                scores, _ = self.score(np.tile(tile, len(of)), np.repeat(of, len(tile)), by)
                out[:, low : low + len(tile)] = scores.reshape(len(of), -1)

        work = len(rows) * len(of) * int(np.prod(self.data.shape[1:]))
        threads = min(get_threads(), max(1, work // _WORTH_A_THREAD))
        edges = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
        run_in_threads([partial(scan, a, b) for a, b in pairwise(edges)])
        return out


def top_by_part(blocks: Sequence[tuple[PartBlock, Rows | None]], by: Score, k: int) -> Candidates:
    """Find the ``k`` best documents of every query by their best weighted vector."""
    chosen = [(block, np.arange(len(block.keys)) if rows is None else rows) for block, rows in blocks]
    total, count = sum(len(rows) for _, rows in chosen), len(by.queries)
    shape = count, min(k, total)
    out = Candidates(np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32))
    for start in range(0, count, _PART_BATCH):
        of, pairs = np.arange(start, min(start + _PART_BATCH, count)), []
        for block, rows in chosen:
            for query, scores in zip(of, block.scan(rows, of, by), strict=True):  # [n]
                near = highest(scores, out.keys.shape[1])
                pairs.append((np.full(len(near), query), block.keys[rows[near]], scores[near]))
        fill_in(pairs, out)
    return replace(rescore_parts([block for block, _ in blocks], by, out, k), visited=total)


def rescore_parts(
    blocks: Sequence[PartBlock], by: Score, candidates: Candidates, k: int, share: float = 0.0
) -> Candidates:
    """Rank candidates by their best weighted vector and ``share`` of their score; evidence says which vector."""
    keys, flat = candidates.keys, candidates.keys.reshape(-1)
    scores, which = np.full(keys.shape, -np.inf, np.float32), np.zeros(keys.shape, np.int64)
    for block in blocks:
        if len(block.keys):
            at = np.flatnonzero((flat >= block.keys[0]) & (flat <= block.keys[-1]))
            at = at[np.argsort(flat[at], kind="stable")]  # rows of a mapped file are read in their order
            rows = np.searchsorted(block.keys, flat[at])
            scores.flat[at], which.flat[at] = block.score(rows, at // keys.shape[1], by)
    if share:
        scores = np.float32(share) * candidates.scores + np.float32(1 - share) * scores
    return ranked_by(replace(candidates, evidence={PART: which}), scores, k)
