"""Training of the indexer: losses, mined negatives, validation, the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.arrays import Rows
from palmette.encoder import Kind
from palmette.encoder.local.backbone import encode_texts
from palmette.methods.paths.explain import Figures, IndexReport, leaf_terms
from palmette.methods.paths.losses import intra_leaf, triplet
from palmette.methods.paths.module import Paths, TextBatch
from palmette.methods.paths.search import SHARES, recall_curve
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, TrainingResult
from palmette.training.pairs import PairsTask, Validation

JUDGED_AT = (0.1, 0.2, 0.4, 1.0)
"""Shares of the documents over whose recall the best weights are chosen."""
NEAREST = 20
"""Mined negatives of each query."""


@dataclass
class PathsTask(PairsTask):
    """The paper's three losses."""

    module: Paths
    held_out: Validation | None
    progress: bool | None = None
    steps: int = 1
    steps_per_epoch: int = 1
    report: IndexReport = field(default_factory=IndexReport)
    """Facts of the training, once it is over."""
    mined: tuple[int, Rows] | None = None
    metric: ClassVar[str] = "recall over visits"  # at 10 and 100, averaged over shares of documents visited

    def _inputs(self, kind: Kind, rows: Rows) -> TextBatch:
        """Input of the module: embeddings by the frozen encoder, or tokens where the encoder learns."""
        if self.module.backbone is not None:
            return self.module.backbone.plain(self.pairs.texts(kind, rows), kind)
        return (self.pairs.queries if kind == "query" else self.pairs.documents)[torch.from_numpy(rows)]

    def _embed(self, kind: Kind, rows: Rows) -> Tensor:
        """Unit vectors [n, m] by encoder and module as they are now, without gradients."""
        backbone = self.module.backbone
        if backbone is None:
            vectors = self.module.read(self._inputs(kind, rows))
        else:
            vectors = encode_texts(backbone, self.pairs.texts(kind, rows), kind, self.progress)
        return F.normalize(vectors, dim=1)

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """One run, whose length tells the epochs; none without steps."""
        self.steps = training.steps
        self.steps_per_epoch = max(1, self.size() // training.batch_size)
        return super().stages(training) if training.steps else []

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """λ₁ L_siamese + λ₂ L_indexing + λ₃ L_intra-leaf of a batch of pairs (equation 6)."""
        config, query_rows = self.module.config, self.pairs.query_rows[rows]
        documents = np.concatenate([self.pairs.document_rows[rows], *self._negatives(rows, generator, progress)])
        vectors, routed = module(self._inputs("query", query_rows), self._inputs("document", documents))
        with torch.autocast(vectors.device.type, enabled=False):  # margins need every digit
            (q, d), (tq, td) = (x.tensor_split([len(query_rows)]) for x in (vectors, routed.embedding))
            negative = ~self.pairs.known_answers(query_rows, documents)  # [B, C]
            total = config.semantic * triplet(q @ d.T, negative, config.margin)
            total = total + config.indexing * triplet(tq @ td.T, negative, config.margin)
            if config.intra_leaf:
                cosine = d[: len(q)] @ d.T  # [B, C]
                apart = intra_leaf(td, cosine, negative, similar=config.similar, margin=config.margin)
                total = total + config.intra_leaf * apart
            return total

    def _negatives(self, rows: Rows, generator: torch.Generator, progress: float) -> Iterator[Rows]:
        """Given negatives of these training rows, and one mined negative of each row that has any."""
        yield self.pairs.hard_negatives(rows, generator)
        config = self.module.config
        if config.negatives == "leaves":
            turn = int(progress * self.steps / self.steps_per_epoch + 1e-6) // config.refresh
            if self.mined is None or self.mined[0] != turn:
                self.mined = turn, self.mine_negatives()
            mined = self.mined[1]
            choice = torch.randint(mined.shape[1], (len(rows),), generator=generator).numpy()
            drawn = np.unique(mined[rows, choice])
            yield drawn[drawn >= 0]

    @torch.no_grad()
    def mine_negatives(self) -> Rows:
        """Nearest irrelevant documents in the leaf of each training row's query: [P, n], padded with −1."""
        pairs, vectors = self.pairs, self._embed("document", np.arange(len(self.pairs.data.corpus)))
        placed = self.module.leaf_of(vectors)
        query_rows, back = np.unique(pairs.query_rows, return_inverse=True)
        mined = []
        for rows in np.array_split(query_rows, -(-len(query_rows) // 256)):
            queries = self._embed("query", rows)
            scores = queries @ vectors.T  # [256, N]
            relevant = pairs.data.positives_mask(rows, np.arange(len(vectors)))
            out = torch.from_numpy(relevant).to(scores.device) | (self.module.leaf_of(queries)[:, None] != placed)
            best = scores.masked_fill(out, -torch.inf).topk(min(NEAREST, len(vectors)), dim=1)
            mined.append(best.indices.masked_fill(best.values == -torch.inf, -1).cpu().numpy())
        return np.concatenate(mined)[back]

    @torch.no_grad()
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Recall at several shares of documents visited, on held-out queries, and how full the leaves are."""
        if self.held_out is None:
            return {}
        curve = self._measure(self.held_out, JUDGED_AT)
        recalls = [row[name] for row in curve.values() for name in ("recall@10", "recall@100")]
        return {
            self.metric: float(np.mean(recalls)),
            **{name: curve[1.0][name] for name in ("ndcg@10", "recall@10", "recall@100")},
            **{f"recall@100 at {share:.0%} visited": row["recall@100"] for share, row in curve.items()},
        }

    def _measure(self, dev: Validation, shares: Sequence[float]) -> dict[float, Figures]:
        """Recall curve of the held-out queries."""
        module = self.module
        queries, documents = self._embed("query", dev.queries), self._embed("document", dev.documents)
        order = module.leaves_in_order(queries, module.config.leaves).leaves
        return recall_curve(queries, documents, order, module.leaf_of(documents), dev.judgements, shares)

    @torch.no_grad()
    def finish(self, result: TrainingResult) -> TrainingResult:
        """Keep the leaves' mean documents, and write the report."""
        module, config = self.module, self.module.config
        vectors = self._embed("document", np.arange(len(self.pairs.data.corpus)))
        leaves = module.leaf_of(vectors)  # [N]
        sums = torch.zeros_like(module.centres).index_add_(0, leaves, vectors)
        counts = torch.bincount(leaves, minlength=config.leaves)
        module.centres.copy_(sums / counts.clamp(min=1)[:, None])
        self.report = IndexReport(
            curve={} if self.held_out is None else self._measure(self.held_out, SHARES),
            documents=leaf_terms(self.pairs.data.texts, leaves, module),
        )
        return result if result.metrics else replace(result, metrics=self.validate(module))
