"""Scores → probabilities of reaching nodes (B batch, N split nodes, C leaves, D depth)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.shape import Shape
from palmette.methods.tree.splits import REFINING

__all__ = ["LearnedPropagation", "coarsen", "propagate"]


def propagate(scores: Tensor, shape: Shape, level: int) -> Tensor:
    """Product propagation: T(x)_t = ∏ of the routing probabilities on the way from the root to t.

    Args:
        scores: [B, n] scores of the first n split nodes; σ(score) is the probability of going left.
        shape: Which nodes there are.
        level: Level to reach, n ≥ ``shape.needed(level)``.

    Returns:
        [B, C_level] probabilities of reaching each node of that level, left to right.
    """
    reached, done = scores.new_ones(len(scores), 1), 0  # [B, 1]: everything reaches the root
    for above in range(level):
        here = scores[:, done : done + shape.opened[above]]  # [B, splits of this level]
        done += here.shape[1]
        left, right = torch.sigmoid(here), torch.sigmoid(-here)
        if here.shape[1] == reached.shape[1]:  # every node splits
            reached = torch.stack([reached * left, reached * right], dim=-1).flatten(1)
        else:
            source, factor = (torch.from_numpy(part).to(scores.device) for part in shape.moves(above))
            turns = torch.cat([left, right, left.new_ones(len(left), 1)], dim=1)
            reached = reached[:, source] * turns[:, factor]
    return reached


def coarsen(leaves: Tensor, shape: Shape, level: int) -> Tensor:
    """A coarser level of a consistent tree: each node is the sum of the leaves under it ([B, C] → [B, C_level])."""
    runs = shape.runs(level)
    if isinstance(runs, int):
        return leaves.reshape(len(leaves), -1, runs).sum(-1)
    node = torch.repeat_interleave(
        torch.tensor(runs, device=leaves.device)
    )  # [C]: the node each leaf is under
    return leaves.new_zeros(len(leaves), len(runs)).index_add(1, node, leaves)


class LearnedPropagation(nn.Module):
    """A leaf's score is the product's logarithm, corrected by a small network of its own over the turns on its way.

    A softmax over all leaves follows; inner nodes are sums of their leaves, so levels stay consistent.
    """

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        where, turns = config.shape.ancestors()
        self.register_buffer("where", torch.from_numpy(where), persistent=False)  # [C, D]
        self.register_buffer("turns", torch.from_numpy(turns), persistent=False)  # [C, D]
        leaves, depth = where.shape
        self.inner = nn.Parameter(torch.randn(leaves, depth, REFINING) / math.sqrt(depth))
        self.bias = nn.Parameter(torch.zeros(leaves, REFINING))
        self.out = nn.Parameter(torch.randn(leaves, REFINING) / math.sqrt(REFINING))

    where: Tensor
    turns: Tensor

    def forward(self, scores: Tensor) -> Tensor:
        """[B, N] → [B, C], rows of sum 1."""
        turned = F.logsigmoid(scores[:, self.where] * self.turns)  # [B, C, D]: log-probability of each turn
        inner = F.relu(torch.einsum("bcd,cdh->bch", turned.exp(), self.inner) + self.bias)  # [B, C, REFINING]
        inner = F.dropout(inner, 0.1, self.training)
        return torch.softmax(turned.sum(-1) + torch.einsum("bch,ch->bc", inner, self.out), dim=-1)
