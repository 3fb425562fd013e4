"""The tree as a module: split scores, then propagation (B batch, d width, N split nodes, D depth)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.tree.config import TreeConfig

__all__ = ["Tree", "coarsen", "propagate"]

LOWEST, HIGHEST = 1e-4, 1e3
"""Bounds of the similarity's learned multiplier."""


def propagate(scores: Tensor, depth: int) -> Tensor:
    """Product propagation: T(x)_t = ∏ of the routing probabilities on the way from the root to t.

    Split nodes are numbered level by level from the root (node t has children 2t+1 and 2t+2).

    Args:
        scores: [B, N] split scores, N ≥ 2^depth − 1; σ(score) is the probability of going left.
        depth: Level to reach.

    Returns:
        [B, 2^depth] probabilities of reaching each node of that level, left to right.
    """
    reached = scores.new_ones(len(scores), 1)  # [B, 1]: everything reaches the root
    for level in range(depth):
        left = torch.sigmoid(scores[:, 2**level - 1 : 2 ** (level + 1) - 1])  # [B, 2^level]
        reached = torch.stack([reached * left, reached * (1 - left)], dim=-1).flatten(1)  # [B, 2^(level+1)]
    return reached


def coarsen(leaves: Tensor, level: int) -> Tensor:
    """A coarser level of a consistent tree: each node is the sum of the leaves under it ([B, 2^D] → [B, 2^level])."""
    return leaves.reshape(len(leaves), 2**level, -1).sum(-1)


class Tree(nn.Module):
    """A perfect binary tree of linear splits s_t(x) = θ_t·x + b_t, all evaluated in one product."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.config = config
        self.directions = nn.Parameter(torch.zeros(config.splits, config.width))  # [N, d]
        self.offsets = nn.Parameter(torch.zeros(config.splits))  # [N]
        self.log_multiplier = nn.Parameter(torch.zeros(()))

    @property
    def multiplier(self) -> Tensor:
        """What nTVD is multiplied by in the loss."""
        return self.log_multiplier.exp().clamp(LOWEST, HIGHEST)

    def forward(self, x: Tensor, level: int | None = None) -> Tensor:
        """Probabilities of the nodes of a level, the leaves by default: [B, d] → [B, 2^level]."""
        level = self.config.depth if level is None else level
        needed = 2**level - 1  # a shallower level needs no deeper split
        scores = F.linear(x, self.directions[:needed], self.offsets[:needed])  # [B, needed]
        scores = F.dropout(scores, self.config.dropout, self.training)
        return propagate(scores.float(), level)
