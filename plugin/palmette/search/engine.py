"""Top-k over blocks of rows: engines propose a superset, exact scores decide, ties go to the smaller key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.errors import ConfigError
from palmette.search import kernels
from palmette.search.block import Block, Engine, Hits
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

        return ApproximateEngine((Ivf if kind == "ivf" else Hnsw)(**_options(name, given)))
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
    blocks: Sequence[tuple[Block, Rows | None]],
    queries: Floats,
    metric: Metric,
    k: int,
    engine: Engine,
    rough: bool = False,
) -> Found:
    """The ``k`` best of all given rows for each query, as if they lay in one block (see ``Probe.rough``).

    Returns keys and scores [Q, min(k, number of rows)].
    """
    total = sum(len(block.keys) if rows is None else len(rows) for block, rows in blocks)
    width, queries = min(k, total), np.ascontiguousarray(queries)
    if rough and len(blocks) == 1 and (own := engine.hits(*blocks[0], queries, metric, width)) is not None:
        return _as_found(blocks[0][0], own, queries)
    keys = np.full((len(queries), width), -1, np.int64)
    scored = np.full((len(queries), width), -np.inf, np.float32)
    work = np.zeros(2)
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        best = Best(len(batch), width)
        for block, rows in blocks:
            if rows is None or len(rows):
                own = engine.hits(block, rows, batch, metric, width) if rough else None
                if own is not None:
                    of, at = np.nonzero(own.rows >= 0)
                    best.add(of, block.keys[own.rows[of, at]], own.scores[of, at])
                    work += own.compared, own.compared * batch[0].nbytes
                    continue
                of, proposed, compared, read = engine.propose(block, rows, batch, metric, k)
                scores = kernels.exact_scores(block.data, proposed, batch, of, metric)
                best.add(of, block.keys[proposed], scores)
                work += compared, read
        best.write(keys[start : start + _BATCH], scored[start : start + _BATCH])
    refined, touched = (work / max(1, len(queries))).tolist()
    rough = engine.approximate
    return Found(keys, scored, refined if rough else total, refined=refined, read=touched, approximate=rough)


def _as_found(block: Block, own: Hits, queries: Floats) -> Found:
    """An engine's neighbours in one block, equal scores by key."""
    keys, scores, missing = block.keys[own.rows], own.scores, own.rows < 0
    if missing.any():
        keys[missing], scores[missing] = -1, -np.inf
    if (scores[:, 1:] == scores[:, :-1]).any():
        order = np.lexsort((keys, -scores), axis=1)
        keys, scores = np.take_along_axis(keys, order, 1), np.take_along_axis(scores, order, 1)
    compared = own.compared / max(1, len(queries))
    return Found(keys, scores, compared, {}, compared, compared * queries.shape[1] * 4, approximate=True)


class Best:
    """The final ranking: by score, then by key."""

    def __init__(self, queries: int, k: int) -> None:
        self.queries, self.k = queries, k
        self.of = np.empty(0, np.int64)
        self.keys = np.empty(0, np.int64)
        self.scores = np.empty(0, np.float32)

    def add(self, of: Rows, keys: Keys, scores: Floats) -> None:
        """Take (query, key, score) of another block."""
        if len(self.of):
            of, keys = np.concatenate([self.of, of]), np.concatenate([self.keys, keys])
            scores = np.concatenate([self.scores, scores])
        order = np.lexsort((keys, -scores, of))
        order = order[: self.k] if self.queries == 1 else order[rank_within(of[order]) < self.k]
        self.of, self.keys, self.scores = of[order], keys[order], scores[order]

    def write(self, keys: Keys, scores: Floats) -> None:
        """Fill in [Q, k] of each."""
        rank = np.arange(len(self.of)) if self.queries == 1 else rank_within(self.of)
        keys[self.of, rank], scores[self.of, rank] = self.keys, self.scores
