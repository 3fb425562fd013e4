"""Wall clock of the learned index beside FAISS IVF with as many lists, and HNSW, on simulated vectors, in one process.

    python tests/benchmarks/paths_speed.py --documents 100000 --out tests/benchmarks/results/speed.md

The leaves are IVF's own lists, so that both visit the same documents and find the same: what is compared is the
search. All begin with the query's vector in the searched space and end with numbers of documents and scores; the leaves
are found by the indexer's whole network. ``Index.rank`` begins with the encoder's embedding, and looks the ids up. Each
index answers the same queries in turn, so that load on the machine falls on all alike. Times are the least and the
median of each query's repetitions, averaged over queries; read ratios. What is built is kept in ``--folder``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from recording import Line, append, find, read, table, write_part

from palmette import Document, FakeEncoder, Index, PathsModel
from palmette.methods.paths.config import SHARPNESS, PathsConfig
from palmette.methods.paths.module import Paths
from palmette.store.local import LocalBackend
from palmette.threads import set_threads

Floats = NDArray[np.float32]

WIDTH, SPREAD = 384, 1.0
QUERIES, REPEATS, K = 50, 5, 10
PIECE, SAMPLE = 20_000, 40_000


def simulated(count: int, file: Path) -> tuple[Floats, Floats]:
    """Clustered unit vectors [N, m], written to a file, and queries [Q, m] near some of them."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(max(2, count // 50), WIDTH)).astype(np.float32)
    x = np.lib.format.open_memmap(file, "w+", np.float32, (count, WIDTH))
    for start in range(0, count, PIECE):
        some = centres[draw.integers(0, len(centres), min(PIECE, count - start))]
        some += SPREAD * draw.normal(size=some.shape).astype(np.float32)
        x[start : start + PIECE] = some / np.linalg.norm(some, axis=1, keepdims=True)
    queries = x[draw.integers(0, count, QUERIES)] + 0.05 * draw.normal(size=(QUERIES, WIDTH))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return x, queries.astype(np.float32)


def learned(centres: Floats) -> PathsModel:
    """A model whose leaves are given lists: a document goes to the centre with the largest inner product."""
    config = PathsConfig(branches=len(centres), centroid_weight=0.0).replace(width=WIDTH)
    module = Paths(config).requires_grad_(False)
    module.indexer.outer[0].copy_(torch.from_numpy(centres.T * SHARPNESS))
    module.indexer.inner[0].zero_()
    return PathsModel(config, FakeEncoder(WIDTH), module)


class Built:
    """Everything to be searched, and how long it took to build: each part once, in a folder."""

    def __init__(self, folder: Path, count: int, lists: int, graph: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.noted, self.facts = folder, folder / "facts.json", {}
        if self.noted.exists():
            self.facts = json.loads(self.noted.read_text())
        self._part("vectors", lambda: self._vectors(count))
        self.x = np.load(folder / "x.npy", mmap_mode="r")
        self.queries, self.truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
        self._part("IVF", lambda: self._lists(lists))
        self.lists = faiss.read_index(str(folder / "ivf.faiss"))
        self.graph = None
        if graph:
            self._part("HNSW", self._graph)
            self.graph = faiss.read_index(str(folder / "hnsw.faiss"))
        self.model = learned(self.lists.quantizer.reconstruct_n(0, lists))
        self._part("index", self._index)
        self.index = Index(self.model, LocalBackend.open(folder / "index", verify=False))

    def _part(self, name: str, make: Callable[[], dict[str, float]]) -> None:
        if name not in self.facts:
            self.facts[name] = make()
            self.noted.write_text(json.dumps(self.facts))

    def _vectors(self, count: int) -> dict[str, float]:
        x, queries = simulated(count, self.folder / "x.npy")
        scores = np.concatenate([x[at : at + PIECE] @ queries.T for at in range(0, count, PIECE)])
        np.save(self.folder / "queries.npy", queries)
        np.save(self.folder / "truth.npy", np.argsort(-scores, axis=0)[:K].T)
        return {}

    def _lists(self, lists: int) -> dict[str, float]:
        ivf = faiss.IndexIVFFlat(faiss.IndexFlatIP(WIDTH), WIDTH, lists, faiss.METRIC_INNER_PRODUCT)
        ivf.train(np.ascontiguousarray(self.x[:: max(1, len(self.x) // SAMPLE)]))
        return self._added(ivf, "ivf.faiss")

    def _graph(self) -> dict[str, float]:
        return self._added(faiss.IndexHNSWFlat(WIDTH, 32, faiss.METRIC_INNER_PRODUCT), "hnsw.faiss")

    def _added(self, made: Any, file: str) -> dict[str, float]:
        begun, count = time.perf_counter(), len(self.x)
        for at in range(0, count, PIECE):
            made.add(np.ascontiguousarray(self.x[at : at + PIECE]))
        rate = count / (time.perf_counter() - begun)
        faiss.write_index(made, str(self.folder / file))
        return {"a second": rate, "bytes": (self.folder / file).stat().st_size / count}

    def _index(self) -> dict[str, float]:
        shutil.rmtree(self.folder / "index", ignore_errors=True)
        backend = LocalBackend.create(self.folder / "index", self.model.arrays(), fingerprint="")
        begun, routing, count = time.perf_counter(), 0.0, len(self.x)
        with backend.write() as writer:
            for at in range(0, count, PIECE):
                now = time.perf_counter()
                arrays = self.model.encode_documents([], np.array(self.x[at : at + PIECE]))
                routing += time.perf_counter() - now
                writer.put([Document(str(row), "x") for row in range(at, min(at + PIECE, count))], arrays)
        rate = count / (time.perf_counter() - begun)
        return {"a second": rate, "routed": count / routing, "bytes": backend.stats().bytes / count}


def timed(
    systems: dict[str, Callable[[slice], Any]], queries: int
) -> Iterator[tuple[str, float, float, float]]:
    """Microseconds per query: the least of each one's repetitions and their median, averaged; and asked together."""
    times = {name: np.zeros((queries, REPEATS)) for name in systems}
    together = {name: np.zeros(REPEATS) for name in systems}
    for ask in systems.values():
        ask(slice(0, 1))
    for repeat in range(REPEATS):
        for row in range(queries):
            for name, ask in systems.items():
                begun = time.perf_counter()
                ask(slice(row, row + 1))
                times[name][row, repeat] = time.perf_counter() - begun
        for name, ask in systems.items():
            begun = time.perf_counter()
            ask(slice(0, queries))
            together[name][repeat] = (time.perf_counter() - begun) / queries
    for name, taken in times.items():
        least, median = taken.min(axis=1).mean(), np.median(taken, axis=1).mean()
        yield name, 1e6 * least, 1e6 * median, 1e6 * together[name].min()


def recall(found: Any, truth: Any) -> float:
    """Share of the true neighbours found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)]))


def measure(built: Built, probes: Sequence[int], threads: int) -> Iterator[Line]:
    """A line of the store for each number of lists."""
    set_threads(threads)
    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    for probe in probes:
        yield {
            "part": "paths",
            "documents": len(built.x),
            "lists": built.lists.nlist,
            "threads": threads,
            "probe": probe,
            "systems": _systems(built, probe),
            "built": built.facts,
        }


def report(lines: Sequence[Line]) -> str:
    """The table of one thread."""
    rows = []
    for x in lines:
        if x["part"] == "paths" and x["threads"] == 1:
            found = x["systems"]
            graph = found.get("HNSW")
            rows.append(
                [
                    f"{x['documents']:,}, {x['lists']:,}",
                    f"{100 * found['FAISS IVF']['visited']:.3g} %",
                    f"{found['PathsModel']['recall']:.3f}",
                    *(f"{found[name]['least']:,.0f}" for name in ("PathsModel", "FAISS IVF", "Index.rank")),
                    f"{graph['recall']:.3f}, {graph['least']:,.0f}" if graph else "",
                ]
            )
    head = ["vectors, lists", "visited", "recall@10", "PathsModel, µs", "FAISS IVF", "Index.rank"]
    return table([*head, "HNSW: recall, µs"], rows)


def _systems(built: Built, probe: int) -> dict[str, dict[str, float]]:
    model, index, rival, graph, queries = built.model, built.index, built.lists, built.graph, built.queries
    options = model.search_options({"beam": probe})
    with index.backend.read() as view:
        keys = view.keys()

        def ours(rows: slice) -> Any:
            return model.search(view, {"vector": queries[rows]}, K, options).keys

        def whole(rows: slice) -> Any:
            return index.rank(queries[rows], k=K, beam=probe, lexical=0, sentences=False)

        def theirs(rows: slice) -> Any:
            return rival.search(queries[rows], K)[1]

        def graphs(rows: slice) -> Any:
            return graph.search(queries[rows], K)[1]

        rival.nprobe = probe
        systems: dict[str, Callable[[slice], Any]] = {
            "PathsModel": ours,
            "FAISS IVF": theirs,
            "Index.rank": whole,
        }
        every = slice(0, len(queries))
        faiss.cvar.indexIVF_stats.reset()
        found = {name: ask(every) for name, ask in systems.items()}
        seen = faiss.cvar.indexIVF_stats.ndis / len(queries) / rival.ntotal
        found["PathsModel"] = np.searchsorted(keys, found["PathsModel"])
        ranked = found["Index.rank"]
        found["Index.rank"] = [[int(id) for id in ids] for ids in ranked.ids]
        visited = dict.fromkeys(systems, ranked.visited) | {"FAISS IVF": seen}
        if graph is not None:
            name = "HNSW"
            graph.hnsw.efSearch, systems[name] = 4 * probe + K, graphs
            faiss.cvar.hnsw_stats.reset()
            found[name] = graphs(every)
            visited[name] = faiss.cvar.hnsw_stats.ndis / len(queries) / graph.ntotal
        return {
            name: {
                "recall": recall(found[name], built.truth),
                "visited": float(visited[name]),
                "least": least,
                "median": median,
                "together": together,
            }
            for name, least, median, together in timed(systems, len(queries))
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000])
    parser.add_argument("--lists", type=int, help="by default 2√N")
    parser.add_argument("--probes", type=int, nargs="+", default=[2, 8, 40])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--folder", type=Path, default=Path("paths_speed"), help="where what is built is kept"
    )
    parser.add_argument("--graph", type=int, default=200_000, help="documents up to which a graph is built")
    parser.add_argument("--out", type=Path, default=Path("speed.md"), help="the page; lines lie beside it")
    args = parser.parse_args(argv)
    store = args.out.with_suffix(".jsonl")
    for count in args.documents:
        lists = args.lists or round(2 * count**0.5)
        key = {"part": "paths", "documents": count, "lists": lists}
        wanted = {
            t: [p for p in args.probes if not find(store, **key, threads=t, probe=p)] for t in args.threads
        }
        if not any(wanted.values()):
            continue
        faiss.omp_set_num_threads(1)
        built = Built(args.folder / f"{count}-{lists}", count, lists, count <= args.graph)
        for threads, probes in wanted.items():
            for line in measure(built, probes, threads):
                print(append(store, line), flush=True)
    write_part(args.out, "paths", report(read(store)))


if __name__ == "__main__":
    main()
