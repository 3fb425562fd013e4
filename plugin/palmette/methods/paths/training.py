"""Training of space and indexer: losses, mined negatives, validation, leaves of limited size, the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from palmette.arrays import Rows
from palmette.encoder import Backbone, Kind
from palmette.methods.paths.config import SHARPNESS, PathsConfig
from palmette.methods.paths.explain import IndexReport, leaf_load, leaf_terms
from palmette.methods.paths.init import initialise
from palmette.methods.paths.losses import intra_leaf, triplet
from palmette.methods.paths.module import Indexer, Part, Paths
from palmette.methods.paths.search import SHARES, recall_curve
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, Task, TrainingResult
from palmette.training.pairs import TrainingPairs, Validation

LOADED = "documents per leaf, "
"""Prefix of the validation metrics of :func:`leaf_load`."""
LOOSE = 1.5
"""Capacity from which on leaves are limited only once training is over."""
JUDGED_AT = (0.1, 0.2, 0.4, 1.0)
"""Shares of the documents over whose recall the best weights are chosen."""
NEAREST = 20
"""Mined negatives of each query."""
PART, TEXTS = 4096, 32
"""Vectors that are routed, and texts that a learning encoder reads, at a time outside training."""
ROUNDS, STEP, FADE = 200, 0.25, 0.99
"""Rounds of the auction that limits leaves, its first step (for a sharpness of 20), and how the step shrinks."""
ROOM = 1 << 26
"""Logits in memory at a time: of very many texts an even sample is looked at."""


class Inputs:
    """Queries and documents as the module reads them: embeddings, or tokens where the encoder itself learns."""

    def __init__(self, pairs: TrainingPairs, backbone: Backbone | None, progress: bool | None) -> None:
        self.backbone, self.progress, data = backbone, progress, pairs.data
        self.vectors: dict[Kind, Tensor] = {"query": pairs.queries, "document": pairs.documents}
        self.texts: dict[Kind, Sequence[str]] = {"query": data.query_texts, "document": data.texts}

    def batch(self, kind: Kind, rows: Rows) -> Part:
        """Embeddings [n, m], or padded ids and token mask [n, T] each."""
        if self.backbone is None:
            return self.vectors[kind][torch.from_numpy(rows)]
        return self.backbone.plain([self.texts[kind][row] for row in rows.tolist()], kind)

    def embeddings(self, kind: Kind, rows: Rows) -> Tensor:
        """[n, m] as the encoder is now, without gradients."""
        if self.backbone is None:
            return self.vectors[kind][torch.from_numpy(rows)]
        texts = [self.texts[kind][row] for row in rows.tolist()]
        return encode_texts(self.backbone, texts, kind, self.progress)


@torch.no_grad()
def encode_texts(
    backbone: Backbone, texts: Sequence[str], kind: Kind, progress: bool | None = None
) -> Tensor:
    """Embeddings [n, m] of texts, those of like lengths together."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    out = torch.zeros(len(texts), backbone.dimension, device=backbone.device)
    learning = backbone.training
    backbone.eval()
    hidden = len(texts) <= 1000 or (None if progress is None else not progress)
    for start in tqdm(range(0, len(order), TEXTS), "Encoding", unit="batch", disable=hidden, leave=False):
        rows = order[start : start + TEXTS]
        out[torch.tensor(rows)] = backbone.embed([texts[row] for row in rows], kind)
    backbone.train(learning)
    return out


def initial_module(config: PathsConfig, pairs: TrainingPairs, seed: int, backbone: Backbone | None) -> Paths:
    """Module before training."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Paths(config, backbone).cpu()
    if config.start == "kmeans":
        with torch.no_grad():
            vectors = module.embed(pairs.documents[: len(pairs.data.corpus)])
        initialise(module.indexer, vectors, seed)
        if 0 < config.capacity < LOOSE:
            tighter = 1 + (config.capacity - 1) / 3  # training loosens it again
            limit_leaf_size(module.indexer, vectors, tighter)
    return module


def load_imbalance(sizes: Tensor) -> float:
    """Expected over ideal documents per leaf, of leaves [L]: Σ pᵢcᵢ / (N / L), 1 where all are equal."""
    counts = sizes.double()
    return float(counts.square().sum() * len(counts) / counts.sum().clamp(min=1).square())


@torch.no_grad()
def limit_leaf_size(indexer: Indexer, x: Tensor, limit: float) -> float:
    """Lower the logits of full leaves for texts [n, m] until the imbalance is at most ``limit``; returns it.

    A leaf's logit is its child's bias and, below the root, what the last turn adds to that: rows of W, one for each
    pair of turns. As in an auction, prices rise by the log of how overfull a leaf is, in ever smaller steps; the best
    state seen stays.
    """
    h, branches = indexer.height - 1, indexer.branches
    x = x[:: max(1, len(x) * branches // ROOM)]
    path = torch.cat([indexer(part).path[:, :h] for part in torch.split(x, PART)])  # independent of prices
    pieces = zip(torch.split(x, PART), torch.split(path, PART), strict=True)
    seen = [indexer.transformed(some, way[:, None])[:, 0] for some, way in pieces]
    logits = torch.cat([k @ indexer.outer[h] + indexer.bias[h] for k in seen])  # [n, B]
    # Prices [T, B], by the last turn where there is one, and how much of each turn's a text pays: [n, T]
    paid = torch.cat([k[:, :branches] for k in seen]) if h else torch.ones(len(x), 1, device=x.device)
    prices = torch.zeros(paid.shape[1], branches, device=x.device)
    node = indexer.numbers(torch.cat([path, torch.zeros_like(logits[:, :1], dtype=torch.int64)], 1))
    best, kept, step = float("inf"), prices.clone(), STEP * SHARPNESS / 20
    ideal = len(x) / branches**indexer.height
    for _ in range(ROUNDS):
        leaves = node + (logits - paid @ prices).argmax(1)
        sizes = torch.bincount(leaves, minlength=branches**indexer.height)
        imbalance = load_imbalance(sizes)
        if imbalance < best:
            best, kept = imbalance, prices.clone()
        if imbalance <= limit:
            break
        over = ((sizes + 1) / (ideal + 1)).log().clamp(-2, 2).view(-1, *prices.shape).mean(0)
        prices += step * over
        step *= FADE
    if h:
        indexer.outer[h][:branches] -= kept
    else:
        indexer.bias[0] -= kept[0]
    return best


@dataclass
class PathsTask(Task):
    """The paper's three losses.

    Attributes:
        module: Space and indexer.
        pairs: Training pairs, with their embeddings by the encoder as it was.
        inputs: Embeddings or tokens of them.
        held_out: Queries and documents of the validation.
        report: Facts of the training, once it is over.
    """

    module: Paths
    pairs: TrainingPairs
    inputs: Inputs
    held_out: Validation | None
    steps: int = 1
    steps_per_epoch: int = 1
    report: IndexReport = field(default_factory=IndexReport)
    mined: tuple[int, Rows] | None = None
    metric: ClassVar[str] = "recall over visits"  # at 10 and 100, averaged over shares of documents visited

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the module."""
        self.pairs = self.pairs.to(device)
        self.inputs.vectors = {"query": self.pairs.queries, "document": self.pairs.documents}

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """One run, whose length tells the epochs."""
        self.steps = training.steps
        self.steps_per_epoch = max(1, self.size() // min(training.batch_size, self.size()))
        return super().stages(training)

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """λ₁ L_siamese + λ₂ L_indexing + λ₃ L_intra-leaf of a batch of pairs (equation 6)."""
        config, asked = self.module.config, self.pairs.query_rows[rows]
        own, others = self.pairs.document_rows[rows], self._negatives(rows, generator, progress)
        documents = np.concatenate([own, *others])
        vectors, routed = module(self.inputs.batch("query", asked), self.inputs.batch("document", documents))
        with torch.autocast(vectors.device.type, enabled=False):  # margins need every digit
            (q, d), (tq, td) = (
                torch.split(x, [len(asked), len(documents)]) for x in (vectors, routed.embedding)
            )
            known = self.pairs.data.positives_mask(asked, documents)
            negative = ~torch.from_numpy(known).to(q.device)  # [B, C]
            total = config.semantic * triplet(q @ d.T, negative, config.margin)
            total = total + config.indexing * triplet(tq @ td.T, negative, config.margin)
            if config.intra_leaf:
                cosine = d[: len(q)] @ d.T  # [B, C]
                apart = intra_leaf(td, cosine, negative, similar=config.similar, margin=config.margin)
                total = total + config.intra_leaf * apart
            return total

    def _negatives(self, rows: Rows, generator: torch.Generator, progress: float) -> Iterator[Rows]:
        """Given negatives of these training rows, and one mined negative of each row that has any."""
        given = self.pairs.hard_negatives(rows, generator)
        if given is not None:
            yield given.rows
        config = self.module.config
        if config.negatives == "leaves":
            turn = int(progress * self.steps / self.steps_per_epoch + 1e-6) // config.refresh
            if self.mined is None or self.mined[0] != turn:
                self.mined = turn, self._mine()
            mined = self.mined[1]
            choice = torch.randint(mined.shape[1], (len(rows),), generator=generator).numpy()
            drawn = np.unique(mined[rows, choice])
            yield drawn[drawn >= 0]

    @torch.no_grad()
    def _mine(self) -> Rows:
        """Nearest irrelevant documents in the leaf of each training row's query: [P, n], padded with −1."""
        module, pairs, vectors = self.module, self.pairs, self._corpus()
        placed = self._leaves(vectors, 1)[:, 0]
        asked, back = np.unique(pairs.query_rows, return_inverse=True)
        found = []
        for rows in np.array_split(asked, -(-len(asked) // 256)):
            queries = module.embed(self.inputs.embeddings("query", rows))
            scores = queries @ vectors.T  # [256, N]
            relevant = pairs.data.positives_mask(rows, np.arange(len(vectors)))
            out = torch.from_numpy(relevant).to(scores.device) | (self._leaves(queries, 1) != placed)
            best = scores.masked_fill(out, -torch.inf).topk(min(NEAREST, len(vectors)), dim=1)
            found.append(best.indices.masked_fill(best.values == -torch.inf, -1).cpu().numpy())
        return np.concatenate(found)[back]

    def _corpus(self) -> Tensor:
        """Vectors [N, m] of the whole corpus."""
        return self.module.embed(self.inputs.embeddings("document", np.arange(len(self.pairs.data.corpus))))

    def _leaves(self, vectors: Tensor, count: int) -> Tensor:
        """Likeliest leaves [n, l] of vectors [n, m]."""
        beam = self.module.indexer.beam
        return torch.cat([beam(part, count).leaves for part in torch.split(vectors, PART)])

    @torch.no_grad()
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Recall at several shares of documents visited, on held-out queries, and how full the leaves are."""
        if self.held_out is None:
            return {}
        curve, load = self._measure(self.held_out, JUDGED_AT)
        recalls = [row[name] for row in curve.values() for name in ("recall@10", "recall@100")]
        return {
            self.metric: float(np.mean(recalls)),
            **{name: curve[1.0][name] for name in ("ndcg@10", "recall@10", "recall@100")},
            **{f"recall@100 at {share:.0%} visited": row["recall@100"] for share, row in curve.items()},
            **{LOADED + name: value for name, value in load.items()},
        }

    def _measure(
        self, dev: Validation, shares: Sequence[float]
    ) -> tuple[dict[float, Mapping[str, float]], dict[str, int | float]]:
        """Recall curve of the held-out queries, and load of the documents that they rank."""
        config, module = self.module.config, self.module
        queries = module.embed(self.inputs.embeddings("query", dev.queries))
        documents = module.embed(self.inputs.embeddings("document", dev.documents))
        order = module.leaves_in_order(queries, config.leaves).leaves
        leaves = self._leaves(documents, config.per_document)
        curve = recall_curve(queries, documents, order, leaves, dev.judgements, shares)
        return curve, self._load(leaves)

    def _load(self, leaves: Tensor) -> dict[str, int | float]:
        counts = torch.bincount(leaves.flatten(), minlength=self.module.config.leaves)
        return leaf_load(counts.cpu().numpy())

    @torch.no_grad()
    def finish(self, result: TrainingResult) -> TrainingResult:
        """Limit the leaves, keep their mean documents, and write the report."""
        module, config = self.module, self.module.config
        vectors = self._corpus()
        if config.capacity:
            limit_leaf_size(module.indexer, vectors, config.capacity)
        leaves = self._leaves(vectors, config.per_document)  # [N, l]
        sums = torch.zeros_like(module.centres).index_add_(0, leaves[:, 0], vectors)
        counts = torch.bincount(leaves[:, 0], minlength=config.leaves)
        module.centres.copy_(sums / counts.clamp(min=1)[:, None])
        asked, data = np.unique(self.pairs.query_rows), self.pairs.data
        to = self._leaves(module.embed(self.inputs.embeddings("query", asked)), 1)[:, 0]
        report: dict[str, Any] = {
            "curve": {} if self.held_out is None else self._measure(self.held_out, SHARES)[0],
            "load": self._load(leaves),
            "loads": tuple(
                {"step": entry["step"], "epoch": round(entry["step"] / self.steps_per_epoch, 2)}
                | {n.removeprefix(LOADED): v for n, v in entry["metrics"].items() if n.startswith(LOADED)}
                for entry in result.history
                if entry.get("metrics")
            ),
            "documents": leaf_terms(lambda row: data.corpus[row].content, leaves[:, 0], module),
            "queries": leaf_terms(lambda at: data.query_texts[asked[at]], to, module),
        }
        self.report = IndexReport(**report)
        return result
