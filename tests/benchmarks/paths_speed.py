"""Wall clock of the learned index beside FAISS IVF with as many lists, and HNSW, on simulated vectors, in one process.

    python tests/benchmarks/paths_speed.py --documents 100000 --out tests/benchmarks/results/paths_speed.md

One query at a time on ``--threads`` threads; each index answers the same queries in turn, so that load on the machine
falls on all alike. The leaves are IVF's own lists, so that both visit the same documents: what is compared is the
search. Times are the least and the median of each query's repetitions, averaged over queries; read ratios. ``search``
is what the method does in an open view, ``index`` a whole ``Index.rank`` from the query's embedding to ids.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from palmette import Document, FakeEncoder, Index, PathsModel
from palmette.methods.paths.config import PathsConfig
from palmette.methods.paths.module import Paths
from palmette.search.threads import set_threads
from palmette.store.local import LocalBackend

Floats = NDArray[np.float32]

WIDTH, SPREAD = 384, 1.0
QUERIES, REPEATS, K = 50, 5, 10
HEAD = "# Wall clock of the learned index\n\n"
MARK = "<!-- What follows is written by paths_speed.py; what stands above is kept. -->"


def simulated(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Clustered unit vectors [N, m], and queries [Q, m] near some of them."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(max(2, count // 50), WIDTH)).astype(np.float32)
    x = centres[draw.integers(0, len(centres), count)]
    x += SPREAD * draw.normal(size=x.shape).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    queries = x[draw.integers(0, count, QUERIES)] + 0.05 * draw.normal(size=(QUERIES, WIDTH)).astype(
        np.float32
    )
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return x, queries.astype(np.float32)


def learned(centres: Floats) -> PathsModel:
    """A model whose leaves are given lists: a document goes to the centre with the largest inner product."""
    config = PathsConfig(branches=len(centres), nearness=0.0).replace(width=WIDTH)
    module = Paths(config).requires_grad_(False)
    module.indexer.outer[0].copy_(torch.from_numpy(centres.T * config.sharpness))
    module.indexer.inner[0].zero_()
    return PathsModel(config, FakeEncoder(WIDTH), module)


def filled(model: PathsModel, x: Floats) -> tuple[LocalBackend, float]:
    """An index in memory, and documents added per second once they are encoded."""
    backend, begun = LocalBackend.in_memory(model.arrays(), language=None), time.perf_counter()
    with backend.write() as writer:
        for start in range(0, len(x), 20_000):
            rows = range(start, min(start + 20_000, len(x)))
            writer.put([Document(str(row), "x") for row in rows], model.routed(x[rows.start : rows.stop]))
    return backend, len(x) / (time.perf_counter() - begun)


def timed(systems: dict[str, Callable[[int], Any]], queries: int) -> Iterator[tuple[str, float, float]]:
    """Microseconds per query: the least of each query's repetitions, and their median, averaged."""
    times = {name: np.zeros((queries, REPEATS)) for name in systems}
    for ask in systems.values():
        ask(0)
    for repeat in range(REPEATS):
        for row in range(queries):
            for name, ask in systems.items():
                begun = time.perf_counter()
                ask(row)
                times[name][row, repeat] = time.perf_counter() - begun
    for name, taken in times.items():
        yield name, 1e6 * taken.min(axis=1).mean(), 1e6 * np.median(taken, axis=1).mean()


def recall(found: Any, truth: Any) -> float:
    """Share of the true neighbours found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)]))


def measure(count: int, lists: int, probes: Sequence[int], threads: int) -> str:
    """The table."""
    set_threads(threads)
    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    x, queries = simulated(count)
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(x)
    truth = flat.search(queries, K)[1].tolist()
    del flat
    rival = faiss.IndexIVFFlat(faiss.IndexFlatIP(WIDTH), WIDTH, lists, faiss.METRIC_INNER_PRODUCT)
    rival.train(x[:: max(1, count // 20_000)])
    begun = time.perf_counter()
    rival.add(x)
    added = count / (time.perf_counter() - begun)
    model = learned(rival.quantizer.reconstruct_n(0, lists))
    backend, rate = filled(model, x)
    index = Index(model, backend)
    lines = [
        f"{count:,} vectors of {WIDTH} numbers, {lists} lists, {threads} thread(s). {rate:,.0f} documents are routed "
        f"and stored a second, {added:,.0f} by FAISS IVF, which stores vectors alone.",
        "",
        "| system | recall@10 | visited | µs, least | µs, median |",
        "|---|---:|---:|---:|---:|",
    ]
    graph = faiss.IndexHNSWFlat(WIDTH, 32, faiss.METRIC_INNER_PRODUCT) if count <= 200_000 else None
    if graph is not None:
        graph.add(x)
    for probe in probes:
        lines += _rows(model, index, rival, graph, queries, truth, probe)
    size = backend.stats().bytes / count
    with tempfile.TemporaryDirectory() as folder:
        faiss.write_index(rival, str(Path(folder) / "i"))
        theirs = (Path(folder) / "i").stat().st_size / count
    lines += [
        "",
        f"On disk {size:,.0f} bytes a document with ids and words, FAISS IVF {theirs:,.0f}; in memory the vectors "
        "lie once more in the order of the leaves.",
    ]
    return "\n".join(lines)


def _rows(
    model: PathsModel, index: Index, rival: Any, graph: Any, queries: Floats, truth: Any, probe: int
) -> list[str]:
    options = model.options({"beam": probe})
    with index.backend.read() as view:

        def ours(row: int) -> Any:
            return model.search(view, model.encode_embeddings(queries[row : row + 1]), K, options)

        def whole(row: int) -> Any:
            return index.rank(queries[row : row + 1], k=K, beam=probe, lexical=0)

        def theirs(row: int) -> Any:
            return rival.search(queries[row : row + 1], K)

        systems: dict[str, Callable[[int], Any]] = {"search": ours, "index": whole, "FAISS IVF": theirs}
        rival.nprobe = probe
        faiss.cvar.indexIVF_stats.reset()
        lists = [theirs(row)[1][0].tolist() for row in range(len(queries))]
        seen = faiss.cvar.indexIVF_stats.ndis / len(queries) / rival.ntotal
        found = [whole(row) for row in range(len(queries))]
        here = [[int(id) for id in one.ids[0]] for one in found]
        share = float(np.mean([one.visited for one in found]))
        facts = {"FAISS IVF": (recall(lists, truth), seen)}
        facts |= dict.fromkeys(("search", "index"), (recall(here, truth), share))
        if graph is not None:
            graph.hnsw.efSearch = 4 * probe + K
            systems["HNSW"] = lambda row: graph.search(queries[row : row + 1], K)
            faiss.cvar.hnsw_stats.reset()
            near = [systems["HNSW"](row)[1][0].tolist() for row in range(len(queries))]
            facts["HNSW"] = (recall(near, truth), faiss.cvar.hnsw_stats.ndis / len(queries) / graph.ntotal)
        effort = {"HNSW": f"efSearch {4 * probe + K}"}
        return [
            f"| {name}, {effort.get(name, f'{probe} lists')} | {facts[name][0]:.3f} | {facts[name][1]:.4f} | "
            f"{least:,.0f} | {median:,.0f} |"
            for name, least, median in timed(systems, len(queries))
        ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000])
    parser.add_argument("--lists", type=int, help="by default 2√N")
    parser.add_argument("--probes", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("paths_speed.md"))
    args = parser.parse_args(argv)
    parts = [
        measure(count, args.lists or round(2 * count**0.5), args.probes, args.threads)
        for count in args.documents
    ]
    print(text := "\n\n".join(parts))
    kept = args.out.read_text("utf-8").partition(MARK)[0] if args.out.exists() else HEAD
    args.out.write_text(f"{kept}{MARK}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
