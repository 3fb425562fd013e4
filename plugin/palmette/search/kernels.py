"""Scores of many rows against many queries: fast and approximate to the last bits, or slow and exact.

The fast kernels may add in any order (BLAS, SIMD, threads), so they only *propose* rows, with a bound on the
error; :func:`exact_scores` decides. So a search does not depend on threads, batching or segmentation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.search.fixed import ONE, as_floats, as_parts
from palmette.search.probe import Floats, Metric

__all__ = [
    "NEVER",
    "error_bound",
    "exact_scores",
    "fast_scores",
    "folded",
    "largest_norm",
    "rounding_of",
    "searchable",
]

NEVER = np.float32(-3e38)
"""The score of a row that does not count: infinities have no place in compiled loops."""

Rows = NDArray[np.int64]
_PIECE = 1 << 19  # numbers handled at once: they stay in the cache
# From this share of wanted rows on, BLAS over all rows is faster than gathering first (one query, several).
_DENSE, _DENSE_BATCH = 0.4, 0.9


def fast_scores(data: NDArray[Any], rows: Rows, queries: Floats, metric: Metric) -> Floats:
    """Scores [Q, len(rows)] of rows (rising) of ``data`` [N, d], within :func:`error_bound` of the exact."""
    if metric == "overlap":
        return _overlaps(data, rows, queries)
    if data.dtype != np.float32:
        return _inner(as_floats(data[rows]), queries)
    first, span = int(rows[0]), int(rows[-1]) - int(rows[0]) + 1
    if span == len(rows):
        return _inner(data[first : first + span], queries)
    if len(rows) < (_DENSE if len(queries) == 1 else _DENSE_BATCH) * span:
        return _inner(data[rows], queries)
    return _inner(data[first : first + span], queries)[:, rows - first]


def _overlaps(data: NDArray[Any], rows: Rows, queries: Floats) -> Floats:
    """Σ min(q, x): numba is imported, and the kernel compiled (or read from its cache), on first use."""
    from palmette.search import loops

    if data.dtype == np.uint16:
        parts = as_parts(queries)
        if parts is not None:
            shared = np.empty((len(queries), len(rows)), np.uint16)
            loops.overlaps(data, rows, parts, shared)
            return as_floats(shared)
        data, rows = as_floats(data[rows]), np.arange(len(rows))
    scores = np.empty((len(queries), len(rows)), np.float32)
    loops.overlaps(data, rows, queries, scores)
    return scores


def _inner(block: Floats, queries: Floats) -> Floats:
    scores: Floats = (block @ queries[0])[None, :] if len(queries) == 1 else queries @ block.T
    return scores


def exact_scores(data: NDArray[Any], rows: Rows, queries: Floats, of: Rows, metric: Metric) -> Floats:
    """Score row ``rows[i]`` against query ``of[i]``: summed in float64 in one fixed order, rounded once."""
    from palmette.search import loops

    scores = np.empty(len(rows), np.float32)
    unit = np.float32(1 / ONE if data.dtype == np.uint16 else 1)
    loops.exact(data, rows, np.ascontiguousarray(queries), of, unit, metric == "overlap", scores)
    return scores


def rounding_of(columns: int) -> float:
    """How far a float32 sum of so many products can be off, as a share of Σ|terms|, with room to spare."""
    return (columns + 8) * 2.0**-24


def error_bound(queries: Floats, scale: float, metric: Metric) -> Floats:
    """How far a fast score can be off, per query [Q], whatever the order of summation: d·u·Σ|terms|.

    ``scale`` is the largest L2 (inner product) or L1 (overlap) norm of the rows.
    """
    rounding = rounding_of(queries.shape[1])
    if metric == "overlap":
        total = np.abs(queries).sum(axis=1) + scale
    else:
        total = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1)) * scale
    bound: Floats = np.asarray(total * rounding, np.float32)
    return bound


def folded(stored: NDArray[Any], fold: int | tuple[int, ...]) -> NDArray[Any]:
    """Neighbouring columns summed in runs: [N, c] → [N, runs] float32, or ``uint16`` as it was where sums fit."""
    count, columns = stored.shape
    starts = np.arange(0, columns, fold) if isinstance(fold, int) else np.cumsum((0, *fold[:-1]))
    fixed = stored.dtype == np.uint16
    sums = np.empty((count, len(starts)), np.uint16 if fixed else np.float32)
    step = max(1, _PIECE // columns)
    for start in range(0, count, step):
        piece = np.add.reduceat(
            stored[start : start + step], starts, axis=1, dtype=np.int64 if fixed else np.float64
        )
        if fixed and piece.max() > np.iinfo(np.uint16).max:
            return folded(as_floats(stored), fold)
        sums[start : start + step] = piece
    return sums


def searchable(stored: NDArray[Any], fold: int | tuple[int, ...] = 1) -> NDArray[Any]:
    """What a block holds of a stored array: float32 or ``uint16``, columns summed in runs."""
    if fold != 1 and set(np.atleast_1d(fold).tolist()) != {1}:
        return folded(stored, fold)
    return np.ascontiguousarray(stored, None if stored.dtype == np.uint16 else np.float32)


def largest_norm(data: NDArray[Any], metric: Metric) -> float:
    """The scale that :func:`error_bound` asks for."""
    largest, step = 0.0, max(1, _PIECE // data.shape[1])
    for start in range(0, len(data), step):
        piece = as_floats(data[start : start + step])
        norms = (
            np.abs(piece).sum(axis=1) if metric == "overlap" else np.sqrt(np.einsum("nd,nd->n", piece, piece))
        )
        largest = max(largest, float(norms.max()))
    return largest * 1.001
