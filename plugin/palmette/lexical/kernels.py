"""Loops over postings, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, Hits
from palmette.threads import unmasked

Documents = NDArray[np.int32]
Counts = NDArray[np.uint8]
_Loop = TypeVar("_Loop", bound=Callable[..., Any])
_BINS = 4096
_LAST = 2**31 - 1  # after all documents


def _compiled(signature: str) -> Callable[[_Loop], _Loop]:
    """Compile a loop when it is first called, since numba takes long to import; ``signature`` uses numba's types."""

    def decorate(loop: _Loop) -> _Loop:
        @cache
        def ready() -> Any:
            import numba

            try:
                return numba.njit(signature, cache=True, nogil=True)(loop)
            except (RuntimeError, OSError):  # no folder to keep the compiled loop in
                return numba.njit(signature, nogil=True)(loop)

        return wraps(loop)(unmasked(lambda *args: ready()(*args)))  # type: ignore[return-value]

    return decorate


_KINDS = ("int32", "uint32", "float32", "boolean")
_ROWS, _HITS, _FLOATS, _MASK = (f"Array({kind}, 1, 'C', True)" for kind in _KINDS)


@_compiled(f"uint8[::1]({_ROWS}, {_HITS})")
def counts_in(documents: Documents, hits: Hits) -> Counts:
    """[n] how often a term with these hits occurs in the documents ``held`` (rising, as all documents here)."""
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


@_compiled(f"uint32[::1]({_ROWS}, {_HITS})")
def hits_among(held: Documents, hits: Hits) -> Hits:
    """Keep a term's hits in some documents, by their places among these."""
    kept = np.empty(min(len(held), len(hits)), np.uint32)
    at = size = 0
    for place in range(len(held)):
        least = np.uint32(held[place]) << np.uint32(COUNT_BITS)
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
            kept[size] = np.uint32(place) << np.uint32(COUNT_BITS) | np.uint32(hits[at] - least)
            size += 1
    return kept[:size].copy()


@_compiled(f"uint32[::1]({_HITS}, {_ROWS})")
def renumber_hits(hits: Hits, places: Documents) -> Hits:
    """Keep a term's hits in documents that have a place, by that place; −1 stands for none."""
    kept = np.empty(len(hits), np.uint32)
    size = 0
    for hit in hits:
        place = places[hit >> np.uint32(COUNT_BITS)]
        kept[size] = np.uint32(place) << np.uint32(COUNT_BITS) | (hit & np.uint32(MAX_COUNT))
        size += place >= 0
    return kept[:size].copy()


@_compiled(f"void(float32[::1], {_HITS}, {_FLOATS}, float32)")
def add_hits(sums: Floats, hits: Hits, norms: Floats, weight: np.float32) -> None:
    """Add what a term with these hits adds to the scores [N] of all documents."""
    for hit in hits:
        document, count = hit >> np.uint32(COUNT_BITS), np.float32(hit & np.uint32(MAX_COUNT))
        sums[document] += weight * (count / (count + norms[document]))


@_compiled(f"float32({_HITS}, {_FLOATS})")
def max_impact(hits: Hits, norms: Floats) -> np.float32:
    """Return the highest ``count / (count + norm)`` of a term's hits; 0 where it has none."""
    best = np.float32(0)
    for hit in hits:
        count = np.float32(hit & MAX_COUNT)
        best = max(best, count / (count + norms[hit >> COUNT_BITS]))
    return best


@_compiled(f"Tuple((int32[::1], float32[::1]))({_ROWS}, {_FLOATS}, {_HITS}, {_FLOATS}, {_MASK}, float32, float32)")
def merge_postings(
    documents: Documents, sums: Floats, hits: Hits, norms: Floats, mask: Mask, weight: np.float32, least: np.float32
) -> tuple[Documents, Floats]:
    """Merge a term's hits into candidates with their sums; keep those of ``least`` or more.

    New ones must be in the ``mask`` (an empty one hides none).
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
    """Return a number that at least ``k`` of the sums (0 … 1) reach, hardly below the k-th best; 0 for fewer sums."""
    filled = np.zeros(_BINS + 1, np.int64)
    for has in sums:
        filled[min(int(max(has, 0) * _BINS), _BINS)] += 1
    reached = 0
    for place in range(_BINS, 0, -1):
        reached += filled[place]
        if reached >= k:
            return np.float32(place / _BINS)
    return np.float32(0)
