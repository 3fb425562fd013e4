"""The space that the splits live in: the encoder's embeddings after one linear map, learned from the pairs first.

A tree's thousand hyperplanes have far more to learn than the few hundred directions of the space under them. So the
space comes first: W starts as the identity and learns by the same symmetric InfoNCE, on cosines of Wx / |Wx|; then
the tree begins from the principal directions of the adapted corpus. The rate is chosen on held-out queries, and so
is how far to go; a map that helps none of them stays the identity. Where nobody judged it goes half of the way:
:mod:`palmette.methods.tree.trust`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.losses import info_nce
from palmette.methods.tree.ahead import learn_ahead
from palmette.methods.tree.trust import TRUST
from palmette.pairs import EncodedPairs
from palmette.training import TrainingConfig

__all__ = ["Adapter", "learn_adapter"]

RATES = (1e-4, 1e-3)
# Many wrong answers at once: 128 cost .015 and more of the adapted cosine's nDCG@10 where there are many labels.
HOW = TrainingConfig(steps=500, batch_size=512, evaluate_every=100, clip=0.0, precision="float32")
PASSES = 300
"""Over few pairs at most."""
FIRST_MULTIPLIER = 20.0


class Adapter(nn.Module):
    """x → Wx / |Wx|, fixed once learned."""

    weight: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(width))  # [d, d]

    def forward(self, x: Tensor) -> Tensor:
        """[B, d] → [B, d], rows of length 1."""
        return _adapted(x, self.weight)


class _Learning(nn.Module):
    """The map while it learns, and the multiplier of its cosines."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())  # [d, d]
        self.log_multiplier = nn.Parameter(torch.tensor(math.log(FIRST_MULTIPLIER)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, d] → [B, d], rows of length 1."""
        return _adapted(x, self.weight)


@dataclass
class _Task:
    """Symmetric InfoNCE on the cosines of the mapped pairs."""

    module: _Learning
    pairs: EncodedPairs
    metric: str = "ndcg@10"

    def size(self) -> int:
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        self.pairs = self.pairs.to(device)

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        queries, documents, known = self.pairs.batch(rows)  # [B, d], [B, d], [B, B]
        cosine = module(queries) @ module(documents).T
        return info_nce(cosine * self.module.log_multiplier.exp(), known)

    def validate(self, module: nn.Module) -> dict[str, float]:
        return self.pairs.validate(module, lambda q, d: q @ d.T)


def _adapted(x: Tensor, weight: Tensor) -> Tensor:
    return F.normalize(F.linear(x, weight), dim=1)


def learn_adapter(adapter: Adapter, pairs: EncodedPairs, seed: int, progress: bool | None) -> None:
    """Set ``adapter`` to the map that serves the held-out queries best; without any it stays as it is."""
    if pairs.dev is None or len(pairs) < 2:
        return
    task = _Task(_Learning(adapter.weight), pairs)
    how = HOW.replace(seed=seed)
    learn_ahead(task, how, RATES, passes=PASSES, label="Adapting the space", progress=progress)
    adapter.weight.lerp_(task.module.weight.detach(), 1.0 if pairs.data.labelled else TRUST)
