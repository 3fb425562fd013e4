"""Leaves: their names, the number format in which probabilities are stored and compared, and the leaf of a text."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import ONE, Floats, as_floats, fold_columns, to_fixed
from palmette.methods.tree.config import FIXED_POINT

LEAVES = "leaves"
"""Stored array of leaf probabilities."""
ADAPTED = "adapted"
"""Stored array of unit vectors in the space."""
LEAST_DIFFERENCE = 4.0
"""Least mean difference between two documents' leaves, in steps of the fixed point, that keeps the ranking.

SciFact, 1,024 leaves, nDCG@10 in floats / in fixed point: at 8 steps .653 / .653, at 5 .642 / .643, at 2.7 .651 / .649,
at .8 .651 / .632, at .5 .643 / .574. float16 keeps each to .001.
"""


def name_of_leaf(node: int) -> str:
    """Turns from the root, one letter each: node 4 (left, then right) is ``LR``; the root is empty."""
    return bin(node + 1)[3:].replace("0", "L").replace("1", "R")


def stored_format(leaves: NDArray[Any]) -> Literal["fixed", "float16"]:
    """Number format that keeps the ranking of documents with these leaf probabilities [n, C]."""
    half = len(leaves) // 2
    apart = np.abs(leaves[:half] - leaves[half : 2 * half]).mean() * ONE if half else LEAST_DIFFERENCE
    return "fixed" if apart >= LEAST_DIFFERENCE and leaves.shape[1] <= FIXED_POINT else "float16"


def to_stored(leaves: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Leaf probabilities [n, C] in a stored dtype."""
    return to_fixed(leaves) if dtype == "uint16" else leaves.astype(dtype)


def as_searched(leaves: NDArray[Any], dtype: str) -> Floats:
    """Leaf probabilities [n, C] as a search compares them: rounded to a stored dtype."""
    return as_floats(to_stored(leaves, dtype))


def greedy_leaf(leaves: Floats) -> NDArray[np.int64]:
    """Leaf of each text by the likelier turn at every split: [N, C] → [N] columns."""
    rows, place = np.arange(len(leaves)), np.zeros(len(leaves), np.int64)
    for level in range(1, leaves.shape[1].bit_length()):
        nodes, place = fold_columns(leaves, leaves.shape[1] >> level), 2 * place
        place += nodes[rows, place + 1] > nodes[rows, place]
    return place
