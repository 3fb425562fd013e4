"""The training task of a tree: the losses of a batch, validation at every level, shrinkage without labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.arrays import Floats, evenly_spaced
from palmette.errors import ConfigError
from palmette.maths import ntvd, symmetric_info_nce
from palmette.methods.tree.losses import level_loss, level_probabilities, levels_of_step
from palmette.methods.tree.module import Tree, fold_leaves, pooled
from palmette.methods.tree.search import as_searched, stored_format
from palmette.training.loop import Task, TrainingResult
from palmette.training.pairs import TrainingPairs

SHRINKAGE = 0.5
"""Share of the way from the start that weights learned from synthetic queries keep, since those overstate gains.

nDCG@10 on dev's own questions, one seed, all the way / half / not at all. Cosines after the learned map: SciFact .631
/ .671 / .662, SQuAD .783 / .784 / .769, MedQuAD .749 / .749 / .749. Then, at the leaves, the tree's own steps: SciFact
.640 / .659 / .664, SQuAD .773 / .777 / .777; at 256 columns .630 / .621 / .618 and .770 / .770 / .767. Choosing by
judged questions does not change that: 500 of SQuAD's dev choose maps that give the other 602 .776, .797, .797 all the
way and .789, .798, .792 half of it (three seeds; no map: .774, .784, .776).
"""
SAMPLE = 1_000
"""Documents whose leaves decide on the stored format."""


def level_metric(level: int) -> str:
    """Name of a level's quality in the validation table."""
    return f"ndcg@10 at level {level}"


def level_within_tolerance(metrics: Mapping[str, float], depth: int, tolerance: float) -> int:
    """Smallest level whose validated quality is within a share ``tolerance`` of the best."""
    quality = [metrics[name] for level in range(depth) if (name := level_metric(level + 1)) in metrics]
    if len(quality) < depth:
        raise ConfigError(
            "level='auto' needs the validation table of a training with held-out queries, which this checkpoint "
            f"lacks: give a level from 1 to {depth}"
        )
    return next(level for level, value in enumerate(quality, 1) if value >= (1 - tolerance) * max(quality))


@dataclass
class TreeTask(Task):
    """Symmetric InfoNCE on nTVD at the schedule's levels, mixed with distillation; the encoder stays frozen."""

    module: Tree
    pairs: TrainingPairs
    initial: dict[str, Tensor] = field(default_factory=dict)
    """Weights to shrink to; empty where the trained weights stay."""

    @property
    def metric(self) -> str:
        """Metric that selects the best weights: of all levels for schedules that train each to the end."""
        each_level = self.module.config.schedule in ("stochastic", "matryoshka")
        return "ndcg@10 over levels" if each_level else "ndcg@10"

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the tree."""
        self.pairs = self.pairs.to(device)

    @torch.no_grad()
    def init_multipliers(self, generator: torch.Generator) -> None:
        """Start every level's multiplier where the InfoNCE loss of a first batch is lowest."""
        module, config = self.module.eval(), self.module.config
        rows = self.pairs.sample(64 if config.reads_tokens else 256, generator)
        known = self.pairs.positives(rows)  # [B, B]
        queries = module(self.pairs.query_states(self.pairs.query_rows[rows]))  # [B, C]
        documents = module(self.pairs.document_states(self.pairs.document_rows[rows]))
        candidates = torch.logspace(0, 3.5, 29)
        for level in range(1, config.depth + 1):
            similarity = ntvd(fold_leaves(queries, level), fold_leaves(documents, level))  # [B, B]
            losses = torch.stack([symmetric_info_nce(similarity * value, known) for value in candidates])
            module.log_multipliers[level - 1] = candidates[losses.argmin().cpu()].log()

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Mean loss of a batch of pairs over the step's levels, with given negatives where there are any."""
        config, pairs = self.module.config, self.pairs
        levels = levels_of_step(config, generator, progress)
        queries = pairs.query_states(pairs.query_rows[rows])
        documents = pairs.document_states(pairs.document_rows[rows])
        known, hard = pairs.positives(rows), pairs.hard_negatives(rows, generator)  # [B, B]
        texts = [queries, documents] + ([pairs.document_states(hard.rows)] if hard else [])
        deepest = [module(states, max(levels)) for states in texts]  # [B, C_level] each; [M, C_level]
        with torch.no_grad():
            q, d = (F.normalize(self.module.embed(pooled(states))) for states in (queries, documents))
            teacher = q @ d.T  # [B, B]
        total = deepest[0].new_zeros(())
        for level in levels:
            q, d, *others = (fold_leaves(x, level) for x in deepest) if len(levels) > 1 else deepest
            negatives = (others[0], hard.known) if hard else (None, None)
            multiplier = self.module.multiplier(level)
            total = total + level_loss(q, d, multiplier, known, teacher, config.distill, *negatives)
        # Under a level's loss the deeper splits take no part: an empty sum keeps their gradients defined (and zero).
        idle = sum(parameter.sum() for parameter in self.module.parameters()) * 0.0
        return torch.add(total / len(levels), idle)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: at the leaves, at every level, and averaged over the levels."""
        if self.pairs.dev is None:
            return {}
        config = self.module.config
        found = [leaves.detach().cpu().numpy() for leaves in self.pairs.held_out(module)]  # [Q, C], [N, C]
        # what a search compares is judged: leaves in the format that an index stores
        dtype = config.replace(stored=stored_format(found[1][evenly_spaced(len(found[1]), SAMPLE)])).dtype
        device = self.pairs.documents.device
        queries, documents = (torch.from_numpy(as_searched(leaves, dtype)).to(device) for leaves in found)
        tables = [
            self.pairs.score_ranking(fold_leaves(queries, level), fold_leaves(documents, level), ntvd)
            for level in range(1, config.depth + 1)
        ]
        quality = [scores["ndcg@10"] for scores in tables]
        average = float(level_probabilities(config) @ torch.tensor(quality))
        by_level = {level_metric(level): value for level, value in enumerate(quality, 1)}
        return {**tables[-1], "ndcg@10 over levels": average, **by_level}

    @torch.inference_mode()
    def judged_leaves(self) -> Floats:
        """Leaf probabilities [n, C] of a sample of the documents that validate, or else that train."""
        pairs = self.pairs.to(self.module.log_multipliers.device)
        rows = np.arange(len(pairs.data.corpus)) if pairs.dev is None else pairs.dev.documents
        rows = rows[evenly_spaced(len(rows), SAMPLE)]
        parts = np.array_split(rows, -(-len(rows) // 32))
        leaves: Floats = torch.cat([self.module(pairs.document_states(part)) for part in parts]).cpu().numpy()
        return leaves

    def finish(self, result: TrainingResult) -> TrainingResult:
        """Shrink the weights to the initial ones, where there are any, and validate again."""
        if not (self.initial and result.steps):
            return result
        state = self.module.state_dict()
        for name, value in self.initial.items():
            if value.is_floating_point():
                state[name] = torch.lerp(value.to(state[name]), state[name], SHRINKAGE)
        self.module.load_state_dict(state)
        with torch.inference_mode():
            return replace(result, metrics=self.validate(self.module) or result.metrics)
