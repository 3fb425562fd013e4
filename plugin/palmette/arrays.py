"""Kinds of arrays, and the number formats in which vectors are stored.

Distributions are stored in fixed point: ``uint16`` counts of 2⁻¹⁵, rounded so that a row still sums to exactly one
(:func:`to_fixed`). float32 holds every such number and every sum of them without error, so scores, ties and levels of
a tree are exact, in half the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
"""Integer keys of documents."""
Rows = NDArray[np.int64]
"""Row numbers, or other whole numbers."""
Mask = NDArray[np.bool_]
Scores = NDArray[np.floating[Any]]

ONE = 1 << 15
"""The stored value of the fraction 1."""
_ROWS = 4096  # rounded at a time
_PIECE = 1 << 19  # numbers handled at once: they stay in the cache


def to_fixed(fractions: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Round distributions [N, c] to fixed point, each row summing to exactly one.

    Running sums are rounded and their differences stored: any run of columns is off by less than 2⁻¹⁵, so that every
    level of a tree is as exact as its leaves.
    """
    fixed = np.empty(fractions.shape, np.uint16)
    for start in range(0, len(fractions), _ROWS):
        sums = np.cumsum(fractions[start : start + _ROWS], axis=1, dtype=np.float64)  # [n, c]
        sums *= ONE / sums[:, -1:]
        fixed[start : start + _ROWS] = np.diff(np.floor(sums + 0.5), axis=1, prepend=0)
    return fixed


def as_floats(stored: NDArray[Any]) -> Floats:
    """Convert stored numbers to their values: ``uint16`` to fractions, others to float32."""
    if stored.dtype == np.uint16:
        return stored * np.float32(1 / ONE)
    return np.asarray(stored, np.float32)


def as_fixed(fractions: Floats) -> NDArray[np.uint16] | None:
    """Convert fractions [N, c] to fixed point without rounding; ``None`` if that is impossible or a row sums to 2."""
    fixed = fractions * np.float32(ONE)
    fits = (fixed >= 0).all() and (fixed == np.floor(fixed)).all()
    if not fits or (fixed.sum(axis=1, dtype=np.float64) >= 2 * ONE).any():
        return None
    return fixed.astype(np.uint16)


def value_of_one(data: NDArray[Any]) -> np.float32:
    """Value of a stored 1."""
    return np.float32(1 / ONE if data.dtype == np.uint16 else 1)


def fold_columns(stored: NDArray[Any], fold: int) -> NDArray[Any]:
    """Sum neighbouring columns: [N, c] → [N, c / fold], float32 or, where sums fit, ``uint16`` as it was."""
    count, columns = stored.shape
    fixed, starts = stored.dtype == np.uint16, np.arange(0, columns, fold)
    sums = np.empty((count, len(starts)), np.uint16 if fixed else np.float32)
    step = max(1, _PIECE // columns)
    for start in range(0, count, step):
        piece = stored[start : start + step]
        added = np.add.reduceat(piece, starts, axis=1, dtype=np.int64 if fixed else np.float64)
        if fixed and added.max() > np.iinfo(np.uint16).max:
            return fold_columns(as_floats(stored), fold)
        sums[start : start + step] = added
    return sums


def quantise(vectors: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Round vectors [N, F, d] to int8, with the factor of each [N, F]."""
    scales = np.abs(vectors).max(axis=-1) / np.float32(127)  # [N, F]
    steps = np.divide(vectors, scales[..., None], out=np.zeros_like(vectors), where=scales[..., None] > 0)
    return np.rint(steps).astype(np.int8), scales.astype(np.float32)


def evenly_spaced(n: int, most: int) -> Rows:
    """Up to ``most`` of ``n`` places."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def unit_rows(vectors: Floats) -> Floats:
    """Scale rows to length 1; rows of zeros stay."""
    unit: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit.astype(np.float32, copy=False)


def highest(scores: Scores, k: int) -> Rows:
    """Places of the ``k`` highest scores [n] and of all that equal the lowest of these, ascending."""
    if k >= len(scores):
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])


def best(scores: Scores, k: int) -> Rows:
    """Places of the ``k`` highest scores [n], highest first, equal ones by place."""
    places = highest(scores, k)
    ordered: Rows = places[np.argsort(-scores[places], kind="stable")][:k]
    return ordered


def best_of_each(scores: Scores, k: int) -> Rows:
    """Places of the ``k`` highest scores of every row [Q, n]: [Q, k]."""
    ranks = np.empty((len(scores), min(k, scores.shape[1])), np.int64)
    for row, rank in zip(scores, ranks, strict=True):
        rank[:] = best(row, k)
    return ranks
