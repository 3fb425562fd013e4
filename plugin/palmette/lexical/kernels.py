"""The two loops that are not NumPy's: adding up a word's share of every document, and keeping the best."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_word", "best_rows"]

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


def add_word(
    rows: NDArray[np.int32], counts: NDArray[np.uint8], norms: Floats, weight: float, scores: Floats
) -> None:
    """``scores[row] += weight · count / (count + norms[row])`` over the postings of a word."""
    _compiled()[0](rows, counts, norms, np.float32(weight), scores)


def best_rows(scores: Floats, rows: Rows, k: int) -> Rows:
    """The ``k`` of ``rows`` (rising) with the highest positive scores, best first, the lower row among equals."""
    kept: Rows = _compiled()[1](scores, rows, min(k, len(rows)))
    return kept


@functools.cache
def _compiled() -> tuple[Callable[..., None], Callable[..., Rows]]:
    """Numba is imported, and both are compiled (or read from its cache), on first use."""
    import numba as nb

    def vector(kind: Any) -> Any:
        return nb.types.Array(kind, 1, "C", readonly=True)

    add = nb.void(vector(nb.int32), vector(nb.uint8), vector(nb.float32), nb.float32, nb.float32[::1])
    best = nb.int64[::1](vector(nb.float32), vector(nb.int64), nb.int64)
    made = []
    for signature, loop in ((add, _add), (best, _best)):
        try:
            made.append(nb.njit(signature, cache=True, nogil=True)(loop))
        except (RuntimeError, OSError):  # no folder to keep the compiled loop in
            made.append(nb.njit(signature, nogil=True)(loop))
    return made[0], made[1]


def _add(rows: Any, counts: Any, norms: Any, weight: Any, scores: Any) -> None:
    for at in range(len(rows)):
        row = rows[at]
        count = np.float32(counts[at])
        scores[row] += weight * (count / (count + norms[row]))


def _best(scores: Any, rows: Any, k: Any) -> Any:
    held = np.empty(2 * k, np.int64)  # when it is full, the better half stays
    size, floor = 0, np.float32(0)
    for row in rows:
        if scores[row] > floor:
            held[size] = row
            size += 1
            if size == 2 * k:
                held[:k] = held[np.argsort(-scores[held], kind="mergesort")[:k]]  # earlier ones among equals
                size, floor = k, scores[held[k - 1]]
    return held[np.argsort(-scores[held[:size]], kind="mergesort")[:k]]
