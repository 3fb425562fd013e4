"""The plan of a search: overlap of the nodes of a level, then cosines of a shortlist."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, fold_columns
from palmette.methods.tree.config import TreeSearch
from palmette.search.plan import Score, SearchPlan

LEAVES, ADAPTED = "leaves", "adapted"
"""Stored arrays: leaf probabilities, and unit vectors in the space of the splits."""


def plan(queries: dict[str, NDArray[np.float32]], level: int, options: TreeSearch) -> SearchPlan:
    """Overlap at a level, Σ min(q, d) = 1 + nTVD(q, d); then the cosine, for a rerank."""
    leaves = queries[LEAVES]  # [Q, C]
    run = leaves.shape[1] >> level  # leaves per node
    first = Score(LEAVES, fold_to_level(leaves, level), "overlap", run)
    if not options.rerank:
        return SearchPlan(first)
    return SearchPlan(first, rescore=Score(ADAPTED, queries[ADAPTED]), fetch=options.shortlist)


def fold_to_level(leaves: Floats, level: int) -> Floats:
    """Nodes of a level, each the sum of its leaves: [N, C] → [N, 2^level]."""
    run = leaves.shape[1] >> level
    return leaves if run == 1 else fold_columns(leaves, run)


def greedy_leaf(leaves: Floats) -> NDArray[np.int64]:
    """Leaf of each text by the likelier turn at every split: [N, C] → [N] columns."""
    rows, place = np.arange(len(leaves)), np.zeros(len(leaves), np.int64)
    for level in range(1, leaves.shape[1].bit_length()):
        nodes, place = fold_to_level(leaves, level), 2 * place
        place += nodes[rows, place + 1] > nodes[rows, place]
    return place
