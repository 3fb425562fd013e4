"""Training of the retrieval networks on cached states of the queries (B batch, L layers, C documents)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.arrays import Floats, Rows
from palmette.data.metrics import Judgements
from palmette.encoder.sentences.splitting import first_sentences
from palmette.errors import TrainingError
from palmette.machine.progress import progress_bar
from palmette.methods.base import FitInputs
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.init import complete_config, initialise
from palmette.methods.layers.module import LayerNetworks, layer_summary
from palmette.ranking.calibration import ndcg_by_query
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, TrainingResult
from palmette.training.maths import info_nce
from palmette.training.pairs import PairsTask, TokenRows, TrainingPairs, top_documents

QUERIES_IN_MEMORY = 64
"""Queries whose states are in memory together."""
QUERIES_FOR_INIT = 4096
"""Queries that the initial weights are fitted to."""
STANDING_IN = 1000
"""Documents whose first sentences stand in for queries where there are none."""


def _blocks(rows: Rows) -> Sequence[Rows]:
    return np.array_split(rows, -(-len(rows) // QUERIES_IN_MEMORY))


@dataclass
class LayersTask(PairsTask):
    """Training by an in-batch softmax at every layer; the encoder and the documents' vectors stay frozen."""

    module: LayerNetworks
    states: TokenRows
    """States of the queries at all layers, on disk: [Σ T, L + 1, h]."""
    features: list[Tensor] = field(default_factory=list)
    """Inputs of the heads for every query [n, p], by layer, where only the heads are trained."""

    @classmethod
    def of(cls, config: LayersConfig, inputs: FitInputs) -> Self:
        """Encode every text once, complete the config and initialise the networks."""
        data, encoder, cache, seed, progress = inputs
        # 1. The queries and their vectors; where there are none, first sentences of documents stand in.
        pairs = TrainingPairs.encode(data, encoder, cache, seed=seed, progress=progress)
        if data.labelled:
            own, training_rows = pairs.queries, np.unique(pairs.query_rows)
            dev_rows = data.judgements("dev")[0] if pairs.dev else training_rows
            query_rows = np.union1d(training_rows, dev_rows)  # the same for every seed: encoded once
            texts = pairs.texts("query", query_rows)
        else:
            texts = first_sentences(data.texts[:STANDING_IN])
            own = torch.from_numpy(cache.encode(encoder, texts, kind="query", progress=progress))
            training_rows = query_rows = np.arange(len(texts))
        if not len(training_rows) or (config.start == "random" and not data.labelled):
            raise TrainingError(
                f"{data.name} has no pairs of query and document, which start='random' needs, or no words to begin with"
            )
        # 2. Their states at all layers, and the networks that come nearest to their vectors.
        stored = cache.encode_tokens(encoder, texts, kind="query", outputs="layers", progress=progress)
        states = TokenRows(*stored, {row: at for at, row in enumerate(query_rows.tolist())})
        drawn = np.random.default_rng(seed).permutation(training_rows)[:QUERIES_FOR_INIT]
        config = complete_config(config, encoder, *states.take(drawn[:QUERIES_IN_MEMORY], torch.device("cpu")))

        @lru_cache(1)
        def summaries(layer: int) -> Tensor:
            sampled = (states.take(block, torch.device("cpu")) for block in _blocks(drawn))
            return torch.cat([layer_summary(x[:, :, layer], mask, config.pooling) for x, mask in sampled])

        module = initialise(config, encoder, summaries, own[torch.from_numpy(drawn)], seed)
        # 3. Where only the heads learn, their inputs are made once.
        task = cls(module.to(encoder.device), pairs, states)
        if config.trains == "heads" and data.labelled:
            for frozen in (module.stack, *(network.layers for network in module.networks_of())):
                frozen.requires_grad_(False)
            task._encode_features(torch.device(encoder.device), progress)
        return task

    @torch.no_grad()
    def _encode_features(self, device: torch.device, progress: bool | None) -> None:
        """Inputs of the heads for all queries of training and validation, made once."""
        module, pairs = self.module.eval(), self.pairs
        dev_rows = pairs.dev.queries if pairs.dev else pairs.query_rows
        query_rows = np.union1d(pairs.query_rows, dev_rows)
        for block in progress_bar(progress, _blocks(query_rows), desc="Reading the layers", unit="batch", delay=2):
            x, mask = self.states.take(block, device)
            parts = module.features([x[:, :, layer] for layer in self.module.config.query_layers], mask)
            self.features = self.features or [torch.zeros(len(pairs.queries), p.shape[1]) for p in parts]
            for whole, part in zip(self.features, parts, strict=True):
                whole[torch.from_numpy(block)] = part.cpu()

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """One run of the loop; none without labelled pairs."""
        return super().stages(training) if self.pairs.data.labelled else []

    def to(self, device: torch.device) -> None:
        """Move vectors and features to the training device."""
        super().to(device)
        self.features = [block.to(device) for block in self.features]

    def queries(self, module: nn.Module, rows: Rows) -> Tensor:
        """Queries [B, L, d] of query rows [B]."""
        at, mask = torch.from_numpy(rows), None
        inputs = [features[at] for features in self.features]
        if not inputs:
            x, mask = self.states.take(rows, self.pairs.queries.device)
            inputs = [x[:, :, layer] for layer in self.module.config.query_layers]
        queries: Tensor = module(inputs, mask, self.pairs.queries[at])
        return queries

    def documents(self, rows: Rows) -> Tensor:
        """Vectors [C, d] of document rows, as an index stores them."""
        vectors = self.pairs.documents[torch.from_numpy(rows)]
        return nn.functional.normalize(vectors, dim=1) if self.module.config.similarity == "cosine" else vectors

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """Mean over the layers of InfoNCE (section 3.2 of the paper) on their similarities (equation 1)."""
        pairs, query_rows, own = self.pairs, self.pairs.query_rows[rows], self.pairs.document_rows[rows]
        columns = np.union1d(own, pairs.hard_negatives(rows, generator))  # each document once: [C]
        queries, documents = self.queries(module, query_rows), self.documents(columns)
        with torch.autocast(queries.device.type, enabled=False):
            scores = torch.einsum("bld,cd->lbc", queries.float(), documents.float()) * self.module.config.multiplier
        known = pairs.known_answers(query_rows, columns)
        return info_nce(scores, torch.from_numpy(np.searchsorted(columns, own)).to(scores.device), known)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Metrics of the fused list on held-out queries, and nDCG@10 of each layer."""
        if (dev := self.pairs.dev) is None:
            return {}
        queries, documents = self._held_out()
        variants = [self.module.fused(queries), *queries.unbind(1)]
        fused, *alone = (dev.score_ranking(top_documents(q, documents)) for q in variants)
        by_layer = zip(self.module.config.query_layers, alone, strict=True)
        return {**fused, **{f"ndcg@10 of layer {layer}": scores["ndcg@10"] for layer, scores in by_layer}}

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """Held-out queries [Q, L, d], and the documents [N, d] that they rank."""
        assert self.pairs.dev is not None
        rows, documents = self.pairs.dev.queries, self.documents(self.pairs.dev.documents)
        return torch.cat([self.queries(self.module, block) for block in _blocks(rows)]), documents

    @torch.no_grad()
    def finish(self, result: TrainingResult) -> TrainingResult:
        """Learn the layers' weights in the fused list; they move where held-out queries clearly gain by it."""
        if self.pairs.dev is not None:
            queries, documents = self._held_out()
            now = self.module.weights()  # [L]
            tables = torch.einsum("qld,nd,l->lqn", queries, documents, now).float().cpu().numpy()
            moved = torch.tensor(best_weights(tables, self.pairs.dev.judgements)).to(now) * now
            self.module.shares.copy_(moved / moved.sum())
        return result


def best_weights(tables: Floats, judgements: Judgements) -> tuple[float, ...]:
    """Weigh several rankings' scores [M, Q, N]: equally, moved where held-out judgements clearly gain by it."""
    # 1. Equal weights, and the nDCG of each judged query by them.
    count = len(tables)
    weights = np.full(count, 1 / count)
    rated = judgements.relevant > 0

    def quality(mix: NDArray[np.float64]) -> NDArray[np.float64]:
        return ndcg_by_query(np.tensordot(mix, tables, 1), judgements)[rated]

    best = quality(weights)
    # 2. Twice through the rankings: each weight is dropped, halved, doubled and quadrupled, and a change stays if the
    # mean gain is above its standard error.
    for place in (*range(count), *range(count)):
        for factor in (0.0, 0.5, 2.0, 4.0):
            tried = weights.copy()
            tried[place] *= factor
            if tried.sum() == 0:
                continue
            tried /= tried.sum()
            gain = quality(tried) - best
            if gain.mean() > gain.std() / np.sqrt(max(1, rated.sum())):
                weights, best = tried, best + gain
    return tuple(weights.tolist())
