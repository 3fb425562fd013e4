"""Where the indexer begins: k-means of the corpus, and of what is left of it at every further height.

From a random start the leaves collapse: the losses know only the batch, and nothing asks a path to be that of few
documents. A k-means is an indexer that keeps the encoder's geometry, and the losses go on from there. It can be
written down exactly: argmin ‖x − c‖² = argmax (c·x − ½‖c‖²) is linear in x, and at height h, where x is what earlier
centres c(i) leave of a text, c·c(i) is a number for each child taken earlier: a row of its one-hot. Leaves are made
equally full here rather than once training is over: centres that move with their prices lose far less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.methods.paths.capacity import crowding
from palmette.methods.paths.module import Indexer

__all__ = ["assigned", "begin", "kmeans"]

ROUNDS, MORE, STEP = 20, 60, 0.14
"""Rounds of a k-means, further ones that even its clusters out, and how fast prices rise in them."""
POINTS = 256
"""Points per centre that are looked at."""
PART = 16_384


def kmeans(
    x: Tensor, centres: int, generator: torch.Generator, *, limit: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Centres [K, m] of points [n, m], and their prices [K].

    With a ``limit``, full clusters ask a price on top of the distance, by the log of how overfull they are, while the
    centres go on moving, until the crowding is at most that. A centre that nothing goes to moves beside the fullest.
    """
    n = min(len(x), POINTS * centres)
    x = x[torch.randperm(len(x), generator=generator)[:n]]
    c = x[torch.randperm(n, generator=generator)[torch.arange(centres) % n]].clone()  # [K, m]
    made = _clustered(x, c, limit, generator)
    if limit and made[2] > limit:  # prices may run away where clusters lie far apart
        made = min(made, _clustered(x, c, 0.0, generator), key=lambda clusters: clusters[2])
    return made[:2]


def _clustered(
    x: Tensor, c: Tensor, limit: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """From centres [K, m], the best that are met: they, their prices, and how crowded they are."""
    c, prices = c.clone(), torch.zeros(len(c))
    best = (c, prices, float("inf"))
    for turn in range(ROUNDS + (MORE if limit else 1)):
        nearest = assigned(x, c, prices)
        counts = torch.bincount(nearest, minlength=len(c))
        crowded = crowding(counts)
        if turn >= ROUNDS and crowded < best[2]:
            best = (c.clone(), prices.clone(), crowded)
        if turn >= ROUNDS and crowded <= limit:
            break
        sums = torch.zeros_like(c).index_add_(0, nearest, x)
        c = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], c)
        if limit and crowded > limit:
            prices += STEP * _gap(x, c) * ((counts + 1) / (len(x) / len(c) + 1)).log().clamp(-2, 2)
        fullness = counts.double()
        for empty in torch.nonzero(counts == 0).flatten().tolist():
            fullest = int(fullness.argmax())
            members = torch.nonzero(nearest == fullest).flatten()
            c[empty] = x[members[torch.randint(len(members), (1,), generator=generator)]][0]
            prices[empty] = prices[fullest]
            fullness[fullest] /= 2
    return best


def _gap(x: Tensor, c: Tensor) -> Tensor:
    """By how much a point prefers its nearest centre to the next, on average: the scale of prices."""
    some = x[:1000] @ c.T - 0.5 * c.square().sum(1)
    first, second = some.topk(2, dim=1).values.T
    gap: Tensor = (first - second).mean()
    return gap


def assigned(x: Tensor, c: Tensor, prices: Tensor | float = 0.0) -> Tensor:
    """The nearest centre of each point, prices counted: [n, m], [K, m] → [n]."""
    cost = 0.5 * c.square().sum(1) + prices
    return torch.cat([(part @ c.T - cost).argmax(1) for part in torch.split(x, PART)])


@torch.no_grad()
def begin(
    indexer: Indexer, x: Tensor, sharpness: float, generator: torch.Generator, *, limit: float = 0.0
) -> None:
    """Set an indexer to the k-means of unit vectors [n, m].

    ``sharpness`` is the factor of its logits, ``limit`` how crowded its children may be (0 for as it comes).
    """
    earlier: list[Tensor] = []
    left = x
    for h in range(indexer.height):
        c, prices = kmeans(left, indexer.branches, generator, limit=limit)  # [B, m], [B]
        outer, bias = indexer.outer[h], indexer.bias[h]
        crossed = [-(before @ c.T) for before in reversed(earlier)]  # [B, B] each, the last turn first
        outer.copy_(torch.cat([*crossed, c.T]) * sharpness)
        bias.copy_(-(0.5 * c.square().sum(1) + prices) * sharpness)
        left = left - c[assigned(left, c, prices)]
        earlier.append(c)
