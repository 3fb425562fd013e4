"""What a learned index learns from: embeddings and paths of pairs alike, those of others apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.held_out import HeldOut
from palmette.methods.paths.config import PathsConfig
from palmette.methods.paths.curve import recall_curve
from palmette.methods.paths.facts import Facts
from palmette.methods.paths.health import load
from palmette.methods.paths.inputs import Inputs
from palmette.methods.paths.losses import imbalance, intra_leaf, triplet
from palmette.methods.paths.module import Paths
from palmette.methods.paths.negatives import Mined, mine
from palmette.methods.paths.routing import Router
from palmette.methods.paths.start import begin
from palmette.pairs import EncodedPairs
from palmette.training import TrainingConfig

if TYPE_CHECKING:
    from palmette.encoder import Backbone

__all__ = ["LOADED", "PathsTask", "started"]

PART = 4096
Rows = NDArray[np.int64]
METRIC = "recall over visits"
LOADED = "documents per leaf, "
LOOSE = 1.5
"""A capacity from which on leaves begin as they come, and are only levelled once training is over."""
JUDGED_AT = (0.1, 0.2, 0.4, 1.0)
"""Shares of the documents over whose recall the best weights are chosen."""


def started(config: PathsConfig, pairs: EncodedPairs, seed: int, backbone: Backbone | None = None) -> Paths:
    """A module as training begins with it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Paths(config, backbone).cpu()
    if config.start == "kmeans":
        with torch.no_grad():
            corpus = pairs.documents[: len(pairs.data.corpus)]
            even = 0 < config.capacity < LOOSE
            limit = 1 + (config.capacity - 1) / 3 if even else 0.0  # training loosens it again
            begin(module.indexer, module.embed(corpus), config.sharpness, generator, limit=limit)
    return module


@dataclass
class PathsTask:
    """The paper's three losses; see :class:`PathsConfig` for the choices.

    Attributes:
        module: What learns.
        pairs: Which texts belong together, and their embeddings by the encoder as it was.
        inputs: What the module reads of them.
        held_out: What validation ranks.
        steps_per_epoch: Of the run to come.
        steps: Of the run to come.
        facts: What training has shown, once it is over.
    """

    module: Paths
    pairs: EncodedPairs
    inputs: Inputs
    held_out: HeldOut | None
    steps_per_epoch: float = 1.0
    steps: int = 1
    facts: Facts = field(default_factory=Facts)
    _mined: dict[int, Mined] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """Recall at 10 and 100, averaged over how much is visited."""
        return METRIC

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the module."""
        self.pairs, self.inputs = self.pairs.to(device), self.inputs.to(device)

    def expect(self, training: TrainingConfig) -> None:
        """How long the run will be, so that the task knows its epochs."""
        self.steps = training.steps
        self.steps_per_epoch = max(1, self.size() // min(training.batch_size, self.size()))

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """λ₁ L_siamese + λ₂ L_indexing + λ₃ L_intra-leaf of a batch of pairs (equation 6)."""
        asked = self.pairs.query_rows[rows]
        documents = np.concatenate([self.pairs.document_rows[rows], *self._wrong(rows, generator, progress)])
        vectors, routed = module(self.inputs.queries(asked), self.inputs.documents(documents))
        with torch.autocast(vectors.device.type, enabled=False):  # margins are told in every digit
            return self._weighed(asked, documents, vectors, routed.embedding)

    def _weighed(self, asked: Rows, documents: Rows, vectors: Tensor, routed: Tensor) -> Tensor:
        """The terms of the loss, from vectors and leaf embeddings of queries and then documents."""
        config = self.module.config
        (q, d), (tq, td) = (torch.split(x, [len(asked), len(documents)]) for x in (vectors, routed))
        known = self.pairs.data.positives_mask(asked, documents)
        negative = ~torch.from_numpy(known).to(q.device)  # [B, C]
        total = config.semantic * triplet(q @ d.T, negative, config.margin)
        total = total + config.indexing * triplet(tq @ td.T, negative, config.margin)
        if config.intra_leaf:
            margin = config.margin if config.intra_leaf_form == "triplet" else None
            apart = intra_leaf(td, d[: len(q)] @ d.T, negative, similar=config.similar, margin=margin)
            total = total + config.intra_leaf * apart
        if config.balance:
            total = total + config.balance * imbalance(td, config.height)
        return total

    def _wrong(self, rows: Rows, generator: torch.Generator, progress: float) -> Iterator[Rows]:
        """Further documents that do not answer these training rows: those that were given, and those found."""
        given = self.pairs.hard_negatives(rows, generator)
        if given is not None:
            yield given.rows
        if self.module.config.negatives != "in-batch":
            yield self._negatives(progress).drawn(rows, generator)

    def _negatives(self, progress: float) -> Mined:
        """Those mined for this epoch, from the index as it was when its turn began."""
        turn = int(progress * self.steps / self.steps_per_epoch + 1e-6) // self.module.config.refresh
        if turn not in self._mined:
            self._mined = {turn: mine(self.module, self.pairs, self.inputs)}
        return self._mined[turn]

    @torch.no_grad()
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Recall at several shares of documents visited, on held-out queries, and how full the leaves are."""
        if self.held_out is None:
            return {}
        curve, filled = self.measured(JUDGED_AT)
        found = [row[name] for row in curve.values() for name in ("recall@10", "recall@100")]
        whole = curve[1.0]
        return {
            METRIC: float(np.mean(found)),
            **{name: whole[name] for name in ("ndcg@10", "recall@10", "recall@100")},
            **{f"recall@100 at {share:.0%} visited": row["recall@100"] for share, row in curve.items()},
            **{LOADED + name: value for name, value in filled.items()},
        }

    @torch.no_grad()
    def measured(
        self, shares: tuple[float, ...], router: Router | None = None
    ) -> tuple[dict[float, Mapping[str, float]], dict[str, float]]:
        """The curve of the held-out queries, and the load of the documents that they are ranked against.

        Leaves are visited by their probability, or in the order of a finished module's ``router``.
        """
        dev = self.held_out
        assert dev is not None
        config, indexer = self.module.config, self.module.indexer
        queries = self.module.embed(self.inputs.query_embeddings(dev.queries))
        documents = self.module.embed(self.inputs.document_embeddings(dev.documents))
        order, leaves = (
            torch.cat([indexer.beam(part, beam).leaves for part in torch.split(x, PART)])
            for x, beam in ((queries, config.leaves), (documents, config.per_document))
        )
        if router is not None:
            order = torch.from_numpy(router.ordered(queries.cpu().numpy(), config.leaves).leaves).to(
                order.device
            )
        curve = recall_curve(queries, documents, order, leaves, dev.judgements, config.leaves, shares)
        return curve, load(np.bincount(leaves.cpu().numpy().ravel(), minlength=config.leaves))
