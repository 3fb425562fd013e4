"""The training task of a tree: the losses of a batch, and validation at every level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.arrays import Floats, evenly_spaced
from palmette.methods.tree.leaves import as_searched, stored_format
from palmette.methods.tree.losses import level_loss, level_of_step, level_probabilities
from palmette.methods.tree.module import Tree, fold_leaves
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage
from palmette.training.maths import ntvd, symmetric_info_nce
from palmette.training.pairs import PairsTask, top_documents

DOCUMENTS_FOR_FORMAT = 1_000
"""Documents whose leaves decide on the stored format."""
ROUTED_AT_ONCE = 1024
"""Documents routed at a time; fewer where their token states are read."""


@dataclass
class TreeTask(PairsTask):
    """Symmetric InfoNCE on nTVD at drawn levels, for trees that are trained; the encoder stays frozen."""

    module: Tree
    metric: ClassVar[str] = "ndcg@10 over levels"

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """Return no stage for a tree of clusters, which trains nothing."""
        return super().stages(training) if self.module.config.start == "random" else ()

    @torch.no_grad()
    def init_multipliers(self, generator: torch.Generator) -> None:
        """Start every level's multiplier where the InfoNCE loss of a first batch is lowest."""
        module, config, pairs = self.module.eval(), self.module.config, self.pairs
        rows = torch.randperm(len(pairs), generator=generator)[: 64 if config.reads_tokens else 256].numpy()
        query_rows, document_rows = pairs.query_rows[rows], pairs.document_rows[rows]
        known = pairs.known_answers(query_rows, document_rows)  # [B, B]
        queries, documents = module(pairs.states("query", query_rows)), module(pairs.states("document", document_rows))
        candidates = torch.logspace(0, 3.5, 29)
        for level in range(1, config.depth + 1):
            similarity = ntvd(fold_leaves(queries, level), fold_leaves(documents, level))  # [B, B]
            losses = torch.stack([symmetric_info_nce(similarity * value, known) for value in candidates])
            module.log_multipliers[level - 1] = candidates[losses.argmin().cpu()].log()

    def loss(self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float) -> Tensor:
        """Loss of a batch of pairs at the step's level, with the pairs' own negatives where there are any."""
        pairs, level = self.pairs, level_of_step(self.module.config.depth, generator)
        query_rows, document_rows = pairs.query_rows[rows], pairs.document_rows[rows]
        q = module(pairs.states("query", query_rows), level)  # [B, C_level]
        d = module(pairs.states("document", document_rows), level)  # [B, C_level]
        known, hard = pairs.known_answers(query_rows, document_rows), pairs.hard_negatives(rows, generator)  # [B, B]
        negatives: tuple[Tensor, ...] = ()
        if len(hard):  # [M, C_level], [B, M]
            negatives = module(pairs.states("document", hard), level), pairs.known_answers(query_rows, hard)
        loss = level_loss(q, d, self.module.multiplier(level), known, *negatives)
        # Under a level's loss the deeper splits take no part: an empty sum keeps their gradients defined (and zero).
        idle = sum(parameter.sum() for parameter in self.module.parameters()) * 0.0
        return torch.add(loss, idle)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: at the leaves, at every level, and averaged over the levels."""
        if (dev := self.pairs.dev) is None:
            return {}
        config = self.module.config
        held_out_leaves = [leaves.detach().cpu().numpy() for leaves in self.pairs.held_out(module)]  # [Q, C], [N, C]
        # what a search compares is judged: leaves in the format that an index stores
        dtype = config.replace(
            stored=stored_format(held_out_leaves[1][evenly_spaced(len(held_out_leaves[1]), DOCUMENTS_FOR_FORMAT)])
        ).dtype
        device = self.pairs.documents.device
        queries, documents = (torch.from_numpy(as_searched(leaves, dtype)).to(device) for leaves in held_out_leaves)
        tables = [
            dev.score_ranking(top_documents(fold_leaves(queries, level), fold_leaves(documents, level), ntvd))
            for level in range(1, config.depth + 1)
        ]
        quality = [scores["ndcg@10"] for scores in tables]
        average = float(level_probabilities(config.depth) @ torch.tensor(quality))
        by_level = {f"ndcg@10 at level {level}": value for level, value in enumerate(quality, 1)}
        return {**tables[-1], "ndcg@10 over levels": average, **by_level}

    @torch.inference_mode()
    def leaves(self, rows: NDArray[np.int64]) -> Iterator[Floats]:
        """Leaf probabilities [n, C] of documents, in parts."""
        pairs = self.pairs.to(self.module.log_multipliers.device)
        size = ROUTED_AT_ONCE if pairs.document_tokens is None else ROUTED_AT_ONCE // 32
        for start in range(0, len(rows), size):
            yield self.module(pairs.states("document", rows[start : start + size])).cpu().numpy()
