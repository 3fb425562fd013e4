"""Taxonomies measured: recall by distance, dimensions, unseen queries, graded judgements, speed.

    python benchmarks/taxonomy.py toy|dimensions|names
    python benchmarks/taxonomy.py wordnet|pairs|unseen|speed FOLDER
    python benchmarks/taxonomy.py graded CHORUS_ICECAT

FOLDER is ``wordnet_nouns``; ``--set`` changes options of all rows (``correction=0.9``, ``sampling=regular hard=0``: one
match drawn). Every measurement is printed as a row of a Markdown table as soon as it is there. The test pairs are drawn
with a seed of their own.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import ENCODER, spread
from palmette import Document, FakeEncoder, Index, TaxonomyModel, load_data
from palmette.encoder.cache import EncodingCache
from palmette.methods.base import FitInputs
from palmette.methods.taxonomy import Hierarchy
from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.taxonomy.data import Sampler, TaxonomyData
from palmette.methods.taxonomy.hierarchy import Matches
from palmette.methods.taxonomy.training import found_matches, recall_by_distance, training_summary
from palmette.sample import python_catalogue
from palmette.training.config import TrainingConfig
from palmette.training.loop import train

CACHE = EncodingCache()
PAIRS = 10_000
"""Test pairs, as in the paper."""
PAPER: dict[str, Any] = {"negatives": "all", "correction": 0.0, "sampling": "regular"}
"""A softmax over the batch as it is."""
ROWS: dict[str, dict[str, Any]] = {
    "default": {},
    "no hard negatives": {"hard": 0},
    "regular": PAPER,
    "pretrain-finetune": PAPER | {"recipe": "pretrain-finetune"},
}
UNSEEN: dict[str, dict[str, Any]] = {
    "untrained": {"steps": 0, "documents": "text", "dimension": 384},
    "both": {},
    "both, no hard negatives": {"hard": 0},
    "text": {"documents": "text"},
    "lookup": {"documents": "lookup"},
    "both, plain softmax": PAPER,
}
GRADED: dict[str, dict[str, Any]] = {
    "untrained": {"steps": 0},
    "joint, plain softmax": PAPER,
    "pretrain-finetune": ROWS["pretrain-finetune"],
    "joint, corrected": {},
}
MODULES = ("collections", "functools", "itertools", "json", "os.path", "pathlib", "random", "shutil")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """``--set`` as options: numbers as numbers, the rest as words."""
    found: dict[str, Any] = dict(word.split("=", 1) for word in args.set)
    for name, value in found.items():
        with suppress(ValueError, SyntaxError):
            found[name] = ast.literal_eval(value)
    return found


def runs(
    args: argparse.Namespace, rows: dict[str, dict[str, Any]], **usual: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and options of every run: rows by seeds; a row overrides the usual options, ``--set`` the row."""
    for name in args.rows or rows:
        for seed in args.seeds:
            yield f"{name}, seed {seed}", usual | {"seed": seed} | rows[name] | settings(args)


def perfect(height: int, width: int) -> Hierarchy:
    """The toy of the paper: a perfect tree without its root."""
    level = [str(child) for child in range(width)]
    nodes, edges = list(level), []
    for _ in range(height - 2):
        level = [f"{parent}.{child}" for parent in level for child in range(width)]
        nodes += level
        edges += [(id, id.rpartition(".")[0]) for id in level]
    return Hierarchy.from_edges(edges, nodes)


def tables(hierarchy: Hierarchy, steps: int, **options: Any) -> TaxonomyModel:
    """A trained lookup model."""
    usual = {"queries": "lookup", "documents": "lookup", "steps": steps}
    return TaxonomyModel.fit(hierarchy, **usual | options)


@torch.no_grad()
def vectors(model: TaxonomyModel, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Query embeddings of some nodes, document embeddings of all."""
    return model.module.queries(torch.from_numpy(rows)), model.module.node_vectors


def pairs_recall(queries: torch.Tensor, documents: torch.Tensor, matches: Matches) -> dict[int, float]:
    """Recall of drawn pairs by distance, and overall (under −1): one drawn match per query."""
    draw = np.random.default_rng(2024)
    found = found_matches(queries, documents, matches)
    places = matches.starts[:-1] + (draw.random(len(matches)) * matches.counts).astype(np.int64)
    return {**recall_by_distance(found[places], matches.distances[places]), -1: float(found[places].mean())}


def show(name: str, values: dict[int, float], begun: float, *more: str) -> None:
    """One row: recall by distance, and processor time since ``begun``."""
    near = [values[d] for d in sorted(values) if d >= 0]
    cells = [f"{100 * value:.1f}" for value in (*near, min(near), values[-1])]
    print(f"| {' | '.join([name, *cells, f'{time.process_time() - begun:.0f} s', *more])} |", flush=True)


def heading(distances: int, *more: str, first: int = 0) -> None:
    """Of a table by distance."""
    columns = [*map(str, range(first, distances)), "min", "overall", "processor", *more]
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)


def recall_of(model: TaxonomyModel, tree: Hierarchy) -> dict[str, float]:
    """Recall of all pairs."""
    matches = tree.matches()
    return training_summary(found_matches(*vectors(model, np.arange(len(tree))), matches), matches)


def toy(args: argparse.Namespace) -> None:
    """H = 4, W = 5, three dimensions: recall by distance over all pairs."""
    tree = perfect(4, 5)
    heading(3)
    for name, options in runs(args, ROWS, dimension=3, learning_rate=args.rate):
        begun = time.process_time()
        scores = recall_of(tables(tree, args.steps or 4000, **options), tree)
        by = {d: scores[f"recall at distance {d}"] for d in range(3)}
        show(name, by | {-1: scores["recall"]}, begun)


def dimensions(args: argparse.Namespace) -> None:
    """The smallest dimension with recall above .95, by height and by width."""
    print("| height | width | nodes | dimension |\n|---:|---:|---:|---:|", flush=True)
    options = {"learning_rate": args.rate, "progress": False} | settings(args)
    for height, width in [(h, 2) for h in range(3, 11)] + [(4, w) for w in (2, 4, 8, 12, 16, 20)]:
        tree, learned = perfect(height, width), 1
        while recall_of(tables(tree, args.steps or 1500, dimension=learned, **options), tree)["recall"] <= 0.95:
            learned += 1
        print(f"| {height} | {width} | {len(tree)} | {learned} |", flush=True)


def nouns(folder: str) -> tuple[list[dict[str, Any]], Hierarchy, np.ndarray]:
    """The synsets, how they hang together, and the queries of the test pairs."""
    with gzip.open(Path(folder) / "synsets.jsonl.gz", "rt", encoding="utf-8") as lines:
        synsets = [json.loads(line) for line in lines]
    with gzip.open(Path(folder) / "edges.tsv.gz", "rt", encoding="utf-8") as lines:
        edges = [tuple(line.split("\t")[:2]) for line in lines][1:]
    tree = Hierarchy.from_edges(edges, [synset["_id"] for synset in synsets])
    return synsets, tree, np.random.default_rng(2024).integers(0, len(tree), PAIRS)


def wordnet(args: argparse.Namespace) -> None:
    """Table 1 of the paper: lookup tables over WordNet's nouns."""
    _, tree, rows = nouns(args.folder)
    matches = tree.matches(8).take(rows)
    heading(9)
    steps = args.steps or 4000
    usual = {"max_distance": 8, "batch_size": args.batch_size, "learning_rate": args.rate}
    usual["evaluate_every"] = max(1, steps // 4)
    for dimension in args.dimensions:
        for name, options in runs(args, ROWS, dimension=dimension, **usual):
            begun = time.process_time()
            model = tables(tree, steps, **options)
            show(f"{dimension}, {name}", pairs_recall(*vectors(model, rows), matches), begun)


def pairs(args: argparse.Namespace) -> None:
    """The paper's setting: tables learn from pairs, all or some of the closure's, and nobody knows the graph."""
    _, tree, rows = nouns(args.folder)
    draw = np.random.default_rng(7)
    heading(9, "pairs never seen")
    for share in (1.0, 0.5):
        begun = time.process_time()
        towers: dict[str, Any] = {"queries": "lookup", "documents": "lookup", "hard": 0, "max_distance": 8}
        config = TaxonomyConfig(dimension=args.dimensions[0], **towers)
        known = TaxonomyData.load(tree)
        config, task = TaxonomyModel.task(config, FitInputs(known, FakeEncoder(1), CACHE))
        every = task.train.matches
        seen = draw.random(len(every.documents)) < share
        parts = (every.owners[seen], every.documents[seen], every.distances[seen])
        matches = Matches.of(*parts, len(every), every.size)
        task.train = replace(task.train, matches=matches)
        task.sampler = Sampler(matches, config.sampling)
        steps = args.steps or 2000
        usual = {"batch_size": args.batch_size, "learning_rate": args.rate, "decay": "linear"}
        train(task, TrainingConfig(steps=steps, evaluate_every=steps, **usual), progress=False)
        queries, documents = vectors(TaxonomyModel(config, FakeEncoder(1), task.module), rows)
        wanted = every.take(rows)
        hidden = np.concatenate([~seen[every.starts[row] : every.starts[row + 1]] for row in rows.tolist()])
        found = found_matches(queries, documents, wanted)
        unseen = f"{100 * found[hidden].mean():.1f}" if hidden.any() else ""
        show(f"{share:.0%} of the pairs", pairs_recall(queries, documents, wanted), begun, unseen)


def unseen(args: argparse.Namespace) -> None:
    """Text towers asked for synsets that training never saw: a tenth of the leaves."""
    synsets, tree, _ = nouns(args.folder)
    draw = np.random.default_rng(2024)
    held = np.sort(draw.permutation(tree.leaves())[: len(tree.leaves()) // 10])
    kept = np.setdiff1d(np.arange(len(tree)), held)
    documents = [document(synset) for synset in synsets]
    edges = [(tree.ids[c], tree.ids[p]) for c in kept.tolist() for p in tree.parents[c].tolist()]
    known = [documents[row] for row in kept.tolist()]
    asked = np.sort(draw.choice(held, min(2000, len(held)), replace=False))
    above = tree.matches(8).take(asked)
    place = np.full(len(tree), -1)
    place[kept] = np.arange(len(kept))
    far = above.distances > 0  # the synset itself is no document of the index
    owner, target = above.owners[far], place[above.documents[far]]
    matches = Matches.of(owner, target, above.distances[far], len(asked), len(kept))
    texts_by = {"name and definition": [documents[row].text for row in asked]}
    texts_by["name"] = [synsets[row]["title"] for row in asked]
    heading(9, first=1)
    usual = {"edges": edges, "encoder": args.encoder, "cache": CACHE, "batch_size": args.batch_size}
    usual |= {"max_distance": 8, "dimension": 64, "steps": args.steps or 3000}
    for name, options in runs(args, UNSEEN, **usual):
        begun = time.process_time()
        model = TaxonomyModel.fit(known, **options)
        for what, texts in texts_by.items():
            scores = pairs_recall(asked_in_words(model, texts), model.module.node_vectors, matches)
            show(f"{name}, by {what}", scores, begun)


def asked_in_words(model: TaxonomyModel, texts: list[str]) -> torch.Tensor:
    """Query embeddings of texts, each encoded once for all models."""
    inputs = CACHE.encode(model.encoder, texts, kind="query")
    with torch.inference_mode():
        return model.module.queries(torch.from_numpy(inputs))


def document(synset: dict[str, Any]) -> Document:
    """A synset as a user would write it down."""
    return Document(synset["_id"], f"{synset['title']}: {synset['text']}", {"name": synset["title"]})


def names(args: argparse.Namespace) -> None:
    """Names that training never saw, a tenth of some modules' leaves, by cut-off; and those that it saw."""
    print("| names | cut | precision | recall | recall of as many best |\n|---|---:|---:|---:|---:|", flush=True)
    for short in (False, True):
        scores: dict[tuple[str, float], list[list[float]]] = {}
        for seed in args.seeds:
            options = {"dimension": 64, "steps": 400, "batch_size": 256, "seed": seed} | settings(args)
            nodes = [(e.id, e.id.rpartition(".")[2] if short else e.id, e) for e in python_catalogue(MODULES)]
            above = {id: entry.metadata["parent"] for id, _, entry in nodes}
            leaves = sorted(id for id, up in above.items() if id not in above.values() and up in above)
            hidden = np.random.default_rng(100 + seed).permutation(leaves)[: len(leaves) // 10]
            known = {id: Document(id, e.text.replace(id, n), {"name": n}) for id, n, e in nodes if id not in hidden}
            edges = [(id, above[id]) for id in known if above[id] in known]
            model = TaxonomyModel.fit([*known.values()], edges=edges, encoder=args.encoder, **options)
            for what, asked in (("seen", list(known)), ("unseen", hidden.tolist())):
                tree, texts = model.nodes.hierarchy, [n for id, n, _ in nodes if id in set(asked)]
                order = [id for id, _, _ in nodes if id in set(asked)]
                query = asked_in_words(model, texts).numpy() * model.config.multiplier
                every = query @ model.module.node_vectors.numpy().T
                best = np.argsort(-every, 1)[:, :100]
                right = [tree.ancestors(tree.row(id if what == "seen" else above[id])) for id in order]
                hits = np.array([np.isin(row, rows) for row, rows in zip(best, right, strict=True)])
                counts = np.array([len(rows) for rows in right])
                among = np.mean([row[:n].sum() / n for row, n in zip(hits, counts, strict=True)])
                for cut in (0.5, 0.3, 0.1):
                    kept = model.cutoff.likely(query, np.take_along_axis(every, best, 1), cut, chains=True)
                    recall = ((kept & hits).sum(1) / counts).mean()
                    row = [float((kept & hits).sum() / max(1, kept.sum())), float(recall), float(among)]
                    scores.setdefault((what, cut), []).append(row)
        for (what, cut), rows in scores.items():
            cells = " | ".join(f"{value:.2f}" for value in np.mean(rows, 0))
            print(f"| {'last part' if short else 'whole path'}, {what} | {cut} | {cells} |", flush=True)


def graded(args: argparse.Namespace) -> None:
    """Exact (grade 3) and substitute (1, 2) products: joint training and finetuning.

    Few queries: towers begin as the encoder itself, and there are no rows to learn by heart.
    """
    data = load_data(args.folder)
    judged = data.qrels["test"]
    print("| | exact R@100 | R@1000 | substitute R@100 | R@1000 |\n|---|---:|---:|---:|---:|", flush=True)
    usual = {"encoder": args.encoder, "cache": CACHE, "learning_rate": args.rate, "steps": args.steps or 200}
    usual |= {"dimension": 384, "documents": "text", "batch_size": 512}

    def share(ranked: dict[str, list[str]], grades: tuple[int, ...], k: int) -> float:
        wanted = [(query, id) for query, docs in judged.items() for id, g in docs.items() if g in grades]
        return float(np.mean([id in ranked[query][:k] for query, id in wanted]))

    for name, options in GRADED.items():
        scores = []
        for seed in args.seeds:
            model = TaxonomyModel.fit(data, **usual | {"seed": seed} | options)
            queries = asked_in_words(model, [data.queries[id] for id in judged])
            best = (queries @ model.module.node_vectors.T).topk(1000, dim=1).indices.tolist()
            ranked = {id: [data.corpus[row].key for row in found] for id, found in zip(judged, best, strict=True)}
            scores.append([share(ranked, grades, k) for grades in ((3,), (1, 2)) for k in (100, 1000)])
        cells = [spread(column) for column in zip(*scores, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def speed(args: argparse.Namespace) -> None:
    """1,000 steps of batch 4,096 at 64 dimensions; and searches in an index of all nodes."""
    synsets, tree, _ = nouns(args.folder)
    steps, begun, worked = args.steps or 1000, time.perf_counter(), time.process_time()
    model = tables(tree, steps, dimension=64, max_distance=8, batch_size=4096, evaluate_every=steps)
    took, worked = time.perf_counter() - begun, time.process_time() - worked
    threads = torch.get_num_threads()
    print(f"fit, {steps} steps: {took:.0f} s on {threads} threads, {worked:.0f} s of processor time")
    index = Index.build([document(synset) for synset in synsets], model)
    asked = [synset["_id"] for synset in synsets[:2000:20]]
    for options in ({}, {"cut": 0.5}, {"order": "specific"}):
        times = []
        for text in asked:
            begun = time.perf_counter()
            index.search(text, 10, lexical=0, sentences=False, **options)
            times.append(1000 * (time.perf_counter() - begun))
        print(f"search {options}: median {np.median(times):.1f} ms")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    f.__name__: f for f in (wordnet, pairs, toy, dimensions, unseen, names, graded, speed)
}


def main() -> None:
    """One part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--rows", nargs="*", choices=[*ROWS, *UNSEEN], help="which; all by default")
    parser.add_argument("--dimensions", nargs="*", type=int, default=[16])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--encoder", default=ENCODER)
    args = parser.parse_args()
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
