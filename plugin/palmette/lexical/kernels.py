"""Loops over postings, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask
from palmette.lexical import plain
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, Hits
from palmette.machine.compiled import compiles_loops, machine_code, reraise_interrupt

DocumentNumbers = NDArray[np.int32]
"""Rows of documents, rising."""
Counts = NDArray[np.uint8]
"""Occurrences of a term in documents."""
_Loop = TypeVar("_Loop", bound=Callable[..., Any])
_BINS = plain.BINS
_LAST = 2**31 - 1  # a row after all documents


def _compiled(signature: str) -> Callable[[_Loop], _Loop]:
    """Compile a loop when it is first called, since numba takes long to import; ``signature`` uses numba's types.

    Without compiled loops the function of that name in :mod:`palmette.lexical.plain` runs.
    """

    def decorate(loop: _Loop) -> _Loop:
        """Wrap a loop so that numba compiles it at its first call; without numba the NumPy version runs."""

        @cache
        def ready() -> Any:
            return machine_code(loop, signature)

        in_numpy = getattr(plain, loop.__name__)
        call = reraise_interrupt(lambda *args: (ready() if compiles_loops() else in_numpy)(*args))
        return wraps(loop)(call)  # type: ignore[return-value]

    return decorate


# numba's types of read-only contiguous vectors
_ROWS = "Array(int32, 1, 'C', True)"
_HITS = "Array(uint32, 1, 'C', True)"
_FLOATS = "Array(float32, 1, 'C', True)"
_MASK = "Array(boolean, 1, 'C', True)"


@_compiled(f"uint8[::1]({_ROWS}, {_HITS})")
def counts_in(documents: DocumentNumbers, hits: Hits) -> Counts:
    """Look up how often a term with these hits occurs in each document: [n]."""
    counts = np.zeros(len(documents), np.uint8)
    at = 0
    for place in range(len(documents)):
        least = np.uint32(documents[place]) << np.uint32(COUNT_BITS)
        step = 1  # double the step while behind, then halve it
        while at + step < len(hits) and hits[at + step] < least:
            at += step
            step *= 2
        low, high = at, min(at + step, len(hits))
        while low < high:
            middle = (low + high) // 2
            if hits[middle] < least:
                low = middle + 1
            else:
                high = middle
        at = low
        if at == len(hits):
            break
        if hits[at] - least <= MAX_COUNT:
            counts[place] = hits[at] - least
    return counts


def hits_among(documents: DocumentNumbers, hits: Hits) -> Hits:
    """Keep a term's hits in some documents, with rows renumbered to positions among these."""
    counts = counts_in(documents, hits)
    places = np.flatnonzero(counts)
    return np.asarray(places.astype(np.uint32) << np.uint32(COUNT_BITS) | counts[places])


@_compiled(f"uint32[::1]({_HITS}, {_ROWS})")
def renumber_hits(hits: Hits, places: DocumentNumbers) -> Hits:
    """Keep a term's hits in documents with a position, with rows renumbered to it; −1 drops a document."""
    matching = np.empty(len(hits), np.uint32)
    size = 0
    for hit in hits:
        place = places[hit >> np.uint32(COUNT_BITS)]
        matching[size] = np.uint32(place) << np.uint32(COUNT_BITS) | (hit & np.uint32(MAX_COUNT))
        size += place >= 0
    return matching[:size].copy()


@_compiled(f"void(float32[::1], {_HITS}, {_FLOATS}, float32)")
def add_hits(sums: Floats, hits: Hits, norms: Floats, weight: np.float32) -> None:
    """Add one term's shares to the scores [N] of all documents, in place."""
    for hit in hits:
        document, count = hit >> np.uint32(COUNT_BITS), np.float32(hit & np.uint32(MAX_COUNT))
        sums[document] += weight * (count / (count + norms[document]))


@_compiled(f"Tuple((int32[::1], float32[::1]))({_ROWS}, {_FLOATS}, {_HITS}, {_FLOATS}, {_MASK}, float32, float32)")
def merge_postings(
    documents: DocumentNumbers,
    sums: Floats,
    hits: Hits,
    norms: Floats,
    mask: Mask,
    weight: np.float32,
    least: np.float32,
) -> tuple[DocumentNumbers, Floats]:
    """Merge a term's postings into candidates and their sums; keep those with at least ``least``.

    New candidates must be in the ``mask``; an empty mask allows all.
    """
    merged = np.empty(len(documents) + len(hits), np.int32)
    have = np.empty(len(documents) + len(hits), np.float32)
    size = place = at = 0
    while place < len(documents) or at < len(hits):
        document = np.int32(hits[at] >> np.uint32(COUNT_BITS)) if at < len(hits) else np.int32(_LAST)
        if place < len(documents) and documents[place] < document:
            document, has = documents[place], sums[place]
            place += 1
        else:
            has = np.float32(0)
            count = np.float32(hits[at] & np.uint32(MAX_COUNT))
            at += 1
            if place < len(documents) and documents[place] == document:
                has = sums[place]
                place += 1
            elif len(mask) and not mask[document]:
                continue
            has += weight * (count / (count + norms[document]))
        if has >= least:
            merged[size], have[size] = document, has
            size += 1
    return merged[:size].copy(), have[:size].copy()


@_compiled(f"float32({_FLOATS}, int64)")
def kth_best(sums: Floats, k: int) -> np.float32:
    """Bound the k-th best sum (0 … 1) from below by a histogram; 0 for fewer than ``k`` sums."""
    filled = np.zeros(_BINS + 1, np.int64)
    for has in sums:
        filled[min(int(max(has, 0) * _BINS), _BINS)] += 1
    reached = 0
    for place in range(_BINS, 0, -1):
        reached += filled[place]
        if reached >= k:
            return np.float32(place / _BINS)
    return np.float32(0)
