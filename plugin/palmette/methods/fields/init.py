"""Weights of the fields in the aggregate before anything else is learned."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.methods.fields.module import FieldEncoder
from palmette.training.maths import info_nce

WEIGHT_STEPS = 40
"""Steps that fit the initial weights: enough to tell fields apart, too few to silence any."""
WEIGHT_RATE = 0.1
"""Learning rate of these steps."""


def fit_field_weights(module: FieldEncoder, queries: Tensor, fields: Tensor, target: Tensor, known: Tensor) -> None:
    """Fit the bias of the fields' weights by L_Agg on some training pairs; the encoder stays as it is.

    Fields that tell little alone (a brand, a number) would else count as much in the first aggregates as whole
    documents, and a few hundred steps do not make good for that. Arguments as in :func:`losses.losses`.
    """
    filled = (fields != 0).any(-1)  # [M, F]
    bias = module.field_weights.bias.detach().cpu().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([bias], lr=WEIGHT_RATE)
    lowest = torch.finfo(bias.dtype).min
    for _ in range(WEIGHT_STEPS):
        weights = bias.expand(len(fields), -1).masked_fill(~filled, lowest).softmax(-1)  # [M, F]
        logits = queries @ module.aggregate(fields, weights).T / module.config.temperature
        optimizer.zero_grad()
        torch.autograd.backward(info_nce(logits, target, known))
        optimizer.step()
    with torch.no_grad():
        module.field_weights.bias.copy_(bias)
