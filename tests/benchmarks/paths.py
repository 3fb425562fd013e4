"""The learned index beside exact search, FAISS IVF, HNSW and ScaNN: recall by documents visited, over several seeds.

    python tests/benchmarks/paths.py DATA [DATA …] --out tests/benchmarks/results/paths.md

DATA are BEIR folders with train, dev and test judgements. Whatever is chosen is chosen on dev; test is only looked at
here. Every finished system and seed is a line of the ``.jsonl`` beside ``--out``: a run that was broken off goes on.
``--list`` names the systems; ScaNN is measured where ``pip install scann`` has worked. Wall clock is measured by
``paths_speed.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from recording import append, read, table, write_part

from palmette import PathsModel, RetrievalData, load_data, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.methods.paths.training import load_imbalance
from palmette.metrics import Judgements, query_scores

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Measured = dict[str, Any]

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHOWN, SHORT = (0.05, 0.1, 0.2, 0.4, 1.0), (0.1, 0.2, 1.0)
"""Shares of a table's columns, and of those of variants."""
SOME = (0.1, 0.2, 0.4)
KS = (10, 20, 50, 100)

UNTRAINED = {"steps": 1, "learning_rate": 1e-9}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "Losses": {
        "no semantic loss": {"semantic": 0.0},
        "no indexing loss": {"indexing": 0.0},
        "no intra-leaf loss": {"intra_leaf": 0.0},
        "weights of the paper": {"semantic": 0.2, "indexing": 0.8, "intra_leaf": 0.2},
    },
    "Negatives": {"negatives of its leaves": {"negatives": "leaves"}},
    "Balance and order": {
        "random start": {"start": "random", "capacity": 0.0},
        "order of the paper": {"centroid_weight": 0.0},
    },
    "What learns": {
        "random leaves": {**UNTRAINED, "start": "random", "capacity": 0.0, "centroid_weight": 0.0},
        "untrained": UNTRAINED,
        "whole encoder": {"encoder_learns": "all", "evaluate_every": 60},
    },
    "Leaves of a document": {f"{count} leaves each": {"per_document": count} for count in (2, 4)},
    "Branches and heights": {
        f"B = {b}, H = {h}": {"branches": b, "height": h}
        for b, h in ((40, 1), (72, 1), (256, 1), (4, 2), (8, 2), (12, 2), (4, 3), (6, 3))
    },
}
"""What is varied, by name: options of ``PathsModel.fit``, beside even leaves."""
EVEN = "paths, even leaves"
PATHS: dict[str, dict[str, Any]] = {"paths": {}, EVEN: {"capacity": 1.15}}
PATHS |= {f"paths, {n}": PATHS[EVEN] | o for group in VARIANTS.values() for n, o in group.items()}


class Bench:
    """A data set, encoded once."""

    def __init__(self, folder: str, encoder: str, split: str, tokens: int | None) -> None:
        self.data: RetrievalData = load_data(folder)
        self.encoder, self.cache, self.split = (
            load_encoder(encoder, max_length=tokens),
            EncodingCache(),
            split,
        )
        texts = self.data.query_texts
        self.documents = self.cache.encode(
            self.encoder, [d.content for d in self.data.corpus], kind="document"
        )
        self.rows, self.judgements = self.data.judgements(split)
        self.asked = [texts[row] for row in self.rows]
        self.queries = self.cache.encode(self.encoder, self.asked, kind="query")


def curve(queries: Floats, documents: Floats, places: Ints, sizes: Ints, truth: Judgements) -> Measured:
    """Recall [share][k] and the share really visited.

    Args:
        queries: [Q, m].
        documents: [N, m].
        places: [Q, N] how many lists a query visits before that of each document.
        sizes: [L] documents of each list.
        truth: Judgements.
    """
    held = np.cumsum([np.bincount(row, minlength=len(sizes)) for row in places], axis=1)  # [Q, L]
    order = np.argsort(-(queries @ documents.T), axis=1, kind="stable").astype(np.int32)  # [Q, N]
    places = np.take_along_axis(places, order, 1)  # best documents first
    out: Measured = {"crowding": round(load_imbalance(torch.from_numpy(sizes)), 3), "lists": len(sizes)}
    limits = {str(share): (held <= share * len(documents)).sum(axis=1) for share in SHARES}  # [Q] lists
    limits |= {f"lists {share}": np.full(len(queries), round(share * len(sizes))) for share in SOME}
    for name, looked in limits.items():
        found, visited = np.full((len(queries), max(KS)), -1), 0
        for row, limit in enumerate(looked):
            inside = np.flatnonzero(places[row] < max(1, limit))
            best = order[row, inside[: max(KS)]]
            found[row, : len(best)], visited = best, visited + len(inside)
        scored = query_scores(found, truth, ks=KS)
        judged = truth.relevant > 0
        measured = {f"recall@{k}": round(float(scored[f"recall@{k}"][judged].mean()), 4) for k in KS}
        measured["ndcg@10"] = round(float(scored["ndcg@10"][judged].mean()), 4)
        measured["visited"] = round(visited / places.size, 4)
        out[name] = measured
        if name in ("0.1", "0.4", "1.0"):
            out[f"by query {name}"] = [round(float(v), 3) for v in scored["recall@100"][judged]]
    return out


def placed(order: Ints, leaves: Ints) -> Ints:
    """How many lists each query visits before the first one of each document: [Q, L], [N, l] → [Q, N]."""
    rank = np.argsort(order, axis=1)
    places: Ints = np.min([rank[:, own] for own in leaves.T], axis=0)
    return places


def ivf(queries: Floats, documents: Floats, lists: int, seed: int, truth: Judgements) -> Measured:
    """FAISS's inverted file: its k-means, its assignment, its order of lists."""
    width = documents.shape[1]
    quantizer = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(quantizer, width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = 1234 + seed, 25
    index.train(documents)
    leaves, order = quantizer.search(documents, 1)[1], quantizer.search(queries, lists)[1]
    sizes = np.bincount(leaves[:, 0], minlength=lists)
    return curve(queries, documents, placed(order, leaves), sizes, truth)


def scann(queries: Floats, documents: Floats, lists: int, truth: Judgements) -> Measured:
    """ScaNN's tree, every document of the visited leaves compared in full."""
    from scann import scann_ops_pybind as ops  # only where it is installed

    count = len(documents)
    tree = ops.builder(documents, count, "dot_product").tree(lists, lists, training_sample_size=count)
    searcher = tree.score_brute_force().build()
    places = np.full((len(queries), count), lists - 1)
    steps = [*range(1, 17), *range(18, 32, 2), *range(32, lists, 8)]
    for visited in (step for step in reversed(steps) if step < lists):
        for row, query in enumerate(queries):  # it does not say where documents lie: watch them come
            found, _ = searcher.search(query, final_num_neighbors=count, leaves_to_search=visited)
            places[row, found] = visited - 1
    _, sizes = np.unique(places.T, axis=0, return_counts=True)  # those of one leaf come together
    return curve(queries, documents, places, np.pad(sizes, (0, max(0, lists - len(sizes)))), truth)


def hnsw(queries: Floats, documents: Floats, truth: Judgements) -> Measured:
    """FAISS's graph: documents it compares a query with are what it visits."""
    index = faiss.IndexHNSWFlat(documents.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.add(documents)
    out: Measured = {}
    for ef in (100, 200, 400, 800):
        index.hnsw.efSearch = ef
        faiss.cvar.hnsw_stats.reset()
        found = index.search(queries, max(KS))[1]
        scored, judged = query_scores(found, truth, ks=KS), truth.relevant > 0
        row = {f"recall@{k}": round(float(scored[f"recall@{k}"][judged].mean()), 4) for k in KS}
        row["visited"] = round(faiss.cvar.hnsw_stats.ndis / len(queries) / len(documents), 4)
        out[str(ef)] = row
    return out


def measure(bench: Bench, name: str, seed: int, steps: int | None) -> dict[str, Measured]:
    """One system, or, for a trained one, itself and FAISS on the vectors that it has learned."""
    kind, _, lists = name.partition(", ")
    if kind in ("IVF", "ScaNN"):
        given = (bench.queries, bench.documents, int(lists.split()[0]))
        if kind == "IVF":
            return {name: ivf(*given, seed, bench.judgements)}
        return {name: scann(*given, bench.judgements)}
    if kind == "HNSW":
        return {name: hnsw(bench.queries, bench.documents, bench.judgements)}
    begun, extra = time.process_time(), {} if steps is None else {"steps": steps}
    model = PathsModel.fit(
        bench.data,
        encoder=bench.encoder,
        cache=bench.cache,
        seed=seed,
        progress=False,
        **(PATHS[name] | extra),
    )
    seconds = time.process_time() - begun
    learned = model.module.backbone is not None
    arrays = model.encode_documents(bench.data.corpus, None if learned else bench.documents)
    queries = model.encode_queries(bench.asked if learned else bench.queries, None)["vector"]
    documents, count = np.asarray(arrays["vector"]), model.config.leaves
    order = model.router.leaves_in_order(torch.from_numpy(queries).double(), count).leaves.numpy()
    leaves = np.asarray(arrays["leaves"], np.int64)
    sizes = np.bincount(leaves.ravel(), minlength=count)
    measured = curve(queries, documents, placed(order, leaves), sizes, bench.judgements)
    measured |= {"seconds": round(seconds, 1), "loads": [dict(row) for row in model.report.loads]}
    found = {name: measured}
    if name == "paths":
        found["IVF, tuned vectors"] = ivf(queries, documents, count, seed, bench.judgements)
        found["HNSW, tuned vectors"] = hnsw(queries, documents, bench.judgements)
        if find_spec("scann"):
            found["ScaNN, tuned vectors"] = scann(queries, documents, count, bench.judgements)
    return found


def p_value(ours: Ints, theirs: Ints) -> float:
    """Two-sided sign-flip test of paired per-query differences."""
    gain, draw = np.asarray(ours) - np.asarray(theirs), np.random.default_rng(0)
    flips = draw.choice([-1.0, 1.0], size=(20_000, len(gain)))
    return float((np.abs(flips @ gain) >= abs(gain.sum()) - 1e-9).mean())


Runs = dict[str, list[Measured]]


def report(results: Sequence[Measured]) -> str:
    """Everything stored, data set by data set."""
    parts = []
    for data in dict.fromkeys(r["data"] for r in results):
        runs: Runs = {}
        for r in results:
            if r["data"] == data:
                runs.setdefault(r["system"], []).append(r["measured"])
        varied = {name: runs[name] for name in PATHS if name not in ("paths", EVEN) and name in runs}
        plain = {name: own for name, own in runs.items() if name not in varied and "1.0" in own[0]}
        parts += [f"### {data}", _curves(plain, SHOWN), _graphs(runs), _tests(runs)]
        if varied:
            even = {EVEN: runs[EVEN]} if EVEN in runs else {}
            parts += [f"### {data}: variants, even leaves", _curves(even | varied, SHORT)]
    return "\n\n".join(part for part in parts if part)


def _mean(runs: Sequence[Measured], value: Callable[[Measured], float], places: int = 3) -> str:
    values = [value(run) for run in runs]
    spread = f" ± {np.std(values):.{places}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{places}f}{spread}".replace("0.", ".")


def _curves(groups: Runs, shares: Sequence[float]) -> str:
    lines = []
    for name, runs in groups.items():
        cells = [f"{np.mean([r[str(s)]['recall@100'] for r in runs]):.3f}"[1:] for s in shares]
        cells[shares.index(0.1)] = _mean(runs, lambda r: r["0.1"]["recall@100"])
        cells += [f"{np.mean([r['crowding'] for r in runs]):.2f}"]
        lines.append([name, str(len(runs)), *cells])
    heads = [f"{share:.0%}" for share in shares]
    return table(["R@100 at", "seeds", *heads, "crowding"], lines)


def _graphs(runs: Runs) -> str:
    found = []
    for name, own in runs.items():
        if name.startswith("HNSW"):
            recall, compared = (
                float(np.mean([r["100"][key] for r in own])) for key in ("recall@100", "visited")
            )
            found.append(f"{name} {recall:.3f} ({compared:.1%})")
    return f"R@100 at efSearch 100 (documents compared): {', '.join(found)}." if found else ""


def _tests(groups: Runs) -> str:
    """Paths, averaged over seeds, against IVF and exact search, question by question."""
    lists = next((name for name in groups if name.startswith("IVF, ") and name != "IVF, tuned vectors"), None)
    if "paths" not in groups or lists is None:
        return ""

    def mean(name: str, share: float) -> Any:
        return np.mean([run[f"by query {share}"] for run in groups[name]], axis=0)

    exact, lines = mean(lists, 1.0), []
    for what, share, other in (
        (f"{lists} at 10 %", 0.1, mean(lists, 0.1)),
        ("exact search, at 40 % visited", 0.4, exact),
        ("exact search, at 100 % visited", 1.0, exact),
    ):
        ours = mean("paths", share)
        lines.append(
            f"- against {what}: {100 * (ours - other).mean():+.1f} points, p = {p_value(ours, other):.4f}"
        )
    return "R@100 of `paths`, by question (sign-flip test):\n\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--systems", nargs="+", default=["IVF*", "HNSW", "paths"], help="names or patterns")
    parser.add_argument("--lists", type=int, nargs="+", default=[40, 144], help="of IVF and ScaNN")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="other than the default")
    parser.add_argument("--tokens", type=int, help="of a text, where the encoder shall read less")
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--split", default="test", choices=["test", "dev"])
    parser.add_argument("--out", type=Path, default=Path("paths.md"), help="the table; results lie beside it")
    parser.add_argument("--list", action="store_true", help="name the systems")
    args = parser.parse_args(argv)
    trees = [f"{kind}, {lists} lists" for kind in ("IVF", "ScaNN") for lists in args.lists]
    every = [*trees, "HNSW", *PATHS]
    if args.list:
        print("\n".join(every))
        return
    store = args.out.with_suffix(".jsonl")
    results = read(store)
    for folder in args.data:
        bench: Bench | None = None
        for name in (one for one in every if any(fnmatch(one, pattern) for pattern in args.systems)):
            for seed in args.seeds[:1] if name.startswith(("HNSW", "ScaNN")) else args.seeds:
                label = Path(folder).name + (f", {args.tokens} tokens" if args.tokens else "")
                label += f", {args.steps} steps" if args.steps else ""
                key = {"data": label, "split": args.split, "seed": seed, "steps": args.steps}
                if any(r["system"] == name and all(r[k] == v for k, v in key.items()) for r in results):
                    continue
                bench = bench or Bench(folder, args.encoder, args.split, args.tokens)
                for system, measured in measure(bench, name, seed, args.steps).items():
                    results.append(append(store, {"system": system, **key, "measured": measured}))
                print(f"{key['data']}: {name}, seed {seed}", flush=True)
    tuned = [f"{kind}, tuned vectors" for kind in ("IVF", "ScaNN", "HNSW")]
    order = {name: place for place, name in enumerate([*trees, "HNSW", "paths", EVEN, *tuned, *PATHS])}
    results = sorted(
        (r for r in results if r["split"] == args.split), key=lambda r: order.get(r["system"], 99)
    )
    print(text := report(results))
    write_part(args.out, "paths", text)


if __name__ == "__main__":
    main()
