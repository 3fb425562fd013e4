"""CHARM's equations as pure functions over tensors (B queries, M documents, F fields, d dimension).

Equation 2 is :func:`palmette.training.maths.info_nce`; documents known to answer a query are no negatives of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.methods.fields.config import FieldsConfig
from palmette.training.maths import info_nce


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
    """L_Agg, L_Fields and L_Max (equation 5) of queries h_q [B, d], fields h_{p,f} [M, F, d], aggregates h_p [M, d].

    ``target`` [B] is the column of each query's document, ``known`` [B, M] tells every document that answers a query.
    """
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / temperature  # [F, B, M]
    filled = (fields[target] != 0).any(-1).T  # [F, B] fields that a query's document has, or earlier ones
    each = info_nce(by_field, target, known, reduction="none")  # [F, B]
    return (
        info_nce(queries @ aggregate.T / temperature, target, known),
        (each * filled).sum() / filled.sum().clamp(min=1),  # avg_f
        info_nce(best_field(by_field, fields), target, known),
    )


def charm_loss(
    config: FieldsConfig, queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor
) -> Tensor:
    """L = λ_Agg L_Agg + λ_Fields L_Fields + λ_Max L_Max (equation 6); arguments as in :func:`losses`."""
    parts = losses(queries, fields, aggregate, target, known, config.temperature)
    weights = (config.aggregate_weight, config.fields_weight, config.best_weight)
    return torch.stack([weight * part for weight, part in zip(weights, parts, strict=True)]).sum()
