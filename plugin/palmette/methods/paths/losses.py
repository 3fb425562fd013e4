"""The losses of a learned index as pure functions (B queries with a document each, C ≥ B documents, P numbers).

Row i's own document is column i; further columns are other wrong answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["imbalance", "intra_leaf", "triplet"]


def triplet(similarity: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Equation 2, L(a, b, c) = [a·c − a·b + γ]₊, averaged over all triplets of a batch.

    Args:
        similarity: [B, C] a·c for every c; a·b is on the diagonal.
        negative: [B, C] True where c is irrelevant.
        margin: γ.
    """
    positive = similarity.diagonal()[:, None]  # [B, 1]
    terms = torch.relu(similarity - positive + margin) * negative  # [B, C]
    return terms.sum() / negative.sum().clamp(min=1)


def intra_leaf(
    paths: Tensor, cosine: Tensor, negative: Tensor, *, similar: float, margin: float | None
) -> Tensor:
    """Unlike documents are to lie in different leaves.

    Args:
        paths: [C, P] path embeddings T of the documents; the first B are relevant ones.
        cosine: [B, C] of the documents' vectors: only pairs under τ are pushed apart.
        negative: [B, C] True where a document is irrelevant to the row's query.
        similar: τ.
        margin: γ of the triplet that is anchored on d₊, L(T(d₊), T(d₊), T(d₋)); ``None`` for equation 5, the
            product T(d₊)·T(d₋).
    """
    together = paths[: len(cosine)] @ paths.T  # [B, C]
    apart = negative & (cosine.detach() < similar)
    if margin is not None:
        return triplet(together, apart, margin)
    return (together * apart).sum() / apart.sum().clamp(min=1)


def imbalance(paths: Tensor, heights: int) -> Tensor:
    """How far the average path embedding of documents [C, P] is from equal shares at every height: Σ KL(p̄ ‖ 1/B)."""
    shares = paths.view(len(paths), heights, -1).mean(0)  # [H, B]
    shares = shares / shares.sum(1, keepdim=True)
    return (shares * (shares.clamp_min(1e-9).log() + torch.tensor(float(shares.shape[1])).log())).sum()
