"""What a tree learns from: pairs routed alike, other texts elsewhere, and the similarities of the space under it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.encoder import States
from palmette.errors import ConfigError
from palmette.losses import distillation, info_nce, ntvd
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen
from palmette.methods.tree.splits import pooled
from palmette.pairs import EncodedPairs

__all__ = ["TreeTask", "chances", "level_metric", "levels_of_step", "smallest", "table"]

EACH_LEVEL = ("stochastic", "stochastic_linear", "uniform", "matryoshka")
"""Schedules that train every level to the end, and so choose the best weights by all of them."""


def chances(config: TreeConfig) -> Tensor:
    """How much each level 1 … D counts: P(h) of the stochastic schedules, equal shares for the others."""
    power = {"stochastic": 2.0, "stochastic_linear": 1.0}.get(config.schedule, 0.0)
    weights = torch.arange(1, config.depth + 1).float() ** power
    return weights / weights.sum()


def levels_of_step(config: TreeConfig, generator: torch.Generator, progress: float) -> list[int]:
    """The levels that a step trains; ``progress`` is the share of steps done."""
    depth = config.depth
    match config.schedule:
        case "constant":
            return [depth]
        case "matryoshka":
            return list(range(1, depth + 1))
        case "linear":  # 1, 2, 3, … D, each for as long
            return [min(depth, 1 + int(progress * depth))]
        case "exponential":  # 1, 2, 4, … D, each for as long
            stages = 1 + math.ceil(math.log2(depth))
            return [min(depth, 2 ** min(stages - 1, int(progress * stages)))]
        case _:
            return [1 + int(torch.multinomial(chances(config), 1, generator=generator))]


def level_metric(level: int) -> str:
    """What validation calls the quality of a level."""
    return f"ndcg@10 at level {level}"


def smallest(metrics: Mapping[str, float], depth: int, tolerance: float) -> int:
    """The smallest level whose validated quality is within a share ``tolerance`` of the best."""
    known = {level: metrics.get(level_metric(level)) for level in range(1, depth + 1)}
    quality = {level: value for level, value in known.items() if value is not None}
    if len(quality) < depth:
        raise ConfigError(
            "level='auto' needs the validation table of a training with held-out queries, which this checkpoint "
            f"lacks: give a level from 1 to {depth}"
        )
    enough = (1 - tolerance) * max(quality.values())
    return next(level for level, value in quality.items() if value >= enough)


def table(config: TreeConfig, leaves: Mapping[str, float], levels: Sequence[float]) -> dict[str, float]:
    """What validation says: of the leaves, over all levels, and nDCG@10 at each of them."""
    named = {level_metric(level): value for level, value in enumerate(levels, 1)}
    average = float(chances(config) @ torch.tensor(levels))
    return {**leaves, "ndcg@10 over levels": average, **named}


@dataclass
class TreeTask:
    """Symmetric InfoNCE on nTVD at the schedule's levels, mixed with distillation; the encoder stays frozen."""

    module: Tree
    pairs: EncodedPairs

    @property
    def metric(self) -> str:
        """What the best weights are chosen by: the leaves, or all levels as much as the schedule counts them."""
        return "ndcg@10 over levels" if self.module.config.schedule in EACH_LEVEL else "ndcg@10"

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the tree."""
        self.pairs = self.pairs.to(device)

    @torch.no_grad()
    def fit_multipliers(self, generator: torch.Generator) -> None:
        """Start every level's multiplier where the InfoNCE loss of a first batch is lowest."""
        module, config = self.module.eval(), self.module.config
        rows = self.pairs.sample(64 if config.reads_tokens else 256, generator)
        known = self.pairs.known(rows)  # [B, B]
        queries = module(self.pairs.query_states(self.pairs.query_rows[rows]))  # [B, C]
        documents = module(self.pairs.document_states(self.pairs.document_rows[rows]))
        candidates = torch.logspace(0, 3.5, 29)
        for level in range(1, config.depth + 1):
            similarity = ntvd(*(coarsen(x, config.shape, level) for x in (queries, documents)))  # [B, B]
            losses = torch.stack([info_nce(similarity * value, known) for value in candidates.tolist()])
            module.log_multipliers[level - 1] = candidates[losses.argmin().cpu()].log()

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """The loss of a batch of pairs, against given negatives too where there are any."""
        config = self.module.config
        levels = levels_of_step(config, generator, progress)
        queries = self.pairs.query_states(self.pairs.query_rows[rows])
        documents = self.pairs.document_states(self.pairs.document_rows[rows])
        known = self.pairs.known(rows)  # [B, B]
        hard = self.pairs.hard_negatives(rows, generator)
        texts = [queries, documents] + ([self.pairs.document_states(hard.rows)] if hard else [])
        deepest = [module(states, max(levels)) for states in texts]  # [B, C_level] each; [M, C_level]
        total = deepest[0].new_zeros(())
        for level in levels:
            several = len(levels) > 1  # then the deepest are the leaves
            q, d, *others = (coarsen(x, config.shape, level) if several else x for x in deepest)
            multiplier = self.module.multiplier(level)
            similarity = ntvd(q, d) * multiplier  # [B, B] in [−multiplier, 0]
            if config.distill < 1:
                extra = ntvd(q, others[0]) * multiplier if hard else None  # [B, M]
                loss = info_nce(similarity, known, extra, hard.known if hard else None)
                total = total + (1 - config.distill) * loss
            if config.distill:
                taught = distillation(similarity, self._cosine(queries, documents) / config.temperature)
                total = total + config.distill * taught
            if config.l1:
                total = total + config.l1 * torch.cat([q, d]).clamp_min(1e-12).sqrt().sum(1).mean()
        # Under a level's loss the deeper splits take no part: an empty sum keeps their gradients defined (and zero).
        idle = sum(parameter.sum() for parameter in self.module.parameters()) * 0.0
        return torch.add(total / len(levels), idle)

    def _cosine(self, queries: States, documents: States) -> Tensor:
        """The similarities that the tree is to keep: those of the space its splits live in, [B, B]."""
        with torch.no_grad():
            q, d = (nn.functional.normalize(self.module.embed(pooled(x))) for x in (queries, documents))
            similarity: Tensor = q @ d.T
        return similarity

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: at the leaves, at every level, and over the levels."""
        if self.pairs.dev is None:
            return {}
        config = self.module.config
        queries, documents = self.pairs.held_out(module)  # [Q, C], [N, C]
        scores: dict[str, float] = {}
        levels = []
        for level in range(1, config.depth + 1):
            q, d = (coarsen(x, config.shape, level) for x in (queries, documents))
            scores = self.pairs.judge(q, d, ntvd)
            levels.append(scores["ndcg@10"])
        return table(config, scores, levels)
