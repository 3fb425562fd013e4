"""The upper splits first: what few columns a coarse level has should be those that tell most apart.

Principal directions keep as much of a distance as so few directions can, which is not what tells an answer from the
rest best. So the splits of the first levels learn ahead of the others, all these levels at once, as nested
representations do (https://arxiv.org/abs/2205.13147), and each level with its own multiplier: overlaps of few gentle
columns differ by little. The deeper splits, which make most of the finest level, stay where they begin. The rate,
how far to go and whether to go at all are chosen on held-out queries. Takes seconds on a CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from palmette.losses import distillation, info_nce, ntvd
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen, propagate
from palmette.methods.tree.shape import Shape
from palmette.methods.tree.splits import pooled
from palmette.pairs import EncodedPairs

__all__ = ["learn_upper"]

RATES, MULTIPLIER_RATE = (1e-3, 3e-3), 1e-2
STEPS, EVERY, WARMUP, BATCH = 300, 100, 20, 256
EPOCHS = 100
"""Passes over few pairs at most."""


class _Upper(nn.Module):
    """The hyperplanes of the first levels of a tree, and a multiplier for each level (B batch, d width, H levels)."""

    def __init__(self, tree: Tree, levels: int) -> None:
        super().__init__()
        assert tree.linear is not None
        self.shape = Shape(levels)
        n = len(self.shape.splits)
        self.directions = nn.Parameter(tree.linear.directions[:n].detach().clone())  # [n, d]
        self.offsets = nn.Parameter(tree.linear.offsets[:n].detach().clone())  # [n]
        self.slopes = tree.linear.slopes[:n]
        self.log_multipliers = nn.Parameter(torch.zeros(levels))  # [H]

    def forward(self, x: Tensor) -> list[Tensor]:
        """[B, d] in the splits' space → the nodes of levels 1 … H: [B, 2^level] each."""
        scores = F.linear(x, self.directions, self.offsets) * self.slopes
        finest = propagate(scores, self.shape, self.shape.depth)
        return [coarsen(finest, self.shape, level) for level in range(1, self.shape.depth + 1)]

    def similarities(self, queries: Tensor, documents: Tensor) -> list[Tensor]:
        """Of texts at every level, by nTVD: [B, C] each."""
        return [ntvd(q, d) for q, d in zip(self(queries), self(documents), strict=True)]

    @torch.no_grad()
    def fit_multipliers(self, queries: Tensor, documents: Tensor, known: Tensor) -> None:
        """Start each where a first batch has its lowest loss."""
        candidates = torch.logspace(0, 3.5, 29)
        for level, similarity in enumerate(self.similarities(queries, documents)):
            losses = torch.stack([info_nce(similarity * value, known) for value in candidates])
            self.log_multipliers[level] = candidates[losses.argmin()].log()

    @torch.no_grad()
    def quality(self, tree: Tree, pairs: EncodedPairs) -> float:
        """Mean nDCG@10 of the levels on the held-out queries."""
        queries, documents = pairs.held_out(lambda states: tree.embed(pooled(states)))
        levels = zip(self(queries), self(documents), strict=True)
        return sum(pairs.judge(q, d, ntvd)["ndcg@10"] for q, d in levels) / self.shape.depth


def learn_upper(tree: Tree, pairs: EncodedPairs, seed: int, progress: bool | None) -> None:
    """Train the splits of the first ``upper`` levels; without held-out queries they stay as they are."""
    config, linear = tree.config, tree.linear
    levels = min(config.upper, config.depth)
    if not levels or linear is None or pairs.dev is None or len(pairs) < 2:
        return
    steps = min(STEPS, EPOCHS * math.ceil(len(pairs) / BATCH))
    chosen = _Upper(tree, levels)
    best = chosen.quality(tree, pairs)
    hidden = None if progress is None else not progress
    with tqdm(total=len(RATES) * steps, desc="Training the upper splits", unit="step", disable=hidden) as bar:
        for rate in RATES:
            upper, generator = _Upper(tree, levels), torch.Generator().manual_seed(seed)
            upper.fit_multipliers(*_batch(tree, pairs, generator))
            groups = [
                {"params": [upper.directions, upper.offsets], "peak": rate},
                {"params": [upper.log_multipliers], "peak": MULTIPLIER_RATE},
            ]
            optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
            for step in range(1, steps + 1):
                pace = min(1, step / WARMUP) * 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * pace
                loss = _loss(upper, *_batch(tree, pairs, generator), config.distill, config.temperature)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimizer.step()
                bar.update(1)
                if step % EVERY == 0 and (score := upper.quality(tree, pairs)) > best:
                    best, chosen = score, _copied(upper, tree, levels)
    with torch.no_grad():
        n = len(chosen.offsets)
        linear.directions[:n], linear.offsets[:n] = chosen.directions, chosen.offsets


def _loss(
    upper: _Upper, queries: Tensor, documents: Tensor, known: Tensor, distill: float, temperature: float
) -> Tensor:
    """The tree's loss, averaged over the levels."""
    cosine = F.normalize(queries) @ F.normalize(documents).T  # [B, B]
    losses = []
    for similarity, multiplier in zip(
        upper.similarities(queries, documents), upper.log_multipliers.exp(), strict=True
    ):
        logits = similarity * multiplier  # [B, B]
        losses.append(
            (1 - distill) * info_nce(logits, known) + distill * distillation(logits, cosine / temperature)
        )
    return torch.stack(losses).mean()


def _copied(upper: _Upper, tree: Tree, levels: int) -> _Upper:
    copy = _Upper(tree, levels)
    copy.load_state_dict(upper.state_dict())
    return copy


@torch.no_grad()
def _batch(tree: Tree, pairs: EncodedPairs, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Some pairs in the splits' space, [B, d] each, and who belongs to whom [B, B]."""
    queries, documents, known = pairs.batch(pairs.sample(BATCH, generator))
    return tree.embed(queries), tree.embed(documents), known
