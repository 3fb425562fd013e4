"""Time of a search for all layers, of a question from its text to the documents found, and of queries by early exit."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import faiss
import numpy as np
from fetchhr.bench import search

from palmette import Index, LayersModel, load_encoder
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.search import VECTOR
from palmette.search.faiss_engine import engine_named
from palmette.types import Document

BUDGETS = (12, 120)
QUESTION = "when did the university become a member of the league of old schools?"


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


def table(*heads: str) -> None:
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)


def filled(model: LayersModel, count: int) -> tuple[Index, np.ndarray]:
    """An index of random vectors, and they."""
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((count, model.config.vector)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Index.in_memory(model)
    with index.backend.write() as writer:
        for start in range(0, count, 10_000):
            part = vectors[start : start + 10_000]
            writer.put([Document(id=str(start + n), text=str(n)) for n in range(len(part))], {VECTOR: part})
    return index, vectors


def searches(index: Index, rival: Any, engine: str, near: np.ndarray) -> None:
    """Our one search beside FAISS's of as many independent queries [L, d], without encoding."""
    layers = range(1, len(near) + 1)
    queries, fused = near[None], near.mean(0)[None]
    with index.backend.read() as view:
        for k in BUDGETS:
            if engine == "hnsw":  # as many candidates as results, as ours
                rival.hnsw.efSearch = max(64, k)
            cells = []
            for order, alone in (("layer", near), ("fused", np.concatenate([near, fused]))):
                options = LayersSearch(order=order)  # type: ignore[arg-type]
                theirs = fastest(partial(rival.search, alone, k))
                ours = fastest(partial(search, view, queries, fused, layers, k, options))
                cells += [f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}"]
            print(f"| {engine} | {k} | " + " | ".join(cells) + " |", flush=True)


def questions(index: Index, rival: Any, engine: str) -> None:
    """A question from its text to the documents found, beside the encoder's one vector in FAISS at equal budget."""
    encoder = index.model.encoder
    for k in BUDGETS:
        ways = [
            lambda k=k: rival.search(encoder.encode_queries([QUESTION]), k),
            *(
                partial(index.rank, [QUESTION], k, lexical=0, sentences=False, order=order)
                for order in ("layer", "fused")
            ),
        ]
        one, layer, fused = (fastest(way, 30, 1.0) for way in ways)
        print(
            f"| {engine} | {k} | {one:.1f} | {layer:.1f} | {layer / one:.2f} | {fused:.1f} | {fused / one:.2f} |",
            flush=True,
        )


def speed(encoder_name: str, documents: int) -> None:
    """All tables."""
    encoder = load_encoder(encoder_name)
    pairs = [(f"who wrote book number {n}?", f"book number {n} was written by author {n}") for n in range(40)]
    model = LayersModel.fit(pairs, encoder=encoder, steps=0)
    index, vectors = filled(model, documents)
    engines = ("exact", "faiss", "ivf:nlist=1024,nprobe=16", "hnsw")
    rivals = {engine: independent(engine, vectors) for engine in engines}
    moved = np.random.default_rng(1).standard_normal((model.config.last, model.config.vector))
    near = (vectors[0] + 0.3 * moved / model.config.vector**0.5).astype(np.float32)
    print(
        f"{documents:,} random vectors of {model.config.vector} numbers, {len(near)} layers, one question, ms of"
    )
    print("the fastest: the search alone")
    table("engine", "k", "FAISS, 6 queries", "`layer`", "ratio", "FAISS, 7 queries", "`fused`", "ratio")
    for engine in engines:
        index.backend._engine = engine_named(engine)  # the same segments
        searches(index, rivals[engine], engine, near)
    print("\nFrom a question's text to the ids of documents")
    table("engine", "k", "encoder and FAISS, one vector", "`layer`", "ratio", "`fused`", "ratio")
    for engine in engines:
        index.backend._engine = engine_named(engine)
        questions(index, rivals[engine], engine)
    alone = fastest(lambda: encoder.encode_queries([QUESTION]), 30)
    print(f"\nQuery encoding, one question, ms: the encoder alone {alone:.1f}")
    table("layers", "all of them", "the last alone")
    for last in model.config.query_layers:
        every, single = (
            fastest(lambda o=o: model.encode_queries([QUESTION], o), 30)
            for o in (
                model.search_options({"layers": tuple(range(1, last + 1))}),
                model.search_options({"layers": (last,)}),
            )
        )
        print(f"| 1 … {last} | {every:.1f} | {single:.1f} |", flush=True)
