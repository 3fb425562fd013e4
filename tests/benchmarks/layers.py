"""Per-layer retrieval measured: answers found by budget, flat and compressed; what each layer adds; early exit; speed.

    python tests/benchmarks/layers.py quality SQUAD --encoder packaged:all-MiniLM-L6-v2 --seeds 0 1 2 --out FILE.jsonl
    python tests/benchmarks/layers.py tables FILE.jsonl
    python tests/benchmarks/layers.py speed --encoder packaged:all-MiniLM-L6-v2

SQUAD is a BEIR folder whose queries.jsonl.gz holds ``answers``. ``quality`` adds a line for each seed and system to
FILE and passes over what is there; ``tables`` prints means over the seeds. A seed is that of training and of FAISS's
clusters. Budgets are total: of ``k`` documents each of L layers has k / L. Inverted lists are searched as FAISS does:
a query gets what lies in the lists it looks through, and no more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from palmette import FakeEncoder, Index, LayersModel, TreeModel, load_data, load_encoder
from palmette.answers import normalise
from palmette.baselines import BM25
from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.methods.layers.config import LayersConfig, LayersSearch
from palmette.methods.layers.metrics import CriticalWords, support
from palmette.methods.layers.module import LayerQueries
from palmette.methods.layers.searching import LAYERS, VECTOR, search
from palmette.record import Record
from palmette.search.engine import engine_named
from palmette.search.probe import Found, Probe
from palmette.store.local import LocalBackend
from palmette.types import Document

BUDGETS = (6, 12, 30, 60, 120, 240)
NLIST = 128
INDEXES = {
    "flat": {},
    **{f"ivf, {p} of {NLIST} lists": {"nprobe": p} for p in (1, 2, 4, 8, 16)},
    f"ivf, 4 of {NLIST} lists, 16 bytes": {"nprobe": 4, "pq": 16},
}
SUBSETS = ((6,), (1, 6), (1, 3, 6), (2, 4, 6), (1, 2, 5, 6), (1, 2, 3, 4, 5, 6))
"""Table 4, for six layers."""


class FaissView:
    """A FAISS index as a method sees it: what the lists do not hold is not found."""

    def __init__(self, vectors: np.ndarray, index: Any) -> None:
        self.vectors, self.index = vectors, index

    def __len__(self) -> int:
        return len(self.vectors)

    def nearest(self, probe: Probe, k: int) -> Found:
        scores, keys = self.index.search(np.ascontiguousarray(probe.queries), k)
        return Found(keys, scores, approximate=True)

    def array(self, name: str, keys: Sequence[int]) -> np.ndarray:
        return self.vectors[np.asarray(keys, np.int64)]


def built(vectors: np.ndarray, seed: int, nprobe: int = 0, pq: int = 0) -> FaissView:
    """A flat index, or one of inverted lists."""
    width, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if not nprobe:
        index = faiss.IndexFlatIP(width)
    else:
        centroids = faiss.IndexFlatIP(width)
        index = (
            faiss.IndexIVFPQ(centroids, width, NLIST, pq, 8, metric)
            if pq
            else faiss.IndexIVFFlat(centroids, width, NLIST, metric)
        )
        index.nprobe, index.cp.seed, index.cp.min_points_per_centroid = nprobe, 1234 + seed, 1
        if pq:
            index.pq.cp.min_points_per_centroid = 1
        index.train(vectors)
    index.add(vectors)
    return FaissView(vectors, index)


@dataclass
class Questions:
    """The judged questions of a split, and which documents hold an answer [Q, N]."""

    texts: list[str]
    gold: np.ndarray
    holds: np.ndarray

    @classmethod
    def read(cls, folder: Path, data: RetrievalData, split: str) -> Questions:
        ids = list(data.qrels[split])
        answers: dict[str, list[str]] = {}
        with gzip.open(folder / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                answers[record["_id"]] = [given["text"] for given in record["answers"]]
        padded = [f" {normalise(document.content)} " for document in data.corpus]
        holds = np.zeros((len(ids), len(padded)), bool)
        for row, id in enumerate(ids):
            said = {f" {text} " for text in map(normalise, answers[id]) if text}
            holds[row] = [any(text in document for text in said) for document in padded]
        gold = np.array([data.rows[next(iter(data.qrels[split][id]))] for id in ids])
        return cls([data.queries[id] for id in ids], gold, holds)

    def found(self, keys: np.ndarray) -> np.ndarray:
        """[Q, k] whether each document found holds an answer."""
        return np.take_along_axis(self.holds, np.maximum(keys, 0), 1) & (keys >= 0)

    def accuracy(self, keys: np.ndarray) -> float:
        return 100 * float(self.found(keys).any(axis=1).mean())

    def ndcg(self, keys: np.ndarray) -> float:
        hit = keys[:, :10] == self.gold[:, None]
        return float((hit / np.log2(np.arange(hit.shape[1]) + 2)).sum(axis=1).mean())


def untrained(encoder: Encoder, model: LayersModel) -> LayersModel:
    """The last layer alone as it begins: the encoder's own query."""
    config = model.config.replace(layers=(model.config.last,))
    return LayersModel(config, encoder, LayerQueries(config), record=Record())


def measured(
    model: LayersModel, view: FaissView, asked: dict[str, np.ndarray], questions: Questions, **options: Any
) -> Iterator[dict[str, Any]]:
    """Accuracy at each budget; the lists are searched by the method's own code."""
    chosen = LayersSearch(**options)
    layers = model.layers_of(chosen)
    places = [model.config.asking.index(layer) for layer in layers]
    queries = asked[LAYERS][:, places]
    fused = model.module.fused(torch.from_numpy(queries), layers).numpy()
    for k in BUDGETS:
        if chosen.order != "fused" and k % len(layers):
            continue
        found = search(view, queries, fused, layers, k, chosen)  # type: ignore[arg-type]
        yield {"k": k, "keys": found.keys, "layer": found.evidence["layer"]}


Run = tuple[str, LayersModel, dict[str, np.ndarray], dict[str, Any]]
"""A system's name, its model, its queries, its options."""


def systems_of(data: RetrievalData, encoder: Encoder, texts: list[str], seed: int) -> list[Run]:
    """All layers and parts of them, the encoder, and one head trained in the same way."""
    model = LayersModel.fit(data, encoder=encoder, seed=seed)
    print(f"seed {seed}: trained, {dict(model.record.metrics)}", flush=True)
    head = LayersModel.fit(data, encoder=encoder, seed=seed, layers=(encoder.num_layers,))
    asked, alone = (one.encode_queries(texts, one.options({})) for one in (model, head))
    own = {LAYERS: encoder.encode(texts, kind="query")[:, None]}
    parts: list[tuple[str, dict[str, Any]]] = [
        ("all layers", {"order": "layer"}),
        ("all layers, fused", {}),
        ("all layers, interleaved", {"order": "interleave"}),
        *((f"layer {n} alone", {"order": "layer", "layers": (n,)}) for n in model.config.asking),
        *((f"layers {list(some)}", {"order": "layer", "layers": some}) for some in SUBSETS[1:-1]),
        *((f"first {m} layers, fused", {"layers": tuple(range(1, m + 1))}) for m in model.config.asking),
    ]
    return [
        ("encoder", untrained(encoder, model), own, {"order": "layer"}),
        ("one trained head", head, alone, {"order": "layer"}),
        *((name, model, asked, options) for name, options in parts),
    ]


def scored(name: str, found: dict[str, Any], questions: Questions, words: CriticalWords) -> dict[str, Any]:
    """What is written of one search of all questions."""
    keys, k = found["keys"], found["k"]
    holds = questions.found(keys)
    row = {"index": name, "k": k, "accuracy": questions.accuracy(keys), "held": float(holds.sum(1).mean())}
    row["found"] = float((keys >= 0).sum(1).mean())
    if k == 12:
        row["ndcg"] = questions.ndcg(keys)
    if k == 120:
        row |= words.measure(questions.texts, [ids[ids >= 0].tolist() for ids in keys])
        row["support"] = support(holds, found["layer"])
    return row


def quality(args: argparse.Namespace) -> None:
    """Every system at every budget on every index."""
    folder = Path(args.data)
    data, encoder = load_data(folder, titles=False), load_encoder(args.encoder)
    questions = Questions.read(folder, data, args.split)
    texts = [document.content for document in data.corpus]
    words, vectors = CriticalWords(texts), encoder.encode(texts, progress=None)
    done = {(r["seed"], r["system"]) for r in lines_of(args.out)} if args.out.exists() else set()

    def write(seed: int, system: str, rows: list[dict[str, Any]]) -> None:
        with args.out.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({"split": args.split, "seed": seed, "system": system, **row}) + "\n")
        print(f"seed {seed}: {system}", flush=True)

    for seed in args.seeds:
        if args.rivals:
            for system, ranked in rivals(data, encoder, questions, seed, done):
                found = [
                    {"index": "flat", "k": k, "accuracy": questions.accuracy(ranked[:, :k])} for k in BUDGETS
                ]
                write(seed, system, found)
        if (seed, "all layers") in done:
            continue
        views = {name: built(vectors, seed, **options) for name, options in INDEXES.items()}
        for system, model, asked, options in systems_of(data, encoder, questions.texts, seed):
            found = [
                scored(name, one, questions, words)
                for name, view in views.items()
                for one in measured(model, view, asked, questions, **options)
            ]
            write(seed, system, found)


def rivals(
    data: RetrievalData, encoder: Encoder, questions: Questions, seed: int, done: set[tuple[int, str]]
) -> Iterator[tuple[str, np.ndarray]]:
    """BM25 and a tree with the defaults, at equal budget."""
    place = {document.key: row for row, document in enumerate(data.corpus)}

    def rows(ids: list[list[str]]) -> np.ndarray:
        return np.array([[place[id] for id in row] + [-1] * (max(BUDGETS) - len(row)) for row in ids])

    if seed == 0 and (0, "BM25") not in done:
        yield "BM25", rows(BM25(data.corpus).search(questions.texts, max(BUDGETS)).ids)
    if (seed, "tree") in done:
        return
    tree = TreeModel.fit(data, encoder=encoder, seed=seed)
    yield "tree", rows(Index.build(data.corpus, tree).rank(questions.texts, max(BUDGETS), lexical=0).ids)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def few(seeds: int, most: int) -> str:
    """What a row of fewer seeds than others says."""
    return "" if seeds == most else f" ({seeds} seed{'s' * (seeds > 1)})"


def tables(args: argparse.Namespace) -> None:
    """Means over the seeds, as Markdown."""
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in lines_of(args.file):
        grouped[row["index"], row["system"], row["k"]].append(row)

    def mean(key: tuple[str, str, int], name: str) -> float:
        return float(np.mean([row[name] for row in grouped[key] if name in row]))

    systems = list(dict.fromkeys(system for _, system, _ in grouped))
    most = max(map(len, grouped.values()))
    for name in INDEXES:
        print(f"\n### {name}\n\n| system | " + " | ".join(f"@{k}" for k in BUDGETS) + " |")
        print("|---|" + "---|" * len(BUDGETS))
        for system in systems:
            cells = [
                f"{mean((name, system, k), 'accuracy'):.1f}" if (name, system, k) in grouped else ""
                for k in BUDGETS
            ]
            seeds = max(
                (len(grouped[name, system, k]) for k in BUDGETS if (name, system, k) in grouped), default=0
            )
            if seeds:
                print(f"| {system}{few(seeds, most)} | " + " | ".join(cells) + " |")
    print("\n### Critical words and answers among 120 documents, and nDCG@10\n")
    print(
        "| index | system | with an answer | with the critical word | questions with any | words covered | nDCG@10 |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in INDEXES:
        for system in systems[:5]:
            key, short = (name, system, 120), (name, system, 12)
            if "occurrence" in grouped[key][0]:
                counts = f"{mean(key, 'held'):.2f} | {mean(key, 'occurrence'):.2f}"
                shares = f"{100 * mean(key, 'critical'):.1f} % | {100 * mean(key, 'coverage'):.1f} %"
                print(f"| {name} | {system} | {counts} | {shares} | {mean(short, 'ndcg'):.4f} |")
    print("\n### Support: documents with an answer that each layer adds, 120 in all\n")
    for name in INDEXES:
        rows = [row["support"] for row in grouped[name, "all layers", 120]]
        layers = sorted({layer for row in rows for layer in row}, key=int)
        print(
            f"| {name} | "
            + " | ".join(f"{np.mean([row.get(n, 0) for row in rows]):.2f}" for n in layers)
            + " |"
        )


def fastest(run: Any, times: int = 15) -> float:
    """Milliseconds of the fastest run."""
    best = np.inf
    for _ in range(times):
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
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


def speed(args: argparse.Namespace) -> None:
    """One search for all layers beside FAISS with as many independent queries; queries by early exit."""
    draw = np.random.default_rng(0)
    width, layers = 384, 6
    vectors = draw.standard_normal((args.documents, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = vectors[:1, None] + 0.3 * draw.standard_normal((1, layers, width)).astype(np.float32) / width**0.5
    queries = near.astype(np.float32)
    fused = queries.mean(1)
    print(
        f"{args.documents:,} random vectors of {width} numbers, {layers} layers, one question, fastest of 15, ms\n"
    )
    print("| engine | k | FAISS, 6 queries of k | all layers, `layer` | ratio | `fused` | ratio |")
    print("|---|---|---|---|---|---|---|")
    config = LayersConfig(states=width, vector=width, last=layers)
    specs = LayersModel(config, FakeEncoder(width), LayerQueries(config)).arrays()
    with LocalBackend.in_memory(specs) as store:
        with store.write() as writer:
            for start in range(0, args.documents, 10_000):
                part = vectors[start : start + 10_000]
                writer.put(
                    [Document(id=str(start + n), text=str(n)) for n in range(len(part))], {VECTOR: part}
                )
        for engine in ("exact", "faiss", "ivf:nlist=1024,nprobe=16", "hnsw"):
            store._engine = engine_named(engine)  # the same segments
            rival = independent(engine, vectors)
            with store.read() as view:
                for k in (12, 120):
                    times = [fastest(partial(rival.search, queries[0], k))]
                    for order in ("layer", "fused"):
                        options = LayersSearch(order=order)  # type: ignore[arg-type]
                        times.append(fastest(partial(search, view, queries, fused, range(1, 7), k, options)))
                    print(
                        f"| {engine} | {k} | {times[0]:.2f} | {times[1]:.2f} | {times[1] / times[0]:.2f} | "
                        f"{times[2]:.2f} | {times[2] / times[0]:.2f} |",
                        flush=True,
                    )
    encoder = load_encoder(args.encoder)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("quality")
    one.add_argument("data")
    one.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    one.add_argument("--split", default="test")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--rivals", action="store_true", help="a tree and BM25 too")
    one.set_defaults(run=quality)
    one = commands.add_parser("tables")
    one.add_argument("file", type=Path)
    one.set_defaults(run=tables)
    one = commands.add_parser("speed")
    one.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    one.add_argument("--documents", type=int, default=100_000)
    one.set_defaults(run=speed)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    args.run(args)


if __name__ == "__main__":
    main()
