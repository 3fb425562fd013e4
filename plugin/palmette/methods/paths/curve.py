"""Recall against documents visited (Q queries, N documents, L leaves, l per document)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.metrics import score_ranks

if TYPE_CHECKING:
    from palmette.metrics import Judgements

__all__ = ["SHARES", "prefixes", "recall_curve"]

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
"""Shares of the documents at which recall is measured."""
DEPTH = 100
PART = 64

Ints = NDArray[np.int64]


def prefixes(leaves: Ints, sizes: Ints, budget: float) -> Ints:
    """How many of each query's leaves [Q, β], best first, hold at most ``budget`` documents; at least one: [Q]."""
    held = np.cumsum(sizes[leaves], axis=1)
    whole: Ints = np.maximum((held <= budget).sum(axis=1), 1)
    return whole


def recall_curve(
    queries: Tensor,
    documents: Tensor,
    order: Tensor,
    leaves: Tensor,
    judgements: Judgements,
    count: int,
    shares: Sequence[float] = SHARES,
) -> dict[float, Mapping[str, float]]:
    """What is found, and the share of documents really visited, when so large a share of them may be.

    Args:
        queries: [Q, m] vectors.
        documents: [N, m] vectors.
        order: [Q, L] every leaf, each query's likeliest first.
        leaves: [N, l] leaves of the documents.
        judgements: Of these queries and documents.
        count: L.
        shares: Shares of N.
    """
    sizes = np.bincount(leaves.cpu().numpy().ravel(), minlength=count)
    rank = torch.argsort(order, dim=1)  # [Q, L] at which place each leaf comes
    budgets = [np.inf if share == 1.0 else share * len(documents) for share in shares]
    looked = [
        torch.from_numpy(prefixes(order.cpu().numpy(), sizes, budget)).to(rank.device) for budget in budgets
    ]  # [Q] each
    ranks: list[list[Tensor]] = [[] for _ in shares]
    visited = [0.0 for _ in shares]
    for start in range(0, len(queries), PART):
        part = slice(start, start + PART)
        cosine = queries[part] @ documents.T  # [64, N]
        places = torch.stack([rank[part][:, own] for own in leaves.T]).amin(0)  # [64, N] of the earliest leaf
        for at in range(len(shares)):
            inside = places < looked[at][part, None]
            found = cosine.masked_fill(~inside, -torch.inf).topk(min(DEPTH, len(documents)), dim=1)
            ranks[at].append(found.indices.masked_fill(found.values == -torch.inf, -1))
            visited[at] += float(inside.sum())
    curve: dict[float, Mapping[str, float]] = {}
    for at, share in enumerate(shares):
        scored = score_ranks(torch.cat(ranks[at]).cpu().numpy(), judgements, ks=(10, DEPTH))
        curve[share] = {
            "visited": visited[at] / (len(queries) * len(documents)),
            **{name: scored[name] for name in ("recall@10", "recall@100", "ndcg@10")},
        }
    return curve
