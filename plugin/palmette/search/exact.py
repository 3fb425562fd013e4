"""The engine without extras: fast scores of every row, and all that rounding could have hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.search import kernels
from palmette.search.block import Block, Hits, Proposals
from palmette.search.columns import Columns
from palmette.search.fixed import ONE, as_parts
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Metric
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["ExactEngine", "rank_within"]

_TILE = 8192  # rows scored between two looks at the running threshold
_MANY, _WIDE = 4096, 64  # rows and columns from which on columns are worth having
_BATCH, _MANY_IN_BATCH = 4, 1 << 15  # rows, for queries that share the reading of each row
_SHARE, _PER_HIT = (
    0.15,
    50,
)  # of the rows that must be wanted, and rows per hit: else comparing them is as fast
_ASKED = 128  # queries answered by comparing all rows before columns are built: as long as that takes, about
_WORTH_A_THREAD = 1 << 22  # numbers to compare before a second thread pays


class ExactEngine:
    """Compares every wanted row that is not surely worse, and proposes what rounding errors could have hidden."""

    approximate = False

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        return self._narrowed(block, rows, queries, metric, k) or self._scanned(
            block, rows, queries, metric, k
        )

    def hits(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Hits | None:
        """It looks everywhere."""
        return None

    def _narrowed(
        self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int
    ) -> Proposals | None:
        """By columns, where that is possible and worth it."""
        count = len(block.keys) if rows is None else len(rows)
        block.asked += len(queries)
        many = _MANY if len(queries) < _BATCH else _MANY_IN_BATCH
        worth = count >= max(many, _SHARE * len(block.keys), _PER_HIT * k) and block.asked > _ASKED
        if metric != "overlap" or not worth or block.data.shape[1] < _WIDE:
            return None
        columns = block.keep("columns", lambda: Columns.build(block.data))
        asked = as_parts(queries) if block.data.dtype == np.uint16 else _fractions(queries)
        if columns is None or asked is None:
            return None
        exact = asked.dtype == np.uint16
        margin = 2 * kernels.error_bound(queries, 0 if exact else block.scale(metric), metric) * (not exact)
        return columns.search(rows, asked, margin, k)

    def _scanned(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        rows = block.keep("all rows", lambda: np.arange(len(block.keys))) if rows is None else rows
        margin = 2 * kernels.error_bound(queries, block.scale(metric), metric)
        work = len(rows) * block.data.shape[1] * len(queries)
        # BLAS, behind inner products, has threads of its own.
        parts = 1 if metric == "inner_product" else min(get_threads(), work // _WORTH_A_THREAD + 1, len(rows))
        scans = [_Scan(block.data, part, queries, metric, k, margin) for part in np.array_split(rows, parts)]
        of, proposed = _Contenders.join(run_in_threads([scan.run for scan in scans])).proposals()
        compared = len(rows) * len(queries)
        return Proposals(of, proposed, compared, compared * block.data[0].nbytes)


@dataclass
class _Scan:
    """One thread's share of a search."""

    data: NDArray[Any]
    rows: Rows
    queries: Floats
    metric: Metric
    k: int
    margin: Floats

    def run(self) -> _Contenders:
        found = _Contenders(self.k, self.margin)
        for start in range(0, len(self.rows), _TILE):
            tile = self.rows[start : start + _TILE]
            found.add(kernels.fast_scores(self.data, tile, self.queries, self.metric), tile)
        return found


class _Contenders:
    """Rows whose fast score is at most ``margin`` [Q] under the k-th best fast score seen so far."""

    def __init__(self, k: int, margin: Floats) -> None:
        self.k, self.margin = k, margin
        # [Q, k] a heap of each: the least stands first
        self.best = np.full((len(margin), k), kernels.NEVER, np.float32)
        self.pieces: list[tuple[Rows, Rows, Floats]] = []  # (query, row, score)
        self.size, self.limit = 0, 2 * k * len(margin) + _TILE

    def add(self, scores: Floats, rows: Rows) -> None:
        """Take the contenders of a tile: scores [Q, len(rows)]."""
        from palmette.search import loops

        floor = self.best[:, 0]
        if self.size == 0 and len(rows) > self.k:
            floor = np.partition(scores, len(rows) - self.k, axis=1)[:, len(rows) - self.k]
        of, at = loops.reaching(scores, floor - self.margin)
        self._append(of, rows[at], scores[of, at])

    def _append(self, of: Rows, rows: Rows, scores: Floats) -> None:
        from palmette.search import loops

        loops.push_all(self.best, of, scores)
        self.pieces.append((of, rows, scores))
        self.size += len(of)
        if self.size > self.limit:
            self._tighten()
            self.limit = max(self.limit, 2 * self.size)

    def _tighten(self) -> None:
        of, rows, scores = (np.concatenate(parts) for parts in zip(*self.pieces, strict=True))
        kept = scores >= (self.best[:, 0] - self.margin)[of]
        self.pieces = [(of[kept], rows[kept], scores[kept])]
        self.size = int(kept.sum())

    @classmethod
    def join(cls, several: Sequence[_Contenders]) -> _Contenders:
        """Merge what the threads found."""
        joined = cls(several[0].k, several[0].margin)
        for one in several:
            for piece in one.pieces:
                joined._append(*piece)
        return joined

    def proposals(self) -> tuple[Rows, Rows]:
        """What is left when the last floor is applied."""
        self._tighten()
        [(of, rows, _)] = self.pieces
        return of, rows


def rank_within(groups: Rows) -> Rows:
    """Position within each run of equal numbers: [4, 4, 7, 7, 7] → [0, 1, 0, 1, 2]."""
    places = np.arange(len(groups))
    first = np.ones(len(groups), bool)
    first[1:] = groups[1:] != groups[:-1]
    return places - np.maximum.accumulate(np.where(first, places, 0))


def _fractions(queries: Floats) -> Floats | None:
    """Queries whose parts a column search can add up."""
    return queries if (queries >= 0).all() and (queries.sum(axis=1) * ONE < 2 * ONE - 1).all() else None
