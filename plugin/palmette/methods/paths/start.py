"""Where the indexer begins: k-means of the corpus, and of what is left of it at every further height.

From a random start the leaves collapse: the losses know only the batch, and nothing asks a path to be that of few
documents. A k-means is an indexer that keeps the encoder's geometry, and the losses go on from there. It can be
written down exactly: argmin ‖x − c‖² = argmax (c·x − ½‖c‖²) is linear in x, and at height h, where x is what earlier
centres c(i) leave of a text, c·c(i) is a number for each child taken earlier: a row of its one-hot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.methods.paths.module import Indexer

__all__ = ["begin", "kmeans"]

ROUNDS = 25
POINTS = 256
"""Points per centre that are looked at."""
PART = 16_384


def kmeans(x: Tensor, centres: int, generator: torch.Generator, *, rounds: int = ROUNDS) -> Tensor:
    """Centres [K, m] of points [n, m]; one that nothing goes to moves beside the fullest."""
    n = min(len(x), POINTS * centres)
    x = x[torch.randperm(len(x), generator=generator)[:n]]
    c = x[torch.randperm(n, generator=generator)[torch.arange(centres) % n]].clone()  # [K, m]
    for _ in range(rounds):
        nearest = assigned(x, c)
        counts = torch.bincount(nearest, minlength=centres)
        sums = torch.zeros_like(c).index_add_(0, nearest, x)
        c = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], c)
        for empty in torch.nonzero(counts == 0).flatten().tolist():
            fullest = int(counts.argmax())
            members = torch.nonzero(nearest == fullest).flatten()
            c[empty] = x[members[torch.randint(len(members), (1,), generator=generator)]][0]
            counts[fullest] = counts[fullest] // 2
    return c


def assigned(x: Tensor, c: Tensor) -> Tensor:
    """The nearest centre of each point: [n, m], [K, m] → [n]."""
    half = 0.5 * c.square().sum(1)
    return torch.cat([(part @ c.T - half).argmax(1) for part in torch.split(x, PART)])


@torch.no_grad()
def begin(indexer: Indexer, x: Tensor, sharpness: float, generator: torch.Generator) -> None:
    """Set an indexer to the k-means of unit vectors [n, m]; ``sharpness`` is the factor of its logits."""
    earlier: list[Tensor] = []
    left = x
    for h in range(indexer.height):
        c = kmeans(left, indexer.branches, generator)  # [B, m]
        outer, bias = indexer.outer[h], indexer.bias[h]
        crossed = [-(before @ c.T) for before in reversed(earlier)]  # [B, B] each, the last turn first
        outer.copy_(torch.cat([*crossed, c.T]) * sharpness)
        bias.copy_(-0.5 * c.square().sum(1) * sharpness)
        left = left - c[assigned(left, c)]
        earlier.append(c)
