"""Answers found by budget: every system on every index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fetchhr.bench import BUDGETS, INDEXES, TREE, Bench, FaissView, Questions, lines_of, search, untrained

from palmette import Index, LayersModel, TreeModel
from palmette.evaluation import BM25
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.search import LAYERS

SUBSETS = ((1, 6), (1, 3, 6), (2, 4, 6), (1, 2, 5, 6))
"""Table 4, for six layers, beside the last alone and all."""
HALF = (1, 1, 1, 1, 1, 5)
"""Half of the budget for the last layer."""
OTHERS: dict[str, dict[str, Any]] = {
    "all layers": {},
    "all layers, not trained": {"steps": 0},
    "all layers without labels": {"labelled": False},
    "all layers, networks trained too": {
        "trains": "all",
        "steps": 100,
        "learning_rate": 2e-5,
        "batch_size": 32,
    },
    "all layers, the paper's start": {  # at random, the skip outside the norm, the first token
        "start": "random",
        "skip": "outside",
        "pooling": "cls",
        "trains": "all",
        "steps": 300,
        "learning_rate": 1e-4,
        "batch_size": 64,
    },
}
"""Other trainings, on the side."""

Run = tuple[str, LayersModel, dict[str, np.ndarray], dict[str, Any]]
"""A system's name, its model, its queries, its options."""


def measured(
    model: LayersModel, view: Any, asked: dict[str, np.ndarray], **options: Any
) -> Iterator[dict[str, Any]]:
    """Documents at each budget; the lists are searched by the method's own code."""
    chosen = LayersSearch(**options)
    layers = model.layers_of(chosen)
    places = [model.config.query_layers.index(layer) for layer in layers]
    queries = asked[LAYERS][:, places]
    fused = model.module.fused(torch.from_numpy(queries), layers).numpy()
    for k in BUDGETS:
        if chosen.order != "fused" and k % len(layers):
            continue
        found = search(view, queries, fused, layers, k, chosen)
        yield {"k": k, "keys": found.keys, "layer": found.evidence["layer"]}


def systems_of(bench: Bench, seed: int) -> list[Run]:
    """All layers and parts of them, the encoder, and one head trained in the same way."""
    encoder, texts = bench.encoder, bench.questions.texts
    model = bench.model(LayersModel, seed)
    head = bench.model(LayersModel, seed, layers=(encoder.num_layers,))
    asked, alone = (one.encode_queries(texts, one.search_options({})) for one in (model, head))
    own = {LAYERS: encoder.encode(texts, kind="query")[:, None]}
    parts: list[tuple[str, dict[str, Any]]] = [
        ("all layers", {"order": "layer"}),
        ("all layers, fused", {}),
        ("all layers, interleaved", {"order": "interleave"}),
        ("all layers, half for the last", {"order": "layer", "budget": HALF}),
        *((f"layer {n} alone", {"order": "layer", "layers": (n,)}) for n in model.config.query_layers),
        *((f"layers {list(some)}", {"order": "layer", "layers": some}) for some in SUBSETS),
        *(
            (f"first {m} layers, fused", {"layers": tuple(range(1, m + 1))})
            for m in model.config.query_layers
        ),
    ]
    return [
        ("encoder", untrained(model), own, {"order": "layer"}),
        ("one trained head", head, alone, {"order": "layer"}),
        *((name, model, asked, options) for name, options in parts),
    ]


def scored(name: str, found: dict[str, Any], questions: Questions) -> dict[str, Any]:
    """What is written of one search of all questions."""
    keys, k = found["keys"], found["k"]
    holds = questions.found(keys)
    row = {"index": name, "k": k, "accuracy": questions.accuracy(keys), "held": float(holds.sum(1).mean())}
    row["found"] = float((keys >= 0).sum(1).mean())
    if k == 12:
        row["ndcg"] = questions.ndcg(keys)
    return row


class Rows:
    """Lines of a file: of each seed and system, once."""

    def __init__(self, path: Path, split: str) -> None:
        self.path, self.split = path, split
        self.done = {(row["seed"], row["system"]) for row in lines_of(path)}

    def write(self, seed: int, system: str, rows: list[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({"split": self.split, "seed": seed, "system": system, **row}) + "\n")
        print(f"seed {seed}: {system}", flush=True)


def quality(bench: Bench, seeds: Sequence[int], out: Path) -> None:
    """Every system at every budget on every index."""
    rows, questions = Rows(out, bench.split), bench.questions
    for seed in seeds:
        if (seed, "all layers") in rows.done:
            continue
        views = {name: FaissView.built(bench.vectors, seed, **how) for name, how in INDEXES.items()}
        for system, model, asked, options in systems_of(bench, seed):
            found = [
                scored(name, one, questions)
                for name, view in views.items()
                for one in measured(model, view, asked, **options)
            ]
            rows.write(seed, system, found)


def rivals(bench: Bench, seeds: Sequence[int], out: Path) -> None:
    """BM25 and a tree with the defaults, at equal budget."""
    rows, questions, most = Rows(out, bench.split), bench.questions, max(BUDGETS)

    def write(seed: int, system: str, ids: list[list[str]]) -> None:
        keys = rows_of(bench, ids, most)
        rows.write(
            seed,
            system,
            [{"index": "flat", "k": k, "accuracy": questions.accuracy(keys[:, :k])} for k in BUDGETS],
        )

    for seed in seeds:
        if seed == 0 and (0, "BM25") not in rows.done:
            write(0, "BM25", BM25(bench.data.corpus).search(questions.texts, most).ids)
        if (seed, "tree") not in rows.done:
            tree = bench.model(TreeModel, seed, **TREE)
            with Index.build(bench.data.corpus, tree) as index:
                write(seed, "tree", index.rank(questions.texts, most, lexical=0, sentences=False).ids)


def rows_of(bench: Bench, ids: Sequence[Sequence[str]], width: int) -> np.ndarray:
    """Rows of documents by id [Q, width], −1 where there are fewer."""
    return np.array([[bench.data.rows[id] for id in some] + [-1] * (width - len(some)) for some in ids])


def others(bench: Bench, seeds: Sequence[int], out: Path, names: Sequence[str], count: int) -> None:
    """Models trained in other ways, or on other data, for the first ``count`` questions of a fixed draw."""
    rows = Rows(out, bench.split)
    order = np.random.default_rng(0).permutation(len(bench.questions.texts))[:count]
    questions = bench.questions.part(order)
    own = {LAYERS: bench.encoder.encode(questions.texts, kind="query")[:, None]}
    for seed in seeds:
        views = {index: FaissView.built(bench.vectors, seed, **how) for index, how in INDEXES.items()}
        for name in names:
            if (seed, name) in rows.done:
                continue
            model = bench.model(LayersModel, seed, **OTHERS[name])
            asked = model.encode_queries(questions.texts, model.search_options({}))
            for system, one, queries, options in (
                ("encoder", untrained(model), own, {"order": "layer"}),
                (name, model, asked, {"order": "layer"}),
                (f"{name}, fused", model, asked, {}),
            ):
                found = [
                    {"index": index, "k": some["k"], "accuracy": questions.accuracy(some["keys"])}
                    for index, view in views.items()
                    for some in measured(one, view, queries, **options)
                ]
                if (seed, system) not in rows.done:
                    rows.write(seed, system, found)
