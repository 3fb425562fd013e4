"""Scores of many rows against many queries: fast and approximate to the last bits, or slow and exact.

The fast kernels may add in any order (BLAS, SIMD, threads), so they only *propose* rows, with a bound on the
error; :func:`exact_scores` decides. So a search does not depend on threads, batching or segmentation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.search.probe import Floats, Metric

__all__ = ["error_bound", "exact_scores", "fast_scores", "folded", "largest_norm"]

Rows = NDArray[np.int64]
_PIECE = 1 << 19  # numbers handled at once by the exact kernel: stays in the cache
# From this share of wanted rows on, BLAS over all rows is faster than gathering first (one query, several).
_DENSE, _DENSE_BATCH = 0.4, 0.9


def fast_scores(data: Floats, rows: Rows, queries: Floats, metric: Metric) -> Floats:
    """Scores [Q, len(rows)] of rows (rising) of ``data`` [N, d], within :func:`error_bound` of the exact."""
    if metric == "overlap":
        scores = np.empty((len(queries), len(rows)), np.float32)
        _overlap()(data, rows, queries, scores)
        return scores
    first, span = int(rows[0]), int(rows[-1]) - int(rows[0]) + 1
    if span == len(rows):
        return _inner(data[first : first + span], queries)
    if len(rows) < (_DENSE if len(queries) == 1 else _DENSE_BATCH) * span:
        return _inner(data[rows], queries)
    return _inner(data[first : first + span], queries)[:, rows - first]


def _inner(block: Floats, queries: Floats) -> Floats:
    scores: Floats = (block @ queries[0])[None, :] if len(queries) == 1 else queries @ block.T
    return scores


def exact_scores(data: Floats, rows: Rows, queries: Floats, of: Rows, metric: Metric) -> Floats:
    """Score row ``rows[i]`` against query ``of[i]``: summed in float64 in one fixed order, rounded once."""
    scores = np.empty(len(rows), np.float32)
    step = max(1, _PIECE // data.shape[1])
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        x, q = data[rows[piece]], queries[of[piece]]  # [n, d] each
        terms = np.minimum(x, q).astype(np.float64) if metric == "overlap" else x.astype(np.float64) * q
        scores[piece] = terms.sum(axis=1)
    return scores


def error_bound(queries: Floats, scale: float, metric: Metric) -> Floats:
    """How far a fast score can be off, per query [Q], whatever the order of summation: d·u·Σ|terms|.

    ``scale`` is the largest L2 (inner product) or L1 (overlap) norm of the rows.
    """
    rounding = (queries.shape[1] + 8) * 2.0**-24
    if metric == "overlap":
        total = np.abs(queries).sum(axis=1) + scale
    else:
        total = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1)) * scale
    bound: Floats = np.asarray(total * rounding, np.float32)
    return bound


def folded(stored: NDArray[Any], fold: int) -> Floats:
    """Neighbouring columns summed in runs of ``fold``: [N, c] of any number type → [N, c / fold] float32."""
    count, columns = stored.shape
    sums = np.empty((count, columns // fold), np.float32)
    step = max(1, _PIECE // columns)
    for start in range(0, count, step):
        piece = stored[start : start + step]
        sums[start : start + step] = piece.reshape(len(piece), -1, fold).sum(axis=2, dtype=np.float64)
    return sums


def largest_norm(data: Floats, metric: Metric) -> float:
    """The scale that :func:`error_bound` asks for."""
    largest, step = 0.0, max(1, _PIECE // data.shape[1])
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        norms = (
            np.abs(piece).sum(axis=1) if metric == "overlap" else np.sqrt(np.einsum("nd,nd->n", piece, piece))
        )
        largest = max(largest, float(norms.max()))
    return largest * 1.001


@functools.cache
def _overlap() -> Callable[[Floats, Rows, Floats, Floats], None]:
    """Σ min(q, x): numba is imported, and the kernel compiled (or read from its cache), on first use."""
    import numba as nb

    matrix = nb.types.Array(nb.float32, 2, "C", readonly=True)
    vector = nb.types.Array(nb.int64, 1, "C", readonly=True)
    signature = nb.void(matrix, vector, matrix, nb.float32[:, ::1])
    options: dict[str, Any] = {"nogil": True, "fastmath": True, "boundscheck": False}
    compiled: Callable[[Floats, Rows, Floats, Floats], None]
    try:
        compiled = nb.njit(signature, cache=True, **options)(_overlap_loop)
    except (RuntimeError, OSError):  # no folder to keep the compiled kernel in
        compiled = nb.njit(signature, **options)(_overlap_loop)
    return compiled


def _overlap_loop(data: Floats, rows: Rows, queries: Floats, out: Floats) -> None:
    tile = 32  # rows that stay in the L2 cache while all queries pass over them
    count, width = queries.shape
    for start in range(0, len(rows), tile):
        stop = min(start + tile, len(rows))
        whole = count - count % 4
        for q in range(0, whole, 4):
            for i in range(start, stop):
                row = rows[i]
                a = b = c = d = np.float32(0)
                for j in range(width):
                    x = data[row, j]
                    a += min(x, queries[q, j])
                    b += min(x, queries[q + 1, j])
                    c += min(x, queries[q + 2, j])
                    d += min(x, queries[q + 3, j])
                out[q, i], out[q + 1, i], out[q + 2, i], out[q + 3, i] = a, b, c, d
        for q in range(whole, count):
            for i in range(start, stop):
                row = rows[i]
                a = np.float32(0)
                for j in range(width):
                    a += min(data[row, j], queries[q, j])
                out[q, i] = a
