"""Top-k over blocks of rows: engines propose a superset, exact scores decide, ties go to the smaller key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from palmette.errors import ConfigError
from palmette.search import kernels
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Found, Keys, Metric
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["Block", "Engine", "ExactEngine", "engine_named", "top_k"]

_T = TypeVar("_T")
_TILE = 8192  # rows scored between two looks at the running threshold
_BATCH = 64  # queries that go over the rows together
_WORTH_A_THREAD = 1 << 22  # numbers to compare before a second thread pays


class Block:
    """Rows to search, [N, d] float32 with their keys (rising), and what engines keep beside them."""

    def __init__(self, data: Floats, keys: Keys) -> None:
        self.data, self.keys = data, keys
        self._kept: dict[object, Any] = {}
        self._lock = threading.RLock()

    def keep(self, name: object, build: Callable[[], _T]) -> _T:
        """What ``build`` returned the first time: norms, or an engine's own index of this block."""
        with self._lock:
            if name not in self._kept:
                self._kept[name] = build()
            value: _T = self._kept[name]
            return value

    def scale(self, metric: Metric) -> float:
        """The largest norm of a row, which bounds rounding errors."""
        return self.keep(("scale", metric), lambda: kernels.largest_norm(self.data, metric))


Proposals = tuple[Rows, Rows]
"""(query number, row number), one pair per proposed row."""


class Engine(Protocol):
    """Proposes, for each query, rows that surely include the block's ``k`` best under exact scores."""

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        ...


def engine_named(name: str) -> Engine:
    """``exact`` (NumPy and numba) or ``faiss`` (the extra ``cpu`` or ``gpu``)."""
    if name == "exact":
        return ExactEngine()
    if name == "faiss":
        from palmette.search.faiss_engine import FaissEngine

        return FaissEngine()
    raise ConfigError(f"unknown engine {name!r}. Engines: exact, faiss")


def top_k(
    blocks: Sequence[tuple[Block, Rows | None]], queries: Floats, metric: Metric, k: int, engine: Engine
) -> Found:
    """The ``k`` best of all given rows for each query, as if they lay in one block.

    Returns keys and scores [Q, min(k, number of rows)].
    """
    total = sum(len(block.keys) if rows is None else len(rows) for block, rows in blocks)
    width, queries = min(k, total), np.ascontiguousarray(queries)
    found = Found(
        np.full((len(queries), width), -1, np.int64),
        np.full((len(queries), width), -np.inf, np.float32),
        compared=total,
    )
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        best = _Best(len(batch), width)
        for block, rows in blocks:
            if rows is None or len(rows):
                of, proposed = engine.propose(block, rows, batch, metric, k)
                scores = kernels.exact_scores(block.data, proposed, batch, of, metric)
                best.add(of, block.keys[proposed], scores)
        best.write(found.keys[start : start + _BATCH], found.scores[start : start + _BATCH])
    return found


class _Best:
    """The final ranking: by score, then by key."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.of = np.empty(0, np.int64)
        self.keys = np.empty(0, np.int64)
        self.scores = np.empty(0, np.float32)

    def add(self, of: Rows, keys: Keys, scores: Floats) -> None:
        of, keys = np.concatenate([self.of, of]), np.concatenate([self.keys, keys])
        scores = np.concatenate([self.scores, scores])
        order = np.lexsort((keys, -scores, of))
        order = order[_rank(of[order]) < self.k]
        self.of, self.keys, self.scores = of[order], keys[order], scores[order]

    def write(self, keys: Keys, scores: Floats) -> None:
        rank = _rank(self.of)
        keys[self.of, rank], scores[self.of, rank] = self.keys, self.scores


def _rank(groups: Rows) -> Rows:
    """Position within each run of equal numbers: [4, 4, 7, 7, 7] → [0, 1, 0, 1, 2]."""
    places = np.arange(len(groups))
    first = np.ones(len(groups), bool)
    first[1:] = groups[1:] != groups[:-1]
    return places - np.maximum.accumulate(np.where(first, places, 0))


class ExactEngine:
    """Scans every wanted row, and proposes what may still be among the best, given the rounding errors."""

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        rows = block.keep("all rows", lambda: np.arange(len(block.keys))) if rows is None else rows
        margin = 2 * kernels.error_bound(queries, block.scale(metric), metric)
        work = len(rows) * block.data.shape[1] * len(queries)
        # BLAS, behind inner products, has threads of its own.
        parts = 1 if metric == "inner_product" else min(get_threads(), work // _WORTH_A_THREAD + 1, len(rows))
        scans = [_Scan(block.data, part, queries, metric, k, margin) for part in np.array_split(rows, parts)]
        return _Contenders.join(run_in_threads([scan.run for scan in scans])).proposals()


@dataclass
class _Scan:
    """One thread's share of a search."""

    data: Floats
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
        self.floor = np.full(len(margin), -np.inf, np.float32)  # [Q]
        self.pieces: list[tuple[Rows, Rows, Floats]] = []  # (query, row, score)
        self.size, self.limit = 0, 2 * k * len(margin) + _TILE

    def add(self, scores: Floats, rows: Rows) -> None:
        """Take the contenders of a tile: scores [Q, len(rows)]."""
        if self.size == 0 and len(rows) > self.k:
            self.floor = np.partition(scores, len(rows) - self.k, axis=1)[:, len(rows) - self.k]
        of, at = np.nonzero(scores >= (self.floor - self.margin)[:, None])
        self._append(of, rows[at], scores[of, at])

    def _append(self, of: Rows, rows: Rows, scores: Floats) -> None:
        self.pieces.append((of, rows, scores))
        self.size += len(of)
        if self.size > self.limit:
            self._tighten()
            self.limit = max(self.limit, 2 * self.size)

    def _tighten(self) -> None:
        of, rows, scores = (np.concatenate(parts) for parts in zip(*self.pieces, strict=True))
        order = np.lexsort((-scores, of))
        last = order[_rank(of[order]) == self.k - 1]  # the k-th best of each query that has so many
        self.floor[of[last]] = scores[last]
        kept = scores >= (self.floor - self.margin)[of]
        self.pieces = [(of[kept], rows[kept], scores[kept])]
        self.size = int(kept.sum())

    @classmethod
    def join(cls, several: Sequence[_Contenders]) -> _Contenders:
        """Merge what the threads found."""
        joined = cls(several[0].k, several[0].margin)
        joined.floor = np.maximum.reduce([one.floor for one in several])
        for one in several:
            for piece in one.pieces:
                joined._append(*piece)
        return joined

    def proposals(self) -> Proposals:
        """What is left when the last floor is applied."""
        self._tighten()
        [(of, rows, _)] = self.pieces
        return of, rows
