"""The upper splits first: what few columns there are at the coarse levels should be those that tell most apart.

Principal directions keep the most of a distance that so many directions can, which is not what tells an answer from
the rest best. So the splits above the first levels learn ahead of the others, all these levels at once, as nested
representations do (https://arxiv.org/abs/2205.13147): each level with its own multiplier, because overlaps of few
gentle columns differ by little. They are few and quickly trained; the deeper splits, which make most of the finest
level, stay where they begin. The rate, how far to go and whether to go at all are chosen on held-out queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from palmette.losses import distillation, info_nce, ntvd
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen, propagate
from palmette.methods.tree.splits import pooled
from palmette.pairs import EncodedPairs

__all__ = ["learn_upper"]

RATES = (1e-3, 3e-3)
STEPS, EVERY, WARMUP, BATCH = 300, 100, 20, 256
MULTIPLIERS = torch.logspace(0, 3.5, 29)
"""Where a level's may begin: overlaps of two gentle columns differ by thousandths."""
MULTIPLIER_RATE = 1e-2


def learn_upper(tree: Tree, pairs: EncodedPairs, seed: int, progress: bool | None) -> None:
    """Train the splits above ``tree.config.upper`` levels; without held-out queries they stay as they are."""
    config, linear = tree.config, tree.linear
    levels = min(config.upper, config.depth)
    if not levels or linear is None or pairs.dev is None or len(pairs) < 2:
        return
    n, slopes = config.shape.needed(levels), linear.slopes[: config.shape.needed(levels)]
    start = (linear.directions[:n].detach().clone(), linear.offsets[:n].detach().clone())

    def routed(x: Tensor, directions: Tensor, offsets: Tensor) -> list[Tensor]:
        """[B, d] in the splits' space → the nodes of levels 1, 2, …: [B, C_level] each."""
        finest = propagate(F.linear(x, directions, offsets) * slopes, config.shape, levels)
        return [*(_folded(finest, 2 ** (levels - level)) for level in range(1, levels)), finest]

    def quality(directions: Tensor, offsets: Tensor) -> float:
        with torch.no_grad():
            q, d = pairs.held_out(lambda states: tree.embed(pooled(states)))
            both = zip(routed(q, directions, offsets), routed(d, directions, offsets), strict=True)
            return sum(pairs.judge(asked, found, ntvd)["ndcg@10"] for asked, found in both) / levels

    best, chosen = quality(*start), start
    hidden = None if progress is None else not progress
    with tqdm(total=len(RATES) * STEPS, desc="Training the upper splits", unit="step", disable=hidden) as bar:
        for rate in RATES:
            generator = torch.Generator().manual_seed(seed)
            learned = [nn.Parameter(part.clone()) for part in start]
            multipliers = nn.Parameter(_multipliers(tree, pairs, routed, start, generator))
            groups = [
                {"params": learned, "peak": rate},
                {"params": [multipliers], "peak": MULTIPLIER_RATE},
            ]
            optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
            for step in range(1, STEPS + 1):
                pace = min(1, step / WARMUP) * 0.5 * (1 + math.cos(math.pi * (step - 1) / STEPS))
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * pace
                q, d, known = _batch(tree, pairs, generator)
                taught = (q @ d.T) / config.temperature
                losses = []
                for level, (asked, found) in enumerate(
                    zip(routed(q, *learned), routed(d, *learned), strict=True)
                ):
                    similarity = ntvd(asked, found) * multipliers[level].exp()  # [B, B]
                    loss = (1 - config.distill) * info_nce(similarity, known)
                    losses.append(
                        loss + config.distill * distillation(similarity, taught) if config.distill else loss
                    )
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(torch.stack(losses).mean())
                optimizer.step()
                bar.update(1)
                if step % EVERY == 0:
                    now = (learned[0].detach().clone(), learned[1].detach().clone())
                    if (score := quality(*now)) > best:
                        best, chosen = score, now
    with torch.no_grad():
        linear.directions[:n], linear.offsets[:n] = chosen


def _folded(nodes: Tensor, many: int) -> Tensor:
    return nodes.reshape(len(nodes), -1, many).sum(-1)


def _batch(tree: Tree, pairs: EncodedPairs, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Some pairs in the splits' space [B, d] each, and who belongs to whom [B, B]."""
    queries, documents, known = pairs.batch(pairs.sample(BATCH, generator))
    with torch.no_grad():
        return tree.embed(queries), tree.embed(documents), known


@torch.no_grad()
def _multipliers(
    tree: Tree,
    pairs: EncodedPairs,
    routed: Callable[..., list[Tensor]],
    start: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """The logarithm of each level's best on a first batch [levels]."""
    q, d, known = _batch(tree, pairs, generator)
    found = []
    for asked, right in zip(routed(q, *start), routed(d, *start), strict=True):
        similarity = ntvd(asked, right)
        losses = torch.stack([info_nce(similarity * value, known) for value in MULTIPLIERS])
        found.append(MULTIPLIERS[losses.argmin()].log())
    return torch.stack(found)
