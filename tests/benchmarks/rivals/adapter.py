"""A linear layer on the frozen embeddings, plain and Matryoshka: the paper's trained rivals.

The same pairs, loss (symmetric InfoNCE with a learned multiplier), loop, steps and way of choosing weights on dev as a
tree; cosine instead of nTVD. Matryoshka (https://arxiv.org/abs/2205.13147) averages the loss over nested sizes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.maths import symmetric_info_nce
from palmette.training.config import TrainingConfig
from palmette.training.loop import Task, TrainingResult, train
from palmette.training.pairs import TrainingPairs

from .bench import COLUMNS, Bench, Measured, Meter, cosines, unit

Start = Literal["identity", "principal", "random"]
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MIDDLE = 3
BATCH = TrainingConfig().batch_size


class Adapter(nn.Module):
    """x → W x + b, and what cosines are multiplied by at each size."""

    def __init__(self, weight: Tensor, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter(weight.clone())  # [c, d]
        self.bias = nn.Parameter(torch.zeros(len(weight)))
        self.log_multipliers = nn.Parameter(torch.zeros(len(sizes)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, d] → [B, c]."""
        return F.linear(x, self.weight, self.bias)

    @torch.no_grad()
    def fit_multipliers(self, queries: Tensor, documents: Tensor, known: Tensor) -> None:
        """Start each where a first batch has its lowest loss, as a tree does."""
        candidates = torch.logspace(0, 3, 25)
        for place, size in enumerate(self.sizes):
            similarity = cosine(self(queries)[:, :size], self(documents)[:, :size])
            losses = torch.stack([symmetric_info_nce(similarity * value, known) for value in candidates])
            self.log_multipliers[place] = candidates[losses.argmin()].log()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """[B, c], [C, c] → [B, C]."""
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T


class AdapterTask(Task):
    """Mean of the losses over the sizes."""

    module: Adapter
    metric = "ndcg@10 over sizes"  # type: ignore[assignment]

    def __init__(self, module: Adapter, pairs: TrainingPairs) -> None:
        self.module, self.pairs = module, pairs

    def size(self) -> int:
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        self.pairs = self.pairs.to(device)

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        queries, documents, known = self.pairs.batch(rows)  # [B, d], [B, d], [B, B]
        hard = self.pairs.hard_negatives(rows, generator)  # [M, d], [B, M]
        texts = [queries, documents] if hard is None else [queries, documents, hard.documents]
        queries, documents, others = torch.tensor_split(module(torch.cat(texts)), (len(rows), 2 * len(rows)))
        losses = []
        for multiplier, size in zip(self.module.log_multipliers.exp(), self.module.sizes, strict=True):
            logits = multiplier * cosine(queries[:, :size], documents[:, :size])  # [B, B]
            extra = None if hard is None else multiplier * cosine(queries[:, :size], others[:, :size])
            losses.append(symmetric_info_nce(logits, known, extra, hard.known if hard else None))
        return torch.stack(losses).mean()

    def validate(self, module: nn.Module) -> dict[str, float]:
        """As a tree is chosen by all its levels: mean over the sizes, weighted by (log₂ size)²."""
        sizes = self.module.sizes
        found = [
            self.pairs.validate(lambda x, m=size: F.normalize(module(x)[:, :m], dim=1), lambda a, b: a @ b.T)
            for size in sizes
        ]
        weights = np.log2(sizes) ** 2
        over = float(weights @ [scores["ndcg@10"] for scores in found] / weights.sum())
        return {**found[-1], self.metric: over}


def first_weight(bench: Bench, start: Start, width: int, seed: int) -> Tensor:
    """[c, d]: identity and principal keep every cosine of the encoder."""
    d = bench.documents.shape[1]
    if start == "identity":
        return torch.eye(width, d)
    if start == "principal":
        _, vectors = np.linalg.eigh(np.cov(bench.documents.T.astype(np.float64)))  # ascending, as columns
        axes = torch.from_numpy(vectors[:, ::-1].T.astype(np.float32))  # [d, d], widest first
        return torch.cat([axes[:width], torch.zeros(max(0, width - d), d)])
    bound = d**-0.5  # what nn.Linear draws
    draw = torch.rand(width, d, generator=torch.Generator().manual_seed(seed))
    return (2 * draw - 1) * bound


def fit(
    bench: Bench, sizes: tuple[int, ...], batch: int, start: Start, rate: float, seed: int
) -> tuple[Adapter, TrainingResult]:
    """One training."""
    module = Adapter(first_weight(bench, start, sizes[-1], seed), sizes)
    sample = bench.pairs.sample(256, torch.Generator().manual_seed(seed))
    module.fit_multipliers(*bench.pairs.batch(sample))
    config = TrainingConfig(steps=bench.steps, batch_size=batch, learning_rate=rate, seed=seed)
    trained = train(AdapterTask(module, bench.pairs), config, device=bench.device, progress=False)
    return module, trained


_FITTED: dict[Any, tuple[Adapter, TrainingResult, Meter]] = {}
"""Trainings so far: the chosen one with seed 0 is not run twice."""


def fitted(
    bench: Bench, sizes: tuple[int, ...], batch: int, start: Start, rate: float, seed: int
) -> tuple[Adapter, TrainingResult, Meter]:
    """:func:`fit`, once."""
    key = (id(bench), sizes, batch, start, rate, seed)
    if key not in _FITTED:
        meter = Meter()
        with meter.part("train"):
            module, trained = fit(bench, sizes, batch, start, rate, seed)
        _FITTED[key] = module.cpu(), trained, meter
    return _FITTED[key]


def choose(
    bench: Bench, sizes: tuple[int, ...], batch: int, starts: tuple[Start, ...]
) -> tuple[Start, float]:
    """The start and rate that are best on dev with seed 0; each start's rate goes up or down while it helps."""

    def dev(start: Start, at: int) -> float:
        return fitted(bench, sizes, batch, start, RATES[at], 0)[1].metrics["ndcg@10 over sizes"]

    found: list[tuple[float, Start, float]] = []
    for start in starts:
        at = MIDDLE
        for step in (1, -1):
            while 0 <= at + step < len(RATES) and dev(start, at + step) > dev(start, at):
                at += step
        found.append((dev(start, at), start, RATES[at]))
    _, start, rate = max(found, key=lambda one: one[0])
    return start, rate


def adapter(bench: Bench, seed: int, *, name: str, nested: bool, batch: int) -> Measured:
    """Train and measure an adapter from so many pairs at a time, ``nested`` for all sizes up to the encoder's."""
    width = bench.documents.shape[1]
    sizes = (*(size for size in COLUMNS if nested and size < width), width)
    start, rate = choose(bench, sizes, batch, ("principal" if nested else "identity", "random"))
    module, trained, meter = fitted(bench, sizes, batch, start, rate, seed)

    def represent(x: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    with meter.part("index"):
        documents = represent(bench.documents)
    queries = {split: represent(x) for split, x in bench.queries.items()}
    scores = bench.judge(queries, documents, sizes, unit, cosines)
    notes = {"start": start, "learning_rate": rate, "best_step": trained.best_step}
    return Measured({name: scores}, meter.seconds, notes)
