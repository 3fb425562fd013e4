"""Initial indexer: k-means of the corpus, and of its residuals at every further height.

From a random start the leaves collapse: the losses see only the batch, and nothing keeps a path to few documents. A
k-means is an indexer that keeps the encoder's geometry, and the losses continue from there. It can be written exactly:
argmin ‖x − c‖² = argmax (c·x − ½‖c‖²) is linear in x, and at height h, where x is the residual after earlier centres
c(i), c·c(i) is one number per earlier child: a row of its one-hot.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from palmette.methods.paths.config import SHARPNESS
from palmette.methods.paths.module import TEXTS_PER_ROUTING, Indexer

KMEANS_ROUNDS = 20
"""Rounds of k-means."""
POINTS = 128
"""Points per centre that k-means reads."""


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest of the centres [K, m] for points [n, m], and c·x − ½‖c‖² of it: [n] each."""
    half = 0.5 * centres.square().sum(1)
    nearest_centres = [(part @ centres.T - half).max(1) for part in torch.split(x, TEXTS_PER_ROUTING)]
    return torch.cat([best.indices for best in nearest_centres]), torch.cat([best.values for best in nearest_centres])


def kmeans(x: Tensor, centres: int, seed: int, *, unit: bool = False) -> Tensor:
    """Centres [K, m] of points [n, m], of length 1 where ``unit``; an empty one moves to the farthest points."""
    order = np.random.default_rng(seed).permutation(len(x))[: POINTS * centres]
    x = x[np.resize(order, max(len(order), centres))]  # at least one point per centre
    c = x[:centres].clone()
    for _ in range(KMEANS_ROUNDS):
        own, score = nearest(x, c)
        sums = torch.zeros_like(c).index_add_(0, own, x)
        counts = own.bincount(minlength=centres)
        empty = counts == 0
        # ‖x − c‖² = ‖x‖² − 2 (c·x − ½‖c‖²): the smallest score − ½‖x‖² are the farthest points
        sums[empty] = x[(score - 0.5 * x.square().sum(1)).argsort()[: int(empty.sum())]]
        c = F.normalize(sums, dim=1) if unit else sums / counts.clamp(min=1)[:, None]
    return c


@torch.no_grad()
def initialise(indexer: Indexer, x: Tensor, seed: int) -> None:
    """Set an indexer to a residual k-means of unit vectors x [n, m]: each height clusters what the heights above leave.

    A text goes to the centre c nearest to its residual x − Σ a, where a are the centres of its path so far. That is the
    largest x · c − Σ a · c − ½ |c|²: the weights of x are c, those of earlier turns −a · c, and the bias is −½ |c|².
    In ``indexer.outer[h]`` [h·B + m, B] the rows of turns come first, B for each height; ``SHARPNESS`` scales all.
    """
    earlier: list[Tensor] = []
    residual = x
    for h in range(indexer.height):
        c = kmeans(residual, indexer.branches, seed + h, unit=not h)  # [B, m]
        crossed = [-(before @ c.T) for before in reversed(earlier)]  # [B, B] each, the last turn first
        indexer.outer[h].copy_(torch.cat([*crossed, c.T]) * SHARPNESS)
        indexer.bias[h].copy_(-0.5 * c.square().sum(1) * SHARPNESS)
        residual = residual - c[nearest(residual, c)[0]]
        earlier.append(c)
