"""What a tree learns from: pairs routed alike, other texts routed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.losses import info_nce, ntvd
from palmette.methods.tree.module import Tree
from palmette.pairs import EncodedPairs

__all__ = ["TreeTask"]


@dataclass
class TreeTask:
    """Symmetric InfoNCE on nTVD at a level drawn by the schedule; the encoder stays frozen."""

    module: Tree
    pairs: EncodedPairs

    @property
    def metric(self) -> str:
        """What the best weights are chosen by: the leaves, or all levels as often as the schedule draws them."""
        return "ndcg@10" if self.module.config.schedule == "constant" else "ndcg@10 over levels"

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the tree."""
        self.pairs = self.pairs.to(device)

    def draw(self, generator: torch.Generator) -> int:
        """The level of a step."""
        config = self.module.config
        if config.schedule == "constant":
            return config.depth
        return 1 + int(torch.multinomial(self.chances(), 1, generator=generator))

    def chances(self) -> Tensor:
        """P(h) ∝ h² of the levels 1 … D."""
        squares = torch.arange(1, self.module.config.depth + 1).float() ** 2
        return squares / squares.sum()

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """InfoNCE of a batch of pairs, against given negatives too where there are any."""
        level = self.draw(generator)
        queries, documents, known = self.pairs.batch(rows)  # [B, d], [B, d], [B, B]
        hard = self.pairs.hard_negatives(rows, generator)  # [M, d], [B, M]
        texts = [queries, documents] if hard is None else [queries, documents, hard.documents]
        reached = module(torch.cat(texts), level)  # [2B + M, 2^level]
        queries, documents, others = torch.tensor_split(reached, (len(rows), 2 * len(rows)))
        similarity = ntvd(queries, documents) * self.module.multiplier  # [B, B] in [−multiplier, 0]
        extra = None if hard is None else ntvd(queries, others) * self.module.multiplier  # [B, M]
        # Under a level's loss the deeper splits take no part: an empty sum keeps their gradients defined (and zero).
        idle = sum(parameter.sum() for parameter in self.module.parameters()) * 0.0
        return info_nce(similarity, known, extra, hard.known if hard else None) + idle

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: at the leaves, and over all levels."""
        scores = self.pairs.validate(module, ntvd)
        if not scores or self.module.config.schedule == "constant":
            return scores
        levels = range(1, self.module.config.depth)
        inner = [self.pairs.validate(partial(module, level=level), ntvd)["ndcg@10"] for level in levels]
        average = float(self.chances() @ torch.tensor([*inner, scores["ndcg@10"]]))
        return {**scores, self.metric: average}
