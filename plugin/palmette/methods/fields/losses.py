"""CHARM's equations as pure functions over tensors (B queries, M documents, F fields, d dimension)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from palmette.methods.fields.config import FieldsConfig


def info_nce(logits: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """InfoNCE (equation 2): −ln softmax of each query's document over all documents of the batch.

    Args:
        logits: [..., B, M] similarities divided by τ.
        target: [B] column of each query's document.
        known: [B, M] True for every document that answers a query; those other than its own are left out.

    Returns:
        [..., B] for each query.
    """
    own = F.one_hot(target, logits.shape[-1]).bool()  # [B, M]
    logits = logits.masked_fill(known & ~own, -torch.inf)
    picked = logits.gather(-1, target.expand(logits.shape[:-1])[..., None])[..., 0]  # [..., B]
    return logits.logsumexp(-1) - picked


def best_field(by_field: Tensor, fields: Tensor) -> Tensor:
    """Similarity of h_Max, each document's best field: [F, B, M] → [B, M].

    Fields that a document lacks (zeros in ``fields`` [M, F, d]) outrank no other; without any field it scores 0.
    """
    filled = (fields != 0).any(-1)  # [M, F]
    lacking = ~filled & filled.any(-1, keepdim=True)
    return by_field.masked_fill(lacking.T[:, None], -torch.inf).amax(0)


def losses(
    queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """L_Agg, L_Fields and L_Max (equation 5) of queries [B, d], fields [M, F, d] and aggregates [M, d]."""
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / temperature  # [F, B, M]
    filled = (
        (fields[target] != 0).any(-1).T
    )  # [F, B] whether a query's document has that field, or earlier ones
    return (
        info_nce(queries @ aggregate.T / temperature, target, known).mean(),
        (info_nce(by_field, target, known) * filled).sum() / filled.sum().clamp(min=1),  # avg_f
        info_nce(best_field(by_field, fields), target, known).mean(),
    )


def charm_loss(
    config: FieldsConfig, queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor
) -> Tensor:
    """L = λ_Agg L_Agg + λ_Fields L_Fields + λ_Max L_Max (equation 6); arguments as in :func:`losses`."""
    parts = losses(queries, fields, aggregate, target, known, config.temperature)
    weights = (config.aggregate_weight, config.fields_weight, config.best_weight)
    return torch.stack([weight * part for weight, part in zip(weights, parts, strict=True)]).sum()
