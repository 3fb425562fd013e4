"""Kinds of arrays, and the number formats in which vectors are stored.

Distributions are stored in fixed point: ``uint16`` counts of 2⁻¹⁵, rounded so that a row still sums to exactly one
(:func:`to_fixed`). float32 holds every such number and every sum of them without error, so scores, ties and levels of
a tree are exact, in half the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError

Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
"""Integer keys of documents."""
Rows = NDArray[np.int64]
"""Row numbers, or other whole numbers."""
Mask = NDArray[np.bool_]
Scores = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of documents that have any number of them, perhaps none, one document after the other."""

    values: NDArray[Any]
    """[S, *shape] rows of all documents."""
    starts: Rows
    """[N + 1] document ``i`` has ``values[starts[i]:starts[i + 1]]``."""

    def __post_init__(self) -> None:
        starts, count = self.starts, len(self.values)
        ends = starts[[0, -1]].tolist() if starts.ndim == 1 and len(starts) else []
        if starts.dtype != np.int64 or ends != [0, count] or (starts[1:] < starts[:-1]).any():
            raise InputError(
                f"starts of ragged rows must be int64 [N + 1] and rise from 0 to the number of rows, {count}; "
                f"got {starts.dtype} {starts.shape} from {' to '.join(map(str, ends)) or 'nothing'}"
            )

    @classmethod
    def empty(cls, count: int, shape: tuple[int, ...], dtype: str) -> Ragged:
        """Make documents without rows."""
        return cls(np.empty((0, *shape), dtype), np.zeros(count + 1, np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the documents of one or more parts."""
        if len(parts) == 1:
            return parts[0]
        counts = np.concatenate([[0], *(np.diff(part.starts) for part in parts)])
        return cls(np.concatenate([part.values for part in parts]), np.cumsum(counts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, document: int) -> NDArray[Any]:
        """Return the rows of one document: [n, *shape]."""
        return self.values[self.starts[:-1][document] : self.starts[1:][document]]

    def counts(self, documents: NDArray[Any]) -> Rows:
        """Count the rows of some documents."""
        counts: Rows = self.starts[1:][documents] - self.starts[:-1][documents]
        return counts

    def take(self, documents: NDArray[Any]) -> Ragged:
        """Copy the rows of some documents, in any order."""
        first = self.starts[:-1][documents]
        counts = self.starts[1:][documents] - first
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        places = np.repeat(first - starts[:-1], counts) + np.arange(starts[-1])
        return Ragged(self.values.take(places, axis=0, mode="clip"), starts)


Stored = NDArray[Any] | Ragged
"""Array of documents: one row each, or any number of rows each."""


def take_documents(array: Stored, documents: NDArray[Any]) -> Stored:
    """Copy what an array holds of some documents, in any order."""
    return array.take(documents) if isinstance(array, Ragged) else array[documents]


def concatenate(parts: Sequence[Stored]) -> Stored:
    """Concatenate one or more arrays of documents, all of one kind."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    return Ragged.concatenate(ragged) if ragged else np.concatenate(parts)  # type: ignore[arg-type]


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


def quantise(vectors: NDArray[np.floating]) -> tuple[NDArray[np.int8], Floats]:
    """Round vectors [..., d] to int8, the largest value of each to ±127, with the factor of each [...]."""
    largest = np.abs(vectors).max(axis=-1, initial=0)
    steps = np.rint(vectors * (127 / np.where(largest > 0, largest, 1))[..., None])
    return steps.astype(np.int8), (largest / np.float32(127)).astype(np.float32)


def to_numpy(values: Any) -> NDArray[Any]:
    """Return a tensor as an array in the CPU's memory; an array stays what it is."""
    array: NDArray[Any] = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return array


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
