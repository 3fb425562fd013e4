"""Fractions in fixed point: distributions whose sums, at every level, are exact integers.

An array of ``uint16`` holds fractions in parts of 2⁻¹⁵. Rows are rounded so that they still sum to exactly one
(:func:`to_fixed`), and float32 holds every such number and every sum of them without error: scores, ties and bounds
need no margins, and an index needs half the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.search.probe import Floats

__all__ = ["ONE", "as_floats", "as_parts", "to_fixed"]

ONE = 1 << 15
"""What a fraction of 1 is stored as."""
_ROWS = 4096  # rounded at a time


def to_fixed(fractions: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Distributions [N, c] in parts of 2⁻¹⁵, each row summing to exactly one.

    Running sums are rounded, and their steps taken: any run of columns is off by less than one part, so that every
    level of a tree is as exact as its leaves.
    """
    parts = np.empty(fractions.shape, np.uint16)
    for start in range(0, len(fractions), _ROWS):
        sums = np.cumsum(fractions[start : start + _ROWS], axis=1, dtype=np.float64)  # [n, c]
        sums *= ONE / sums[:, -1:]
        parts[start : start + _ROWS] = np.diff(np.floor(sums + 0.5), axis=1, prepend=0)
    return parts


def as_floats(stored: NDArray[Any]) -> Floats:
    """What stored numbers stand for: fractions where they are ``uint16``, themselves where not."""
    if stored.dtype == np.uint16:
        return stored * np.float32(1 / ONE)
    return np.asarray(stored, np.float32)


def as_parts(fractions: Floats) -> NDArray[np.uint16] | None:
    """Fractions [N, c] that are whole parts of 2⁻¹⁵, as ``uint16``; ``None`` if they are not, or sum to two or more."""
    parts = fractions * np.float32(ONE)
    fits = (parts >= 0).all() and (parts == np.floor(parts)).all()
    if not fits or (parts.sum(axis=1, dtype=np.float64) >= 2 * ONE).any():
        return None
    return parts.astype(np.uint16)
