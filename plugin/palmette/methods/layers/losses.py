"""The contrastive loss of every layer (B batch, L layers, C documents)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["layers_loss"]


def layers_loss(scores: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """The mean over layers of −log(e^{s⁺} / (e^{s⁺} + Σ e^{s⁻})), each document a negative of the others' questions.

    Args:
        scores: [L, B, C] similarity of each layer's queries and the documents, already scaled.
        target: [B] column of each question's document.
        known: [B, C] True where a document is known to answer: no negative.
    """
    layers, batch, columns = scores.shape
    others = known & ~F.one_hot(target, columns).bool()  # [B, C]
    logits = scores.masked_fill(others, -torch.inf).reshape(layers * batch, columns)
    return F.cross_entropy(logits, target.repeat(layers))
