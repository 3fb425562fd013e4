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

__all__ = ["Best", "engine_named", "is_engine", "top_k"]

_BATCH = 64  # queries that go over the rows together


def engine_named(name: str) -> Engine:
    """``exact`` (NumPy and numba), ``faiss``, ``ivf`` or ``hnsw`` (the extra ``cpu`` or ``gpu``).

    The last two take options: ``"ivf:nlist=256,nprobe=8"`` (see :mod:`palmette.search.approximate`).
    """
    if not isinstance(name, str):
        raise ConfigError(f"an engine is given by its name, such as 'exact' or 'ivf', got {name!r}")
    kind, _, given = name.partition(":")
    if kind in ("ivf", "hnsw"):
        from palmette.search.approximate import ApproximateEngine, Hnsw, Ivf

        return ApproximateEngine((Ivf if kind == "ivf" else Hnsw).of(**_options(name, given)))
    if name == "exact":
        return ExactEngine()
    if name == "faiss":
        from palmette.search.faiss_engine import FaissEngine

        return FaissEngine()
    raise ConfigError(f"unknown engine {name!r}. Engines: exact, faiss, ivf, hnsw")


def is_engine(name: str) -> bool:
    """Whether a name is that of an engine of ours, not of another backend."""
    return name.partition(":")[0] in ("exact", "faiss", "ivf", "hnsw")


def _options(name: str, given: str) -> dict[str, int]:
    """``nlist=256,nprobe=8`` as a dict."""
    try:
        pairs = (part.split("=") for part in given.split(",") if part.strip())
        return {key.strip(): int(value) for key, value in pairs}
    except ValueError as error:
        raise ConfigError(
            f"engine {name!r}: options are written name=number, as in 'ivf:nlist=256,nprobe=8'"
        ) from error


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
    rough = engine.approximate
    return Found(keys, scored, refined if rough else total, refined=refined, read=touched, approximate=rough)


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
