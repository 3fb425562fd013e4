"""CHARM's losses as pure functions (B queries, M documents, F fields, d width)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Losses", "agreement", "best_of", "contrast", "diversity", "losses", "taught"]


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


def agreement(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy with a teacher: −Σ_m wanted_m ln softmax(logits)_m, where InfoNCE wants one document.

    Args:
        logits: [..., B, M] similarities divided by τ.
        wanted: [B, M] shares that sum to 1.

    Returns:
        [..., B] for each query.
    """
    return -(wanted * logits.log_softmax(-1)).sum(-1)


def best_of(by_field: Tensor, fields: Tensor) -> Tensor:
    """The best field of each query and document: [F, B, M] → [B, M]; fields that a document lacks are zeros [M, F, d].

    These outrank no other, and count 0 where there are none.
    """
    there = (fields != 0).any(-1)  # [M, F]
    lacks = ~there & there.any(-1, keepdim=True)
    return by_field.masked_fill(lacks.T[:, None], -torch.inf).amax(0)


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
        best=contrast(best_of(by_field, fields), target, known).mean(),  # h_max
        diversity=diversity(by_field, target),
    )


def taught(queries: Tensor, fields: Tensor, aggregate: Tensor, wanted: Tensor, temperature: float) -> Losses:
    """The same losses, of documents that a teacher has ranked: ``wanted`` [B, M] sums to 1 for each query."""
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / temperature  # [F, B, M]
    return Losses(
        aggregate=agreement(queries @ aggregate.T / temperature, wanted).mean(),
        fields=agreement(by_field, wanted).mean(),
        best=agreement(best_of(by_field, fields), wanted).mean(),
        diversity=diversity(by_field, wanted.argmax(-1)),
    )
