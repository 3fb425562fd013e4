"""The tree as a module: split scores, then propagation (B batch, d width, C leaves, D depth)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import States
from palmette.methods.tree.adapter import Adapter
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.propagation import LearnedPropagation, coarsen, propagate
from palmette.methods.tree.splits import CrossAttention, Linear, Mlp, Refine, pooled

__all__ = ["Tree"]

LOWEST, HIGHEST = 1e-4, 1e4
"""Bounds of the similarities' learned multipliers."""
ATTENDING = 0.03
"""Pace of attention beside hyperplanes, which begins at zero: at full pace its first steps undo where those began."""


class Tree(nn.Module):
    """s_t(x) of every node in one pass, and the probabilities that follow.

    With ``start="principal"`` every split function contains the linear one: s_t(x) = θ_t·x + b_t + f_t(x), where
    f starts at zero, so that any tree can begin from the encoder's geometry.

    Attributes:
        adapter: The map into the space of the splits; ``None`` where that is the encoder's.
        linear: θ and b; ``None`` where a split stands alone, as in the paper.
        beyond: f; ``None`` for linear trees.
        refine: The ``tree`` aggregation.
        learned: The learned propagation.
        paces: Parts that learn faster or slower than others, and by how much.
    """

    paces: Mapping[str, float] = {}

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.config = config
        alone = config.split != "linear" and config.start == "random"
        self.adapter = Adapter(config.width) if config.space == "adapted" else None
        self.linear = None if alone else Linear(config.scored, config.width)
        self.beyond: nn.Module | None = None
        if config.split == "mlp":
            self.beyond = Mlp(config)
        elif config.split == "cross_attention":
            self.beyond = CrossAttention(config)
        refined = (
            config.split == "cross_attention"
            and config.aggregation == "tree"
            and config.propagation != "none"
        )
        self.refine = Refine(config) if refined else None
        if config.split == "cross_attention" and not alone:
            self.paces = {"beyond": ATTENDING, "refine": ATTENDING}
        self.learned = LearnedPropagation(config) if config.propagation == "learned" else None
        self.log_multipliers = nn.Parameter(torch.zeros(config.depth))  # [D]

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings in the space of the splits: [B, d] → [B, d]."""
        embedded: Tensor = x if self.adapter is None else self.adapter(x)
        return embedded

    def multiplier(self, level: int) -> Tensor:
        """What nTVD at a level is multiplied by in the loss: few columns overlap otherwise than many."""
        return self.log_multipliers[level - 1].exp().clamp(LOWEST, HIGHEST)

    def scores(self, states: States, level: int) -> Tensor:
        """Scores of the nodes that a level needs: [B, n]."""
        config = self.config
        states = replace(states, pooled=self.embed(pooled(states)))
        n = config.shape.needed(level) if config.propagation == "product" else config.scored
        parts = [part(states, n) for part in (self.linear, self.beyond) if part is not None]
        scores: Tensor = sum(parts[1:], start=parts[0])
        if self.refine is not None:
            scores = self.refine(scores)
        scores = F.dropout(scores, config.dropout, self.training)
        return scores if scores.dtype == torch.float64 else scores.float()

    def forward(self, states: States, level: int | None = None) -> Tensor:
        """Probabilities of the nodes of a level, the leaves by default: [B, C_level]."""
        config = self.config
        level = config.depth if level is None else level
        scores = self.scores(states, level)
        if config.propagation == "product":
            return propagate(scores, config.shape, level)
        leaves = torch.softmax(scores, dim=1) if self.learned is None else self.learned(scores)  # [B, C]
        return leaves if level == config.depth else coarsen(leaves, config.shape, level)
