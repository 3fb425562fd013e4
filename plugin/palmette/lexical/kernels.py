"""Loops over postings that are not NumPy's. Documents rise in all of them, so lists are walked, not searched."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["counts_of", "floor_of", "met", "peak_of"]

Floats = NDArray[np.float32]
Documents = NDArray[np.int32]
Counts = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_BINS = 4096


def counts_of(held: Documents, rows: Documents, counts: Counts) -> Counts:
    """[n] how often a word with these postings stands in the documents ``held``."""
    found: Counts = _compiled().counts(held, rows, counts)
    return found


def peak_of(rows: Documents, counts: Counts, norms: Floats) -> float:
    """The highest ``count / (count + norm)`` of a word's postings; 0 where it has none."""
    return float(_compiled().peak(rows, counts, norms))


def met(
    held: Documents,
    sums: Floats,
    rows: Documents,
    counts: Counts,
    norms: Floats,
    mask: Mask,
    *,
    weight: float,
    least: float,
) -> tuple[Documents, Floats]:
    """Documents held or of a word, with what they have then, where that is ``least`` or more.

    New ones must be in the ``mask`` (an empty one hides none).
    """
    some: tuple[Documents, Floats] = _compiled().met(
        held, sums, rows, counts, norms, mask, np.float32(weight), np.float32(least)
    )
    return some


def floor_of(sums: Floats, k: int) -> float:
    """A number that at least ``k`` of the sums (0 … 1) reach, hardly below the k-th best; 0 where there are fewer."""
    return float(_compiled().floor(sums, k))


class _Loops(NamedTuple):
    counts: Any
    peak: Any
    met: Any
    floor: Any


@functools.cache
def _compiled() -> _Loops:
    """Numba is imported, and all are compiled (or read from its cache), on first use."""
    import numba as nb

    types: Any = nb.types

    def vector(kind: Any) -> Any:
        return types.Array(kind, 1, "C", readonly=True)

    rows, counts, floats, mask = map(vector, (nb.int32, nb.uint8, nb.float32, nb.boolean))
    some, one = types.Tuple((nb.int32[::1], nb.float32[::1])), nb.float32

    def made(loop: Any, gives: Any, *takes: Any) -> Any:
        try:
            return nb.njit(gives(*takes), cache=True, nogil=True)(loop)
        except (RuntimeError, OSError):  # no folder to keep the compiled loop in
            return nb.njit(gives(*takes), nogil=True)(loop)

    return _Loops(
        made(_counts, nb.uint8[::1], rows, rows, counts),
        made(_peak, one, rows, counts, floats),
        made(_met, some, rows, floats, rows, counts, floats, mask, one, one),
        made(_floor, one, floats, nb.int64),
    )


def _counts(held: Any, rows: Any, counts: Any) -> Any:
    found = np.zeros(len(held), np.uint8)
    at = 0
    for place in range(len(held)):
        document = held[place]
        step = 1  # double the step while behind, then halve it
        while at + step < len(rows) and rows[at + step] < document:
            at += step
            step *= 2
        low, high = at, min(at + step, len(rows))
        while low < high:
            middle = (low + high) // 2
            if rows[middle] < document:
                low = middle + 1
            else:
                high = middle
        at = low
        if at == len(rows):
            break
        if rows[at] == document:
            found[place] = counts[at]
    return found


def _peak(rows: Any, counts: Any, norms: Any) -> Any:
    best = np.float32(0)
    for at in range(len(rows)):
        count = np.float32(counts[at])
        best = max(best, count / (count + norms[rows[at]]))
    return best


def _met(held: Any, sums: Any, rows: Any, counts: Any, norms: Any, mask: Any, weight: Any, least: Any) -> Any:
    kept = np.empty(len(held) + len(rows), np.int32)
    have = np.empty(len(held) + len(rows), np.float32)
    size = place = at = 0
    while place < len(held) or at < len(rows):
        if at == len(rows) or (place < len(held) and held[place] < rows[at]):
            document, has = held[place], sums[place]
            place += 1
        else:
            document, has = rows[at], np.float32(0)
            count = np.float32(counts[at])
            at += 1
            if place < len(held) and held[place] == document:
                has = sums[place]
                place += 1
            elif len(mask) and not mask[document]:
                continue
            has += weight * (count / (count + norms[document]))
        if has >= least:
            kept[size], have[size] = document, has
            size += 1
    return kept[:size].copy(), have[:size].copy()


def _floor(sums: Any, k: Any) -> Any:
    filled = np.zeros(_BINS + 1, np.int64)
    for has in sums:
        filled[min(int(max(has, 0) * _BINS), _BINS)] += 1
    reached = 0
    for place in range(_BINS, 0, -1):
        reached += filled[place]
        if reached >= k:
            return np.float32(place / _BINS)
    return np.float32(0)
