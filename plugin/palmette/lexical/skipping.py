"""The best documents by their words, without looking at all postings of frequent ones.

Words come in the order of the most they can add, which is nearly that of rarity. While a document that has none of
the words so far could still be among the best, the documents of the next word are taken in; after that the words that
remain are looked up for the documents held, and those fall out that can no longer reach the best (MaxScore, a word at
a time). What comes back holds all of the best, and the order of addition differs: scores are for the caller to add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.bm25 import shares
from palmette.lexical.kernels import counts_of, floor_of, met

__all__ = ["SLACK", "Listed", "candidates"]

Floats = NDArray[np.float32]
Documents = NDArray[np.int32]

SLACK = 1e-5
"""More than float32 sums of shares differ by in another order."""


class Listed(NamedTuple):
    """The postings of one of a query's words in one segment, its weight, and the most it adds to a document."""

    rows: Documents
    counts: NDArray[np.uint8]
    weight: np.float32
    most: float


def candidates(
    lists: list[Listed], norms: Floats, k: int, floor: float, mask: NDArray[np.bool_], among: Documents | None
) -> Documents:
    """Documents (rising) that hold the ``k`` best of those that score ``floor`` or more.

    They are of the ``mask`` (an empty one hides none), and of ``among`` where that is given.
    """
    waiting = sorted((one for one in lists if len(one.rows)), key=lambda one: -one.most)
    rest = sum(one.most for one in waiting)
    held = np.empty(0, np.int32) if among is None else among
    sums = np.zeros(len(held), np.float32)
    for one in waiting:
        unseen = among is None and rest + SLACK >= floor  # a document without any of the words so far may do
        rest -= one.most
        least = floor - rest - SLACK
        if unseen:
            held, sums = met(
                held, sums, one.rows, one.counts, norms, mask, weight=float(one.weight), least=least
            )
        else:
            able = sums + one.most >= least
            held, sums = (held, sums) if able.all() else (held[able], sums[able])
            sums = sums + shares(counts_of(held, one.rows, one.counts), norms[held], one.weight)
            able = sums >= least
            held, sums = held[able], sums[able]
        if len(held) >= k:
            floor = max(floor, floor_of(sums, k))
    return held
