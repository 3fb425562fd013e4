"""Contrastive loss of every layer (B batch, L layers, C documents)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def layers_loss(scores: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """Mean over layers of −log(e^{s⁺} / (e^{s⁺} + Σ e^{s⁻})) with in-batch negatives (section 3.2 of the paper).

    Args:
        scores: [L, B, C] scaled similarity of each layer's queries and the documents (equation 1).
        target: [B] column of each query's document.
        known: [B, C] True where a document is known to be relevant: no negative.
    """
    layers, batch, columns = scores.shape
    others = known & ~F.one_hot(target, columns).bool()  # [B, C]
    logits = scores.masked_fill(others, -torch.inf).reshape(layers * batch, columns)
    return F.cross_entropy(logits, target.repeat(layers))
