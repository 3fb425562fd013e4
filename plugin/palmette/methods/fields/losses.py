"""CHARM's losses as pure functions (B queries, M documents, F fields, d width)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Losses", "contrast", "diversity", "losses"]


class Losses(NamedTuple):
    """The summands of equation 6, and the diversity loss of multi-view representations (equation 7)."""

    aggregate: Tensor
    fields: Tensor
    best: Tensor
    diversity: Tensor


def contrast(logits: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """InfoNCE (equation 2): −ln softmax of each query's document over all documents of the batch.

    Args:
        logits: [..., B, M] similarities divided by τ.
        target: [B] which document belongs to each query.
        known: [B, M] True for every document that answers a query: others than its own are left out.

    Returns:
        [..., B] for each query.
    """
    own = F.one_hot(target, logits.shape[-1]).bool()  # [B, M]
    left = logits.masked_fill(known & ~own, -torch.inf)
    picked = left.gather(-1, target.expand(left.shape[:-1])[..., None])[..., 0]  # [..., B]
    return left.logsumexp(-1) - picked


def diversity(logits: Tensor, target: Tensor) -> Tensor:
    """L_Div (equation 7): −ln softmax, over the fields of its document, of the one that matches a query best.

    Args:
        logits: [F, B, M] similarities by field, divided by τ.
        target: [B] the document of each query.
    """
    own = logits[:, torch.arange(len(target), device=target.device), target]  # [F, B]
    return (own.logsumexp(0) - own.amax(0)).mean()


def losses(
    queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor, temperature: float
) -> Losses:
    """All losses of a batch.

    Args:
        queries: [B, d] h_q.
        fields: [M, F, d] h_{p,f}.
        aggregate: [M, d] h_p.
        target: [B] which document belongs to each query.
        known: [B, M] True for every document that answers a query.
        temperature: τ.
    """
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / temperature  # [F, B, M]
    there = (
        (fields[target] != 0).any(-1).T
    )  # [F, B] whether the document of a query has that field, or earlier ones
    return Losses(
        aggregate=contrast(queries @ aggregate.T / temperature, target, known).mean(),
        fields=(contrast(by_field, target, known) * there).sum() / there.sum().clamp(min=1),  # avg_f
        best=contrast(
            by_field.amax(0), target, known
        ).mean(),  # h_max: the best field of each query and document
        diversity=diversity(by_field, target),
    )
