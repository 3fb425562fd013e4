"""Time: one search for all layers beside FAISS with as many independent queries; queries by early exit."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import faiss
import numpy as np

from palmette import FakeEncoder, LayersModel, load_encoder
from palmette.methods.layers.config import LayersConfig, LayersSearch
from palmette.methods.layers.module import LayerQueries
from palmette.methods.layers.searching import VECTOR, search
from palmette.search.engine import engine_named
from palmette.store.local import LocalBackend
from palmette.types import Document


def fastest(run: Any, times: int = 15, seconds: float = 0.3) -> float:
    """Milliseconds of the fastest of so many runs, and of as many as the time allows."""
    best, begun, done = np.inf, time.perf_counter(), 0
    while done < times or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        run()
        best, done = min(best, time.perf_counter() - start), done + 1
    return 1000 * best


def independent(engine: str, vectors: np.ndarray) -> Any:
    """FAISS's own index, to be asked as many independent queries."""
    width = vectors.shape[1]
    if engine == "hnsw":
        index = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = 80, 64
    elif engine.startswith("ivf"):
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, 1024, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = 16
        index.train(vectors)
    else:
        index = faiss.IndexFlatIP(width)
    index.add(vectors)
    return index


def speed(encoder_name: str, documents: int) -> None:
    """One search for all layers beside FAISS with as many independent queries; queries by early exit."""
    draw = np.random.default_rng(0)
    width, layers = 384, 6
    vectors = draw.standard_normal((documents, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = vectors[:1, None] + 0.3 * draw.standard_normal((1, layers, width)).astype(np.float32) / width**0.5
    queries = near.astype(np.float32)
    fused = queries.mean(1)
    print(
        f"{documents:,} random vectors of {width} numbers, {layers} layers, one question, ms of the fastest\n"
    )
    heads = ("engine", "k", "FAISS, 6 queries", "`layer`", "ratio", "FAISS, 7 queries", "`fused`", "ratio")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    config = LayersConfig(states=width, vector=width, last=layers)
    specs = LayersModel(config, FakeEncoder(width), LayerQueries(config)).arrays()
    with LocalBackend.in_memory(specs) as store:
        with store.write() as writer:
            for start in range(0, documents, 10_000):
                part = vectors[start : start + 10_000]
                writer.put(
                    [Document(id=str(start + n), text=str(n)) for n in range(len(part))], {VECTOR: part}
                )
        for engine in ("exact", "faiss", "ivf:nlist=1024,nprobe=16", "hnsw"):
            store._engine = engine_named(engine)  # the same segments
            rival = independent(engine, vectors)
            with store.read() as view:
                for k in (12, 120):
                    if engine == "hnsw":  # as many candidates as results, as ours
                        rival.hnsw.efSearch = max(64, k)
                    cells = []
                    for order, alone in (
                        ("layer", queries[0]),
                        ("fused", np.concatenate([queries[0], fused])),
                    ):
                        options = LayersSearch(order=order)  # type: ignore[arg-type]
                        theirs = fastest(partial(rival.search, alone, k))
                        ours = fastest(partial(search, view, queries, fused, range(1, 7), k, options))
                        cells += [f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}"]
                    print(f"| {engine} | {k} | " + " | ".join(cells) + " |", flush=True)
    encoder = load_encoder(encoder_name)
    pairs = [(f"who wrote book number {n}?", f"book number {n} was written by author {n}") for n in range(40)]
    model = LayersModel.fit(pairs, encoder=encoder, steps=0)
    question = ["when did the university become a member of the league of old schools?"]
    alone = fastest(lambda: encoder.encode_queries(question), 30)
    print(f"\nQuery encoding, one question, ms: the encoder alone {alone:.1f}")
    print("\n| layers | all of them | the last alone |\n|---|---|---|")
    for last in model.config.asking:
        every, single = (
            fastest(lambda o=o: model.encode_queries(question, o), 30)
            for o in (
                model.options({"layers": tuple(range(1, last + 1))}),
                model.options({"layers": (last,)}),
            )
        )
        print(f"| 1 … {last} | {every:.1f} | {single:.1f} |", flush=True)
