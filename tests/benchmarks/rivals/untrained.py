"""What needs no training: words, the encoder, and cheap ways to make its vectors shorter."""

from __future__ import annotations

import time

import numpy as np

from palmette.evaluation import BM25

from .bench import COLUMNS, Bench, Floats, K, Measured, Meter, Scores, cosines, unit

SAMPLE = 256
"""Texts whose encoding is timed."""


def bm25(bench: Bench, seed: int, *, name: str) -> Measured:
    """Lucene's formula over stemmed words."""
    meter = Meter()
    with meter.part("index"):
        index = BM25(bench.data.corpus)
    ranks = {}
    for split in bench.queries:
        found = index.search(bench.texts(split), K).ids
        ranks[split] = np.array([[bench.data.rows[id] for id in ids] for ids in found], np.int64)
    return Measured(
        {name: {split: {"": values} for split, values in bench.score(ranks).items()}},
        meter.seconds,
    )


def encoder(bench: Bench, seed: int, *, name: str) -> Measured:
    """Exact cosine over all columns; encoding is timed on a sample that does not come from the cache."""
    d = bench.documents.shape[1]
    rows = np.random.default_rng(0).permutation(len(bench.documents))[:SAMPLE]
    texts = [bench.data.corpus[row].content for row in rows]
    bench.encoder.encoder.encode(texts[:8])
    begun = time.process_time()
    bench.encoder.encoder.encode(texts)
    rate = len(texts) / (time.process_time() - begun)
    scores = bench.judge(bench.queries, bench.documents, [d], unit, cosines)
    notes = {"encoding estimated from": f"{len(texts)} texts"}
    return Measured({name: scores}, {"encode": len(bench.documents) / rate}, notes)


def principal(bench: Bench, seed: int, *, name: str) -> Measured:
    """The corpus's principal components; whether its mean is taken off is chosen on dev."""
    meter = Meter()
    with meter.part("train"):
        _, vectors = np.linalg.eigh(np.cov(bench.documents.T.astype(np.float64)))
        axes = np.ascontiguousarray(vectors[:, ::-1], np.float32)  # [d, d], widest first
    sizes = [size for size in COLUMNS if size < len(axes)] + [len(axes)]

    def measure(mean: Floats, splits: dict[str, Floats]) -> Scores:
        queries = {split: (x - mean) @ axes for split, x in splits.items()}
        return bench.judge(queries, (bench.documents - mean) @ axes, sizes, unit, cosines)

    means = {"kept": np.zeros(len(axes), np.float32), "taken off": bench.documents.mean(0)}
    dev = {"dev": bench.queries["dev"]}

    def quality(choice: str) -> float:
        found = measure(means[choice], dev)["dev"]
        return float(np.mean([values["ndcg@10"] for values in found.values()]))

    choice = max(means, key=quality)
    with meter.part("index"):
        _ = (bench.documents - means[choice]) @ axes
    return Measured({name: measure(means[choice], bench.queries)}, meter.seconds, {"mean": choice})
