"""Documents of several vectors each: the best of them counts, for a shortlist or for all documents.

The one loop scores each document by itself, so that a score is the same bits in every search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.search.best import highest
from palmette.search.engine import Best
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Found, Keys, Parts
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["PART", "PartRows", "best_parted", "quantised", "rescored"]

PART = "part"
"""Evidence of which part of a document scored best."""
_BATCH = 16  # queries whose scores of all documents are held at a time
_TILE = 256  # documents that stay in the cache while these queries pass over them
_WORTH_A_THREAD = 1 << 22  # numbers to multiply before a second thread pays


class PartRows(NamedTuple):
    """Documents that lie together.

    Attributes:
        keys: [n] rising.
        data: [n, F, d] their vectors: int8, float16 or float32.
        scales: [n, F] what these are multiplied by, or [n, 0].
        rows: Those that count; ``None`` for all.
    """

    keys: Keys
    data: NDArray[Any]
    scales: Floats
    rows: Rows | None


def quantised(vectors: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Vectors in a byte a number: [N, F, d] → int8, and what to multiply each by [N, F]."""
    scales = np.abs(vectors).max(axis=-1) / np.float32(127)  # [N, F]
    steps = np.divide(vectors, scales[..., None], out=np.zeros_like(vectors), where=scales[..., None] > 0)
    return np.rint(steps).astype(np.int8), scales.astype(np.float32)


def _score(part: PartRows, rows: Rows, of: Rows, parts: Parts) -> tuple[Floats, Rows]:
    """Scores [m] of some rows for some queries, and the part that gave each."""
    from palmette.search.part_loops import best_parts

    data, scales = part.data, part.scales
    if data.dtype == np.float16:  # which compiled loops do not know
        distinct, rows = np.unique(rows, return_inverse=True)
        data, scales = data[distinct].astype(np.float32), scales[distinct]
    scores, which = np.empty(len(rows), np.float32), np.empty(len(rows), np.int64)
    best_parts(data, scales, rows, of, parts.queries, parts.weights, scores, which)
    return scores, which


def rescored(places: Sequence[tuple[PartRows, Rows]], keys: Keys, parts: Parts, k: int) -> Found:
    """The documents ``keys`` [Q, n] (−1 for none) ranked by their best part, and what they score already.

    Args:
        places: Where they lie: rows, and which places of ``keys``, flattened, these are.
        keys: [Q, n].
        parts: What to compare.
        k: How many to keep.
    """
    scores = np.full(keys.shape, -np.inf, np.float32)
    which = np.zeros(keys.shape, np.int64)
    for part, at in places:
        assert part.rows is not None
        scores.flat[at], which.flat[at] = _score(part, part.rows, at // keys.shape[1], parts)
    if parts.own is not None and parts.share:
        scores = np.float32(parts.share) * parts.own + np.float32(1 - parts.share) * scores
    order = np.lexsort((keys, -scores), axis=1)[:, :k]
    ranked, chosen = np.take_along_axis(keys, order, 1), np.take_along_axis(scores, order, 1)
    return Found(ranked, chosen, evidence={PART: np.take_along_axis(which, order, 1)})


def best_parted(pieces: Sequence[PartRows], parts: Parts, k: int) -> Found:
    """The ``k`` best of all documents by their best part, without saying which part it was."""
    sizes = [len(piece.keys) if piece.rows is None else len(piece.rows) for piece in pieces]
    count, width = len(parts.queries), min(k, sum(sizes))
    keys = np.full((count, width), -1, np.int64)
    scored = np.full((count, width), -np.inf, np.float32)
    for start in range(0, count, _BATCH):
        batch = replace(parts, queries=parts.queries[start : start + _BATCH])
        best = Best(len(batch.queries), width)
        for piece in pieces:
            rows = np.arange(len(piece.keys)) if piece.rows is None else piece.rows
            for query, scores in enumerate(_scan(piece, rows, batch)):  # [n]
                near = highest(scores, width)
                best.add(np.full(len(near), query), piece.keys[rows[near]], scores[near])
        best.write(keys[start : start + _BATCH], scored[start : start + _BATCH])
    return Found(keys, scored, visited=sum(sizes))


def _scan(piece: PartRows, rows: Rows, parts: Parts) -> Floats:
    """The scores of all given rows for all queries [Q, n]."""
    out = np.empty((len(parts.queries), len(rows)), np.float32)

    def scan(start: int, stop: int) -> None:
        for low in range(start, stop, _TILE):
            tile = rows[low : min(low + _TILE, stop)]
            of = np.repeat(np.arange(len(parts.queries)), len(tile))
            scores, _ = _score(piece, np.tile(tile, len(parts.queries)), of, parts)
            out[:, low : low + len(tile)] = scores.reshape(len(parts.queries), -1)

    work = len(rows) * len(parts.queries) * int(np.prod(piece.data.shape[1:]))
    threads = min(get_threads(), max(1, work // _WORTH_A_THREAD))
    edges = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    run_in_threads([partial(scan, a, b) for a, b in pairwise(edges)])
    return out
