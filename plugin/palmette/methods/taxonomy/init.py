"""Embeddings that solve a hierarchy without training, and the dimension that they need.

Algorithm 1 of the paper: documents are random directions, and a query is the normalised sum of its matches. Random
directions are nearly orthogonal, so a match scores about 1/√s and everything else about 0; the dimension needed
grows as s · log m (s matches per query, m documents). Training needs far fewer: this is the upper bound.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from palmette.config import check_range
from palmette.methods.taxonomy.hierarchy import Hierarchy, Matches
from palmette.methods.taxonomy.training import found_matches

LARGEST_DIMENSION = 8_192
QUERIES_TRIED = 300
"""Queries that a dimension is tried on."""


def construct(matches: Matches, dimension: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Query embeddings [Q, d] and document embeddings [N, d], all of unit length."""
    documents = F.normalize(torch.randn(matches.size, dimension, generator=generator), dim=1)  # [N, d]
    rows = torch.from_numpy(matches.documents.astype(np.int64))
    sums = F.embedding_bag(rows, documents, torch.from_numpy(matches.starts[:-1]), mode="sum")  # [Q, d]
    return F.normalize(sums, dim=1), documents


def dimension_needed(
    hierarchy: Hierarchy, *, recall: float = 0.95, max_distance: int | None = None, seed: int = 0
) -> int:
    """Find a dimension at which the constructed embeddings reach a recall: enough, and more than training needs.

    ``recall`` is the share of the nodes within ``max_distance`` above a node that is found among as many best;
    ``seed`` draws the directions and the nodes that are tried.
    """
    check_range("dimension_needed", "recall", recall, 0.01, 1)
    every = hierarchy.matches(max_distance)
    tried = every.take(np.sort(np.random.default_rng(seed).permutation(len(every))[:QUERIES_TRIED]))

    def enough(dimension: int) -> bool:
        queries, documents = construct(tried, dimension, torch.Generator().manual_seed(seed))
        return float(found_matches(queries, documents, tried).mean()) >= recall

    high = 1
    while high < LARGEST_DIMENSION and not enough(high):
        high *= 2
    low = high // 2  # too few
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
