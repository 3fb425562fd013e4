"""Leaves over the space beside FAISS's inverted lists and graph: recall by documents visited, and time at equal recall.

    python benchmarks/paths.py DATA [DATA …] --seeds 0 1 2 --out benchmarks/results/paths.md
    python benchmarks/paths.py --speed 100000 --out benchmarks/results/paths.md

DATA are BEIR folders with train, dev and test judgements. All systems search the same vectors, the space that the
training pairs teach; documents of lists and leaves are visited whole as long as they fit into the share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from common import ENCODER, Floats, command_line, graph, inverted_lists, number, questions, shared
from palmette import FakeEncoder, PathsModel, load_data, load_encoder
from palmette.data.metrics import Judgements, query_scores
from palmette.encoder.cache import EncodingCache
from palmette.machine.threads import set_threads
from palmette.methods.paths.config import SHARPNESS, PathsConfig
from palmette.methods.paths.module import Paths
from palmette.store.memory import ArrayView
from recording import Line, append, find, read, table, write_part

Ints = NDArray[np.int64]

SHARES = (0.05, 0.1, 0.2)
WIDTH, QUERIES, REPEATS, K, GOAL = 384, 50, 5, 10, 0.9


def recall(
    queries: Floats, documents: Floats, order: Ints, leaves: Ints, truth: Judgements, depth: int = 100
) -> list[float]:
    """Recall at 100 by share of documents visited, from every query's order of lists [Q, L], then of all documents."""
    sizes, rank = np.bincount(leaves, minlength=order.shape[1]), np.argsort(order, axis=1)
    held, values = np.cumsum(sizes[order], axis=1), []
    scores = queries @ documents.T
    for share in (*SHARES, 1.0):
        looked = np.maximum((held <= share * len(documents)).sum(axis=1), 1)
        inside = rank[:, leaves] < looked[:, None]
        best = np.argsort(-np.where(inside, scores, -np.inf), axis=1, kind="stable")[:, :depth]
        found = np.where(np.take_along_axis(inside, best, 1), best, -1)
        values.append(float(query_scores(found, truth, ks=(depth,))[f"recall@{depth}"].mean()))
    return values


def measure(folder: str, seeds: Sequence[int], store: Path) -> None:
    """Whatever is missing of one data set."""
    name, cache = Path(folder).name, EncodingCache()
    missing = [seed for seed in seeds if not find(store, data=name, seed=seed)]
    if not missing:
        return
    data, encoder = load_data(folder), load_encoder(ENCODER)
    asked, truth = questions(data, 300)
    asked = cache.encode(encoder, asked, kind="query")
    texts = cache.encode(encoder, [d.content for d in data.corpus], kind="document")
    few = round(2 * len(texts) ** 0.5)
    for seed in missing:
        systems: dict[str, list[float]] = {}
        for label, options in (
            (f"paths, {2 * few} leaves", {}),
            (f"paths, {few} leaves", {"branches": few}),
            (f"paths, {few} leaves, 600 steps", {"branches": few, "steps": 600}),
        ):
            model = PathsModel.fit(data, encoder=encoder, cache=cache, seed=seed, progress=False, **options)
            arrays = model.encode_documents(data.corpus, model.encoder.map(texts, "document"))
            queries = model.encode_queries(model.encoder.map(asked, "query"), None)["vector"]
            vectors, leaves = np.asarray(arrays["vector"]), np.asarray(arrays["leaves"], np.int64)[:, 0]
            x = torch.from_numpy(queries).double()
            order = model.router.leaves_in_order(x, model.config.leaves).leaves.numpy()
            systems[label] = recall(queries, vectors, order, leaves, truth)
        for lists in (few, 2 * few):
            index = inverted_lists(vectors, lists, 1234 + seed, rounds=25)
            order, leaves = index.quantizer.search(queries, lists)[1], index.quantizer.search(vectors, 1)[1][:, 0]
            systems[f"IVF, {lists} lists"] = recall(queries, vectors, order, leaves, truth)
        print(append(store, {"data": name, "seed": seed, "systems": systems}), flush=True)


def simulated(count: int) -> tuple[Floats, Floats]:
    """Clustered unit vectors [N, m], and queries [Q, m] near some of them."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(max(2, count // 50), WIDTH)).astype(np.float32)
    x = centres[draw.integers(0, len(centres), count)]
    x += draw.normal(size=x.shape).astype(np.float32)
    queries = x[draw.integers(0, count, QUERIES)] + draw.normal(size=(QUERIES, WIDTH)).astype(np.float32)
    return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, queries))  # type: ignore[return-value]


def speed(count: int) -> Line:
    """Milliseconds of a query alone, one thread, where each system first finds 90 % of the ten nearest.

    The leaves are IVF's own lists, so that all visit the same documents: what is compared is the search.
    """
    set_threads(1)
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    x, queries = simulated(count)
    truth = np.argsort(-(queries @ x.T), axis=1)[:, :K]
    lists = round(4 * count**0.5)
    flat, walked = inverted_lists(x, lists), graph(x)
    centres = flat.quantizer.reconstruct_n(0, lists)
    quantizer = faiss.IndexFlatIP(WIDTH)
    quantizer.add(centres)
    kind, product = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    small = faiss.IndexIVFScalarQuantizer(quantizer, WIDTH, lists, kind, product)
    small.train(x)
    small.add(x)
    config = PathsConfig(branches=lists, centroid_weight=0.0).replace(width=WIDTH)
    module = Paths(config).requires_grad_(False)
    module.indexer.outer[0].copy_(torch.from_numpy(centres.T * SHARPNESS))
    module.indexer.inner[0].zero_()
    model = PathsModel(config, FakeEncoder(WIDTH), module)
    view = ArrayView({"vector": x, "leaves": quantizer.search(x, 1)[1].astype(np.int32)})

    def ours(some: Floats, effort: int) -> Any:
        return model.search(view, {"vector": some}, K, model.search_options({"beam": effort})).keys

    def probing(index: Any) -> Callable[[Floats, int], Any]:
        def search(some: Floats, effort: int) -> Any:
            index.nprobe = effort
            return index.search(some, K)[1]

        return search

    def walking(some: Floats, effort: int) -> Any:
        walked.hnsw.efSearch = effort
        return walked.search(some, K)[1]

    systems = {
        "PathsModel": ours,
        "FAISS IVF, float32": probing(flat),
        "FAISS IVF, SQ8": probing(small),
        "FAISS HNSW": walking,
    }
    found: dict[str, Any] = {}
    for name, search in systems.items():
        for effort in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512):
            hits = search(queries, effort)
            reached = shared(hits, truth)
            if reached >= GOAL:
                break
        times = np.zeros((QUERIES, REPEATS))
        for repeat in range(REPEATS):
            for row in range(QUERIES):
                begun = time.perf_counter()
                search(queries[row : row + 1], effort)
                times[row, repeat] = time.perf_counter() - begun
        least = 1e3 * float(times.min(axis=1).mean())
        found[name] = {"effort": effort, "recall": reached, "ms": least}
    return {"documents": count, "lists": lists, "times": found}


def report(lines: Sequence[Line]) -> str:
    """Both tables."""
    rows, names = [], dict.fromkeys(line["data"] for line in lines if "data" in line)
    for name in names:
        runs = [line["systems"] for line in lines if line.get("data") == name]
        for system in runs[0]:
            values = np.array([run[system] for run in runs])
            rows.append([f"{name}: {system}", str(len(runs)), *map(number, values.mean(axis=0))])
    parts = [table(["R@100 at", "seeds", *(f"{share:.0%}" for share in SHARES), "100%"], rows)]
    timed = [
        [f"{line['documents']:,}: {name}", str(x["effort"]), f"{x['recall']:.3f}", f"{x['ms']:.2f}"]
        for line in lines
        if "times" in line
        for name, x in line["times"].items()
    ]
    if timed:
        parts.append(table(["one query, one thread", "lists or efSearch", "recall@10", "ms"], timed))
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "paths.md")
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--speed", type=int, nargs="+", default=[], help="numbers of simulated vectors")
    args = parser.parse_args(argv)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        measure(folder, args.seeds, store)
    for count in args.speed:
        if not find(store, documents=count):
            print(append(store, speed(count)), flush=True)
    write_part(args.out, "paths", report(read(store)))


if __name__ == "__main__":
    main()
