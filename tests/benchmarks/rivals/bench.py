"""A data set made ready: everything encoded once, and the exact rankings every system is judged by.

N documents, Q queries, d the encoder's width, c columns of a representation.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palmette import RetrievalData, load_data, load_encoder
from palmette.arrays import best_of_each, fold_columns, unit_rows
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.maths import overlap
from palmette.metrics import Judgements, score_ranks
from palmette.training.pairs import TrainingPairs

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Scores = dict[str, dict[str, dict[str, float]]]
"""Split → size → metric → value."""

COLUMNS = tuple(2**h for h in range(1, 11))
SPLITS = ("dev", "test")
K, BLOCK = 10, 256


class KeepingEncoder(CachedEncoder):
    """Keeps the queries too: every system is asked the same ones."""

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        return self.cache.encode(self.encoder, texts, kind="query")


@dataclass
class Measured:
    """What a system gives for one seed."""

    rows: dict[str, Scores]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class Meter:
    """Processor seconds by part, which a busy machine blurs less than the clock's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block."""
        begun = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - begun


@dataclass(frozen=True)
class Bench:
    """A data set and its encodings.

    Attributes:
        documents: [N, d] of the corpus.
        queries: [Q, d] by split.
        judgements: By split.
        steps: Training steps of everything that trains.
        depth: Of everything that is a tree.
    """

    data: RetrievalData
    encoder: KeepingEncoder
    documents: Floats
    queries: dict[str, Floats]
    judgements: dict[str, Judgements]
    steps: int
    depth: int
    device: str | None = None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        encoder: str,
        cache: str | Path | None,
        *,
        titles: bool = True,
        steps: int = 1000,
        depth: int = 10,
        device: str | None = None,
    ) -> Bench:
        """Read and encode; what was encoded before comes from the cache."""
        data = load_data(folder, titles=titles)
        coder = KeepingEncoder(load_encoder(encoder, device=device), EncodingCache(cache))
        documents = coder.encode([document.content for document in data.corpus], progress=None)
        queries, judgements = {}, {}
        for split in SPLITS:
            _, judgements[split] = data.judgements(split)
            queries[split] = coder.encode_queries(list(data.split(split).queries.values()))
        return cls(data, coder, documents, queries, judgements, steps, depth, device)

    @functools.cached_property
    def pairs(self) -> TrainingPairs:
        """What the trained rivals learn from: the very pairs and dev sample of a tree."""
        return TrainingPairs.encode(self.data, self.encoder, self.encoder.cache)

    def texts(self, split: str) -> list[str]:
        """The queries of a split."""
        return list(self.data.split(split).queries.values())

    def score(self, ranks: dict[str, Rows]) -> dict[str, dict[str, float]]:
        """Split → metric → value, of rankings [Q, K] padded with −1."""
        result = {}
        for split, rows in ranks.items():
            every = score_ranks(rows, self.judgements[split], ks=(K,))
            result[split] = {name: every[name] for name in (f"ndcg@{K}", f"recall@{K}")}
        return result

    def judge(
        self,
        queries: dict[str, Floats],
        documents: Floats,
        sizes: Sequence[int],
        shrink: Callable[[Floats, int], Floats],
        similarity: Callable[[Floats, Floats], Floats],
    ) -> Scores:
        """Rank all documents at every size of a representation that holds the smaller ones within it."""
        scores: Scores = {split: {} for split in queries}
        for size in sizes:
            small = shrink(documents, size)
            ranks = {s: ranking(shrink(q, size), small, similarity) for s, q in queries.items()}
            for split, values in self.score(ranks).items():
                scores[split][str(size)] = values
        return scores


def ranking(queries: Floats, documents: Floats, similarity: Callable[[Floats, Floats], Floats]) -> Rows:
    """[Q, K] rows of the most similar documents, best first."""
    parts = (queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK))
    return np.concatenate([best_of_each(similarity(part, documents), K) for part in parts])


def unit(vectors: Floats, size: int | None = None) -> Floats:
    """The first ``size`` columns, scaled to length 1."""
    return unit_rows(vectors[:, :size])


def fold(leaves: Floats, size: int) -> Floats:
    """A coarser level: neighbouring leaves summed, [N, c] → [N, size]."""
    return fold_columns(leaves, leaves.shape[1] // size)


def cosines(queries: Floats, documents: Floats) -> Floats:
    """[Q, N] inner products of vectors of length 1."""
    return queries @ documents.T


def overlaps(queries: Floats, documents: Floats) -> Floats:
    """[Q, N] Σ min(q, d): one minus the total variation distance of distributions."""
    return overlap(torch.from_numpy(queries), torch.from_numpy(documents)).numpy()
