"""The loops over postings in NumPy, for a process that ends after one question: same names, same bits.

As from numba, a single number comes as a Python float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, Hits

BINS = 4096
"""Bins of a histogram of scores."""

_BITS = np.uint32(COUNT_BITS)
"""Bits of a posting that hold the term's count."""
_MOST = np.uint32(MAX_COUNT)
"""Largest count that fits into them."""


def counts_in(documents: NDArray[np.int32], hits: Hits) -> NDArray[np.uint8]:
    """Look up how often a term occurs in each document: [n]."""
    least = documents.astype(np.uint32) << _BITS
    at = np.searchsorted(hits, least)
    matching = np.flatnonzero(at < len(hits))
    found = hits[at[matching]] - least[matching]
    counts = np.zeros(len(documents), np.uint8)
    counts[matching] = np.where(found <= _MOST, found, 0)
    return counts


def renumber_hits(hits: Hits, places: NDArray[np.int32]) -> Hits:
    """Keep a term's hits in documents with a position, with rows renumbered to it; −1 drops a document."""
    place = places[hits >> _BITS]
    living = place >= 0
    return np.asarray(place[living].astype(np.uint32) << _BITS | hits[living] & _MOST)


def add_hits(sums: Floats, hits: Hits, norms: Floats, weight: np.float32) -> None:
    """Add one term's shares to the scores [N] of all documents, in place."""
    documents, impacts = _impacts(hits, norms)
    sums[documents] += weight * impacts


def _impacts(hits: Hits, norms: Floats) -> tuple[NDArray[np.uint32], Floats]:
    documents, counts = hits >> _BITS, (hits & _MOST).astype(np.float32)
    impacts: Any = counts / (counts + norms[documents])
    return documents, impacts


def merge_postings(
    documents: NDArray[np.int32],
    sums: Floats,
    hits: Hits,
    norms: Floats,
    mask: Mask,
    weight: np.float32,
    least: np.float32,
) -> tuple[NDArray[np.int32], Floats]:
    """Merge a term's postings into candidates and their sums; keep those with at least ``least``.

    New candidates must be in the ``mask``; an empty mask allows all.
    """
    rows, impacts = _impacts(hits, norms)
    if len(mask):
        allowed = mask[rows] | np.isin(rows, documents)
        rows, impacts = rows[allowed], impacts[allowed]
    merged = np.union1d(documents, rows.astype(np.int32))
    have = np.zeros(len(merged), np.float32)
    have[np.searchsorted(merged, documents)] = sums
    have[np.searchsorted(merged, rows.astype(np.int32))] += weight * impacts
    possible = have >= least
    return merged[possible].astype(np.int32), have[possible]


def kth_best(sums: Floats, k: int) -> float:
    """Bound the k-th best sum (0 … 1) from below by a histogram; 0 for fewer than ``k`` sums."""
    bins = np.minimum((np.maximum(sums, 0) * np.float64(BINS)).astype(np.int64), BINS)
    reached = np.bincount(bins, minlength=BINS + 1)[:0:-1].cumsum()  # from the highest bin to the first
    enough = np.flatnonzero(reached >= k)
    return (BINS - int(enough[0])) / BINS if len(enough) else 0.0
