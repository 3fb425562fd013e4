"""Search beside FAISS: milliseconds a question, bytes, quality, and what the machine allows.

    PALMETTE_DATA=FOLDER python benchmarks/speed.py medquad --out benchmarks/results/speed.md

FOLDER holds the collection as a BEIR folder and its vectors as ``encodings/NAME.npz`` (``docs`` in the order of
``ids``, ``queries_SPLIT`` in that of ``ids_SPLIT``). Few collections have 100,000 documents, so it is grown: vectors
are drawn again and again, moved by a share of the difference of two others (which keeps the spectrum), renormalised.

Every way to search is timed in turns, the least of several turns counts; one thread by its processor time, which busy
neighbours do not stretch, all threads by the clock. FAISS multiplies matrices from a number of questions on
(``distance_compute_blas_threshold``): each batch has the better of its default and of 20.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch

from common import Ready, command_line, graph, inverted_lists, parse_with_data, shared
from palmette import SpaceModel, load_data
from palmette.arrays import evenly_spaced
from palmette.data.metrics import score_run
from palmette.search import set_threads
from palmette.search.codes import Codes, integer_products
from palmette.search.flat import ExactEngine, as_block, top_k
from recording import Line, append, find, read, table, write_part

K, BATCHES, SINGLES = 10, (1, 8, 64, 512), 16
AMOUNT = 0.6
"""How far grown documents are moved."""
RECALL, GRAPHS = 0.95, 100_000
"""Lists and graphs look at as much as this recall takes; largest size to build them for."""
THREADS = [*dict.fromkeys([1, os.cpu_count() or 1])]
_PART, _DEFAULT = 10_000, faiss.cvar.distance_compute_blas_threshold

Ask = Callable[[np.ndarray], np.ndarray]
"""Rows of the best documents of each question: [Q, K]."""


class Way(NamedTuple):
    """A way to search, the vectors of its questions, the bytes of a document, and seconds to build it."""

    label: str
    ask: Ask
    queries: np.ndarray
    bytes: float
    build: float
    thresholds: tuple[int, ...] = (_DEFAULT,)


class Collection:
    """A data set, its vectors, and models trained on it."""

    def __init__(self, folder: Path, name: str) -> None:
        made = np.load(folder / "encodings" / f"{name}.npz")
        self.data = load_data(folder / name)
        ids = {key: at for at, key in enumerate(made["ids"].tolist())}
        self.docs = made["docs"][[ids[d.key] for d in self.data.corpus]].astype(np.float32)
        found = {d.content: v for d, v in zip(self.data.corpus, self.docs, strict=True)}
        for split in ("train", "dev", "test"):
            vectors = made[f"queries_{split}"].astype(np.float32)
            for key, vector in zip(made[f"ids_{split}"].tolist(), vectors, strict=True):
                found[self.data.queries[key]] = vector
        judged = self.data.qrels["test"]
        self.asked = [key for key in made["ids_test"].tolist() if key in judged]
        self.asked = [self.asked[at] for at in evenly_spaced(len(self.asked), BATCHES[-1])]
        self.queries = np.stack([found[self.data.queries[key]] for key in self.asked])
        with tempfile.TemporaryDirectory() as cache:
            encoder = Ready(self.docs.shape[1], found)
            self.space = SpaceModel.fit(self.data, encoder=encoder, cache=cache, progress=False)

    def ndcg(self, ask: Ask, queries: np.ndarray) -> float:
        """nDCG@10 of a search of the collection itself."""
        keys = [d.key for d in self.data.corpus]
        found = zip(self.asked, ask(queries).tolist(), strict=True)
        run = {query: [keys[row] for row in rows if row >= 0] for query, rows in found}
        qrels = {query: self.data.qrels["test"][query] for query in self.asked}
        return score_run(run, qrels, ks=(K,))[f"ndcg@{K}"]


def grown(vectors: np.ndarray, count: int) -> np.ndarray:
    """The given vectors, then more like them."""
    draw, made = np.random.default_rng(0), np.empty((count, vectors.shape[1]), np.float32)
    for start in range(0, count, _PART):
        some = min(_PART, count - start)
        a, b, c = draw.integers(0, len(vectors), (3, some))
        moved = vectors[a] + AMOUNT * (vectors[b] - vectors[c])
        made[start : start + some] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    real = min(len(vectors), count)
    made[:real] = vectors[:real]
    return made


def ours(label: str, rows: np.ndarray, queries: np.ndarray) -> Way:
    """The engine of an index over stored rows."""
    begun = time.process_time()
    block = as_block(rows, np.arange(len(rows)), 1)
    extra = sum(part.nbytes for part in block.memo("codes", lambda: Codes.encode(block.data))) / len(rows)

    def ask(some: np.ndarray) -> np.ndarray:
        return top_k([(block, None)], some, "inner_product", K, ExactEngine()).keys

    ask(queries[:1])
    return Way(label, ask, queries, block.data[0].nbytes + extra, time.process_time() - begun)


def theirs(label: str, make: Callable[[], Any], queries: np.ndarray, size: float) -> tuple[Any, Way]:
    """An index of FAISS."""
    begun, index = time.process_time(), make()
    return index, Way(label, lambda some: index.search(some, K)[1], queries, size, time.process_time() - begun)


def tuned(way: Way, index: Any, name: str, exact: np.ndarray) -> Way:
    """The least effort that has the recall."""
    for effort in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        setattr(index, name, effort)
        if shared(way.ask(way.queries), exact) >= RECALL:
            break
    return way._replace(label=f"{way.label}, {name} {effort}")


def ways(of: Collection, count: int, graphs: bool) -> Iterator[Way]:
    """Every way to search ``count`` documents; the first is exact search by the encoder's own float32 vectors."""
    data, queries, width = grown(of.docs, count), of.queries, of.docs.shape[1]
    inner, kinds = faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer

    def filled(index: Any) -> Any:
        index.train(data)
        index.add(data)
        return index

    _, flat = theirs("FAISS flat float32", lambda: filled(faiss.IndexFlatIP(width)), queries, width * 4)
    yield flat._replace(thresholds=(_DEFAULT, 20))
    for label, kind, size in (("float16", kinds.QT_fp16, 2), ("int8 (SQ8)", kinds.QT_8bit, 1)):
        make = partial(faiss.IndexScalarQuantizer, width, kind, inner)
        yield theirs(f"FAISS flat {label}", lambda make=make: filled(make()), queries, width * size)[1]
    if graphs:
        exact, lists = flat.ask(queries), round(4 * count**0.5)
        index, way = theirs("FAISS IVF float32", lambda: inverted_lists(data, lists), queries, width * 4 + 8)
        yield tuned(way, index, "nprobe", exact)
        index, way = theirs("FAISS HNSW32", lambda: graph(data), queries, width * 4 + 260)
        yield tuned(way, index.hnsw, "efSearch", exact)
    yield ours("palmette, the encoder's vectors", data.astype(np.float16), queries)
    mapped, asked = of.space.encoder.map(data, "document"), of.space.encoder.map(queries, "query")
    yield ours("palmette, the learned space", mapped.astype(np.float16), asked)


def timed(all_ways: Sequence[Way], threads: int, seconds: float) -> list[list[float]]:
    """Milliseconds a question of every way and batch: the ways in turns, the least of the turns."""
    set_threads(threads)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    least = np.full((len(all_ways), len(BATCHES), SINGLES), np.inf)
    for at, batch in enumerate(BATCHES):
        begun, turn = time.perf_counter(), 0
        while turn < 3 or (time.perf_counter() - begun < seconds and turn < 40):
            for way, best in zip(all_ways, least[:, at], strict=True):
                for threshold in way.thresholds:
                    faiss.cvar.distance_compute_blas_threshold = threshold
                    for one in range(SINGLES if batch == 1 else 1):
                        some = way.queries[one * batch : (one + 1) * batch]
                        started = clock()
                        way.ask(some)
                        best[one] = min(best[one], (clock() - started) / len(some) * 1e3)
            turn += 1
    faiss.cvar.distance_compute_blas_threshold = _DEFAULT
    return [[round(float(np.median(best[np.isfinite(best)])), 3) for best in way] for way in least]


def limits(threads: int) -> Line:
    """Bytes a second from memory, and multiply-adds a second in float32 and in int8, of one thread or more."""
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter

    def least(work: Callable[[], Any]) -> float:
        spent = []
        for _ in range(12):
            begun = clock()
            work()
            spent.append(clock() - begun)
        return min(spent)

    big, some = torch.ones(1 << 26), torch.ones((1024, 1024))
    codes = np.ones((1024, 1024), np.int8)
    return {
        "bandwidth": big.nbytes / least(big.sum),
        "float32": 1024**3 / least(lambda: some @ some),
        "int8": 1024**3 / least(lambda: integer_products(codes, codes)),
    }


def measure(of: Collection, count: int, seconds: float) -> Iterator[Line]:
    """A line of the store for each way, and one of the machine."""
    small = {way.label: of.ndcg(way.ask, way.queries) for way in ways(of, len(of.docs), False)}
    all_ways = list(ways(of, count, count <= GRAPHS))
    exact = all_ways[0].ask(all_ways[0].queries)
    times = {str(some): timed(all_ways, some, seconds) for some in THREADS}
    for at, way in enumerate(all_ways):
        yield {
            "part": "search",
            "documents": count,
            "search": way.label,
            "bytes": round(way.bytes),
            "build": round(way.build, 1),
            "ndcg": small.get(way.label),
            "recall": None if "learned" in way.label else shared(way.ask(way.queries), exact),
            "ms": {some: of_way[at] for some, of_way in times.items()},
        }
    for some in THREADS:
        yield {"part": "limits", "documents": count, "threads": some, **limits(some)}


def report(lines: Sequence[Line]) -> str:
    """The table, and the limits under it."""
    head = ["documents", "search", *map(str, BATCHES)]
    head += [f"{batch}, {some} threads" for some in THREADS[1:] for batch in (BATCHES[0], BATCHES[-1])]
    head += ["bytes", "build, s", "nDCG@10", "recall"]
    rows, least = [], []
    for x in lines:
        documents = f"{x['documents']:,}"
        if x["part"] == "search":
            first, *others = x["ms"].values()
            times = [f"{ms:.2f}" for ms in (*first, *(some[place] for some in others for place in (0, -1)))]
            quality = ["" if x[key] is None else f"{x[key]:.3f}" for key in ("ndcg", "recall")]
            rows.append([documents, x["search"], *times, str(x["bytes"]), str(x["build"]), *quality])
        if x["part"] == "limits":
            for kind, width in (("float32", 4), ("int8", 1)):
                numbers = x["documents"] * 384
                spent = (numbers * width / x["bandwidth"], numbers / x[kind])
                least.append([documents, kind, str(x["threads"]), *(f"{1e3 * one:.2f}" for one in spent)])
    limit = table(["documents", "384 columns in", "threads", "read once, ms", "multiplied once, ms"], least)
    return f"{table(head, rows)}\n\n{limit}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every size."""
    parser = command_line(__doc__, "speed.md")
    parser.add_argument("collection")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000])
    parser.add_argument("--seconds", type=float, default=15, help="for each batch size and number of threads")
    args = parse_with_data(parser, argv)
    store, collection = args.out.with_suffix(".jsonl"), None
    for size in args.sizes:
        if not find(store, part="limits", documents=size):
            collection = collection or Collection(args.data, args.collection)
            for line in list(measure(collection, size, args.seconds)):
                print(append(store, line), flush=True)
    write_part(args.out, "search", report(read(store)))


if __name__ == "__main__":
    main()
