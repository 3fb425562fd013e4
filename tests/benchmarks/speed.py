"""Exact tree search beside FAISS: milliseconds, bytes and documents touched, on the same trained vectors.

    palmette train tree squad --out tree      # and other trees
    python tests/benchmarks/speed.py squad tree [TREE …] --out tests/benchmarks/results/speed.md

Few collections have a million documents, so the corpus is grown: embeddings are drawn again and again, moved by a
share of the difference of two others (which keeps the spectrum), renormalised, and routed through the tree. Every
result is compared with FAISS's L1 search or a plain scan of all rows: keys and scores have to be the same.

One thread is timed by its CPU time, which busy neighbours do not stretch; several threads by the clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from palmette.search.columns import Columns
from recording import Line, append, find, read, table, write_part

from palmette import TreeModel, load_data
from palmette.arrays import as_fixed, as_floats, to_fixed
from palmette.encoder import States
from palmette.encoder.cache import CachedEncoder
from palmette.search import set_threads
from palmette.search.flat import Block, ExactEngine, fast_scores, top_k
from palmette.search.plan import Candidates

K, BATCH = 10, 64
AMOUNT = 0.6
"""How far grown documents are moved."""
_PART = 10_000


@dataclass
class Corpus:
    """Fixed-point leaves of grown documents, and of real questions."""

    rows: np.ndarray  # [N, C] uint16
    queries: np.ndarray  # [BATCH, C] float32
    effective: float  # leaves a document effectively lies in: exp of the entropy

    @cached_property
    def expected(self) -> Candidates:
        """By comparing all rows."""
        block = Block(self.rows, np.arange(len(self.rows)))
        block.queries_seen = -(10**6)  # no columns
        return top_k([(block, None)], self.queries, "overlap", K, ExactEngine())


def grown(vectors: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """The given embeddings, then more like them, some at a time."""
    draw = np.random.default_rng(0)
    for start in range(0, count, _PART):
        some = min(_PART, count - start)
        a, b, c = draw.integers(0, len(vectors), (3, some))
        moved = vectors[a] + AMOUNT * (vectors[b] - vectors[c])
        real = vectors[start : start + some]
        moved[: len(real)] = real
        yield (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)


def corpus(model: TreeModel, vectors: np.ndarray, asked: np.ndarray, count: int) -> Corpus:
    """Route grown documents and real questions."""

    def leaves(some: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            given = model.module(States(torch.from_numpy(some))).numpy()
        return to_fixed(given)

    rows = np.empty((count, model.config.leaves), np.uint16)
    for start, some in zip(range(0, count, _PART), grown(vectors, count), strict=True):
        rows[start : start + len(some)] = leaves(some)
    sample = as_floats(rows[:: max(1, count // 1000)]).astype(np.float64)
    entropy = -(sample * np.log(sample + 1e-30)).sum(axis=1)
    return Corpus(rows, as_floats(leaves(asked)), float(np.exp(entropy).mean()))


def timed(
    ask: Callable[[np.ndarray], Any], queries: np.ndarray, threads: int, repeats: int
) -> tuple[float, float]:
    """Milliseconds of one question (median over 24, each the best of some), and per question in a batch."""
    clock = time.thread_time if threads == 1 else time.perf_counter

    def best(some: np.ndarray, times: int) -> float:
        spent = []
        for _ in range(times):
            begun = clock()
            ask(some)
            spent.append(clock() - begun)
        return min(spent) * 1e3

    ask(queries[:1])
    single = float(np.median([best(queries[q : q + 1], repeats) for q in range(24)]))
    return single, best(queries, 2) / len(queries)


class Way(NamedTuple):
    """A way to search, the bytes it holds, and what it touches per document and question."""

    label: str
    ask: Callable[[np.ndarray], Any]
    size: int
    touched: str


def ours(data: Corpus) -> Iterator[Way]:
    """By columns (in batches by all rows), and all rows."""
    count, block, engine = len(data.rows), Block(data.rows, np.arange(len(data.rows))), ExactEngine()
    block.queries_seen = 10**6  # columns are built now rather than after some searches
    begun = time.perf_counter()
    columns = block.memo("columns", lambda: Columns.build(block.data))
    print(f"columns built in {time.perf_counter() - begun:.1f} s", flush=True)

    def ask(queries: np.ndarray) -> Candidates:
        return top_k([(block, None)], queries, "overlap", K, engine)

    found, expected = ask(data.queries), data.expected
    assert np.array_equal(found.keys, expected.keys)
    assert np.array_equal(found.scores, expected.scores)
    size = data.rows.nbytes + columns.codes.nbytes
    yield Way("palmette", ask, size, f"{found.read / count:.0f} B | {found.refined / count:.2%}")

    def scan(queries: np.ndarray) -> None:
        fast_scores(data.rows, np.arange(count), as_fixed(queries), "overlap")

    yield Way("palmette, all rows", scan, data.rows.nbytes, f"{data.rows[0].nbytes} B | 100%")


def theirs(data: Corpus, hnsw: int) -> Iterator[Way]:
    """FAISS on the same numbers."""
    count, width = data.rows.shape

    def filled(index: Any) -> Any:
        for start in range(0, count, _PART):
            index.add(as_floats(data.rows[start : start + _PART]))
        return index

    whole = f"{width * 4} B | 100%"
    index = filled(faiss.IndexFlatIP(width))
    yield Way("FAISS flat IP", lambda queries: index.search(queries, K), count * width * 4, whole)
    index = filled(faiss.IndexFlat(width, faiss.METRIC_L1))
    scores = 1 - index.search(data.queries, K)[0] / 2
    assert np.abs(scores - data.expected.scores).max() < 1e-4
    yield Way("FAISS flat L1", lambda queries: index.search(queries, K), count * width * 4, whole)
    if count <= hnsw:
        index = filled(faiss.IndexHNSWFlat(width, 32, faiss.METRIC_L1))
        index.hnsw.efSearch = 64
        near = index.search(data.queries, K)[1]
        right = np.mean([len(set(a) & set(b)) / K for a, b in zip(near, data.expected.keys, strict=True)])
        label = f"FAISS HNSW32 L1, ef 64: recall {right:.3f}"
        yield Way(label, lambda queries: index.search(queries, K), count * (width * 4 + 260), "some | some")


def measure(name: str, data: Corpus, threads: int, hnsw: int) -> Iterator[Line]:
    """A line of the store for each way."""
    set_threads(threads)
    faiss.omp_set_num_threads(threads)
    for way in chain(ours(data), theirs(data, hnsw)):
        single, many = timed(way.ask, data.queries, threads, 3 if len(data.rows) > 200_000 else 5)
        yield {
            "part": "tree",
            "tree": name,
            "threads": threads,
            "documents": len(data.rows),
            "search": way.label,
            "ms": [round(single, 2), round(many, 2)],
            "gb": round(way.size / 1e9, 2),
            "touched": way.touched,
            "effective": round(data.effective),
        }


def report(lines: Sequence[Line]) -> str:
    """The table of one thread."""
    rows = [
        [
            f"{x['documents']:,}",
            x["search"] if x["tree"] == "tree" else f"{x['search']} ({x['tree']})",
            *(f"{ms:.2f}" for ms in x["ms"]),
            f"{x['gb']:.2f}",
            *(part.strip() for part in x["touched"].split("|")),
        ]
        for x in lines
        if x["part"] == "tree" and x["threads"] == 1
    ]
    return table(["documents", "search", "one, ms", "in a batch", "GB", "read a document", "compared"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every tree at every size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="BEIR folder")
    parser.add_argument("trees", nargs="+", help="checkpoints")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hnsw", type=int, default=10_000, help="largest size to build a graph for")
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--out", type=Path, default=Path("speed.md"), help="the page; lines lie beside it")
    args = parser.parse_args(argv)
    data, store = load_data(args.data), args.out.with_suffix(".jsonl")
    for tree in args.trees:
        name, vectors = Path(tree).name, None
        for size in args.sizes:
            if find(store, part="tree", tree=name, threads=args.threads, documents=size):
                continue
            if vectors is None:
                model = TreeModel.from_pretrained(tree)
                encoder = CachedEncoder(model.encoder, args.cache)
                vectors = encoder.encode([document.content for document in data.corpus])
                asked = encoder.encode_queries(list(data.split("dev").queries.values())[::10][:BATCH])
            grew = corpus(model, vectors, asked, size)
            for line in list(measure(name, grew, args.threads, args.hnsw)):
                print(append(store, line), flush=True)
            del grew
    write_part(args.out, "tree", report(read(store)))


if __name__ == "__main__":
    main()
