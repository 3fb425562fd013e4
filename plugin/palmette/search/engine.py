"""Top-k over blocks of rows: engines propose a superset, exact scores decide, ties go to the smaller key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.errors import ConfigError
from palmette.search import kernels
from palmette.search.block import Block, Engine
from palmette.search.exact import ExactEngine, rank_within
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Found, Keys, Metric

__all__ = ["Best", "engine_named", "top_k"]

_BATCH = 64  # queries that go over the rows together


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
    keys = np.full((len(queries), width), -1, np.int64)
    scored = np.full((len(queries), width), -np.inf, np.float32)
    work = np.zeros(2)
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        best = Best(len(batch), width)
        for block, rows in blocks:
            if rows is None or len(rows):
                of, proposed, compared, read = engine.propose(block, rows, batch, metric, k)
                scores = kernels.exact_scores(block.data, proposed, batch, of, metric)
                best.add(of, block.keys[proposed], scores)
                work += compared, read
        best.write(keys[start : start + _BATCH], scored[start : start + _BATCH])
    refined, touched = (work / max(1, len(queries))).tolist()
    return Found(keys, scored, compared=total, refined=refined, read=touched)


class Best:
    """The final ranking: by score, then by key."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.of = np.empty(0, np.int64)
        self.keys = np.empty(0, np.int64)
        self.scores = np.empty(0, np.float32)

    def add(self, of: Rows, keys: Keys, scores: Floats) -> None:
        """Take (query, key, score) of another block."""
        of, keys = np.concatenate([self.of, of]), np.concatenate([self.keys, keys])
        scores = np.concatenate([self.scores, scores])
        order = np.lexsort((keys, -scores, of))
        order = order[rank_within(of[order]) < self.k]
        self.of, self.keys, self.scores = of[order], keys[order], scores[order]

    def write(self, keys: Keys, scores: Floats) -> None:
        """Fill in [Q, k] of each."""
        rank = rank_within(self.of)
        keys[self.of, rank], scores[self.of, rank] = self.keys, self.scores
