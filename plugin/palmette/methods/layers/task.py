"""What the retrieval networks learn from: questions and their documents, every layer by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from palmette.lexical.calibration import best_weights
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.losses import layers_loss
from palmette.methods.layers.module import LayerQueries, summary
from palmette.methods.layers.start import completed, started
from palmette.pairs import EncodedPairs, TokenRows

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.encoder import Encoder

__all__ = ["LayersTask", "layer_metric"]

Rows = NDArray[np.int64]

BLOCK = 64
"""Questions whose states are looked at together."""
SAMPLE = 4096
"""Questions that the start is fitted to."""


def layer_metric(layer: int) -> str:
    """What validation calls the quality of a layer."""
    return f"ndcg@10 of layer {layer}"


def _blocks(rows: Rows) -> Sequence[Rows]:
    return np.array_split(rows, -(-len(rows) // BLOCK))


@dataclass
class LayersTask:
    """In-batch softmax at every layer, on cached states; the encoder and the documents' vectors stay frozen.

    Attributes:
        module: The networks.
        pairs: The encoder's own vectors of questions and documents, and who belongs together.
        states: All layers' states of the questions, on disk: [Σ T, L + 1, h].
        features: What the heads read of every question [n, p], by layer, where the heads alone are trained.
    """

    module: LayerQueries
    pairs: EncodedPairs
    states: TokenRows
    features: list[Tensor] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """What the best weights are chosen by: the fused list."""
        return "ndcg@10"

    @property
    def config(self) -> LayersConfig:
        """That of the networks."""
        return self.module.config

    @classmethod
    def of(
        cls,
        config: LayersConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> Self:
        """Encode every text once, and start the networks (whose config is then complete)."""
        pairs = EncodedPairs.encode(data, encoder, cache, seed=seed, progress=progress)
        held = data.judgements("dev")[0] if pairs.dev else pairs.query_rows
        asked = np.unique(np.concatenate([pairs.query_rows, held]))  # the same for every seed: encoded once
        texts = [data.query_texts[row] for row in asked]
        stored = cache.encode_tokens(encoder, texts, kind="query", outputs="layers", progress=progress)
        states = TokenRows(*stored, {row: at for at, row in enumerate(asked.tolist())})
        drawn = np.random.default_rng(seed).permutation(np.unique(pairs.query_rows))[:SAMPLE]
        config = completed(config, encoder, *states.take(drawn[:BLOCK], torch.device("cpu")))

        @lru_cache(1)
        def summaries(layer: int) -> Tensor:
            parts = []
            for block in _blocks(drawn):
                x, mask = states.take(block, torch.device("cpu"))
                parts.append(summary(x[:, :, layer], mask, config.pooling))
            return torch.cat(parts)

        module = started(config, encoder, summaries, pairs.queries[torch.from_numpy(drawn)], seed)
        if config.trains == "heads":
            module.stack.requires_grad_(False)
            for network in module.networks_of(None):
                network.layers.requires_grad_(False)
                network.into.requires_grad_(False)
        task = cls(module.to(encoder.device), pairs, states)
        return (
            replace(task, features=task._features(encoder.device, progress))
            if config.trains == "heads"
            else task
        )

    @torch.no_grad()
    def _features(self, device: torch.device, progress: bool | None) -> list[Tensor]:
        """What the heads read, of all questions that training and validation ask, by row."""
        module, rows, pairs = self.module.eval(), len(self.pairs.queries), self.pairs
        asked = np.unique(
            np.concatenate([pairs.query_rows, pairs.dev.queries if pairs.dev else pairs.query_rows])
        )
        made: list[Tensor] = []
        hidden = None if progress is None else not progress
        with tqdm(total=len(asked), desc="Reading the layers", unit="text", delay=2, disable=hidden) as bar:
            for block in _blocks(asked):
                x, mask = self.states.take(block, device)
                parts = module.features([x[:, :, layer] for layer in self.config.asking], mask)
                made = made or [torch.zeros(rows, part.shape[1]) for part in parts]
                for whole, part in zip(made, parts, strict=True):
                    whole[torch.from_numpy(block)] = part.cpu()
                bar.update(len(block))
        return made

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move what the loss reads beside the networks."""
        self.pairs = self.pairs.to(device)
        self.features = [one.to(device) for one in self.features]

    def queries(self, module: nn.Module, rows: Rows, layers: tuple[int, ...] | None = None) -> Tensor:
        """Queries [B, L, d] of question rows [B]."""
        at, asking = torch.from_numpy(rows), layers or self.config.asking
        own = self.pairs.queries[at]
        queries: Tensor
        if self.features:
            places = [self.config.asking.index(layer) for layer in asking]
            queries = module([self.features[place][at] for place in places], None, own, layers)
        else:
            x, mask = self.states.take(rows, self.pairs.queries.device)
            queries = module([x[:, :, layer] for layer in asking], mask, own, layers)
        return queries

    def documents(self, rows: Rows) -> Tensor:
        """Vectors [N, d] of document rows, as an index keeps them: of unit length where similarity is a cosine."""
        vectors = self.pairs.documents[torch.from_numpy(rows)]
        return nn.functional.normalize(vectors, dim=1) if self.config.similarity == "cosine" else vectors

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """The loss of a batch of pairs: all layers together, or the one whose turn it is."""
        config, pairs = self.config, self.pairs
        turn = None
        if config.schedule == "one by one":
            asking = config.asking
            turn = (asking[min(len(asking) - 1, int(progress * len(asking)))],)
        asked = pairs.query_rows[rows]
        columns, target = self._columns(rows, generator)
        queries = self.queries(module, asked, turn)  # [B, L, d]
        documents = self.documents(columns)  # [C, d]
        with torch.autocast(queries.device.type, enabled=False):
            scores = torch.einsum("bld,cd->lbc", queries.float(), documents.float()) * config.multiplier
        known = torch.from_numpy(pairs.data.positives_mask(asked, columns)).to(scores.device)
        loss = layers_loss(scores, torch.from_numpy(target).to(scores.device), known)
        # Networks whose turn it is not take no part: an empty sum keeps their gradients defined (and zero).
        idle = sum(p.sum() for p in self.module.parameters() if p.requires_grad) * 0.0
        return torch.add(loss, idle)

    def _columns(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
        """The documents of a step, each once [C], and which of them belongs to each pair [B]."""
        pairs, own = self.pairs, self.pairs.document_rows[rows]
        drawn = torch.randint(len(pairs.documents), (self.config.negatives,), generator=generator).numpy()
        hard = pairs.hard_negatives(rows, generator)
        columns = np.unique(np.concatenate([own, drawn, *([hard.rows] if hard else [])]))
        return columns, np.searchsorted(columns, own)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out questions: of the fused list, and of each layer."""
        if self.pairs.dev is None:
            return {}
        queries, documents = self._held_out()

        def judged(asked: Tensor) -> dict[str, float]:
            return self.pairs.judge(asked, documents, lambda q, d: q @ d.T)

        alone = {
            layer_metric(layer): judged(queries[:, place])["ndcg@10"]
            for place, layer in enumerate(self.config.asking)
        }
        return {**judged(self.module.fused(queries)), **alone}

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """The held-out questions' queries [Q, L, d], and the documents they are ranked against [N, d]."""
        assert self.pairs.dev is not None
        rows, documents = self.pairs.dev.queries, self.documents(self.pairs.dev.documents)
        return torch.cat([self.queries(self.module, block) for block in _blocks(rows)]), documents

    @torch.no_grad()
    def weigh(self) -> None:
        """Move how much each layer counts in the fused list, where the held-out questions clearly gain by it."""
        if self.pairs.dev is None or not self.pairs.data.labelled:
            return
        queries, documents = self._held_out()
        now = self.module.weights()  # [L]
        tables = torch.einsum("qld,nd,l->lqn", queries, documents, now).float().cpu().numpy()
        moved = torch.tensor(best_weights(tables, self.pairs.dev.judgements)).to(now) * now
        self.module.shares.copy_(moved / moved.sum())
