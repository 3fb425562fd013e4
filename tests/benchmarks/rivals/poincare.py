"""Hyperbolic lookup tables: a point of the Poincaré ball for every query and document, direction and norm apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from palmette.methods.taxonomy.hierarchy import Matches

__all__ = ["distance", "learned"]

RATE, MULTIPLIER = 0.01, 5.0


def _ball(x: Tensor) -> Tensor:
    """[N, d + 1] → [N, d]: the last column is the norm's logit."""
    return F.normalize(x[:, :-1], dim=1) * torch.sigmoid(x[:, -1:]).clamp(max=1 - 1e-5)


def distance(q: Tensor, d: Tensor) -> Tensor:
    """[B, d], [C, d] → [B, C]."""
    apart = (q.square().sum(1, keepdim=True) + d.square().sum(1) - 2 * q @ d.T).clamp(min=0)
    room = (1 - q.square().sum(1, keepdim=True)) * (1 - d.square().sum(1))
    return torch.acosh(1 + 2 * apart / room + 1e-7)


def learned(every: Matches, width: int, *, steps: int, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of queries and documents [N, width], by a softmax over −distance in the batch, one match drawn."""
    generator, draw = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    size = len(every.counts)
    free = [torch.randn(size, width + 1, generator=generator).mul_(0.1).requires_grad_() for _ in range(2)]
    solver = torch.optim.Adam(free, lr=RATE)
    for step in range(steps):
        asked = draw.integers(0, size, batch)
        drawn = every.documents[every.starts[asked] + (draw.random(batch) * every.counts[asked]).astype(int)]
        points = _ball(free[0][torch.from_numpy(asked)]), _ball(free[1][torch.from_numpy(drawn)])
        loss = F.cross_entropy(-MULTIPLIER * distance(*points), torch.arange(batch))
        for group in solver.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        solver.zero_grad()
        torch.autograd.backward(loss)
        solver.step()
    queries, documents = (_ball(table.detach()) for table in free)
    return queries, documents
