"""Routing in double precision: a sum's last digits depend on the batch that a text is in, and rounding brings them out.

In single precision 37 of 200 texts had leaves a part (2⁻¹⁵) apart when they were alone and when they were in one batch,
and twins did not tie.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.encoder import States
from palmette.methods.tree.module import Tree

__all__ = ["Exact"]

PASS = 1 << 25
"""Numbers a routing pass may hold; more texts than that go in parts."""


class Exact:
    """A copy of a tree that reads embeddings alone."""

    def __init__(self, tree: Tree) -> None:
        device = tree.log_multipliers.device
        self.device = torch.device("cpu") if device.type == "mps" else device  # which has no double precision
        self.tree = copy.deepcopy(tree).to(self.device).double()
        self.part = max(1, PASS // (tree.config.leaves * tree.config.depth))

    def leaves(self, pooled: Tensor) -> NDArray[np.float64]:
        """Leaf probabilities of embeddings: [B, d] → [B, C]."""
        parts = torch.split(pooled.to(self.device, torch.float64), self.part)
        leaves: NDArray[np.float64] = torch.cat([self.tree(States(x)).cpu() for x in parts]).numpy()
        return leaves
