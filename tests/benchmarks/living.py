"""Trees that change after training: what growing brings to a new topic, what pruning costs, and the other ways.

    python tests/benchmarks/living.py squad --topics split --seeds 0 1 2 --out tests/benchmarks/results/living.md

A tree is trained on old documents; then others arrive. With ``--topics FIELD`` these are the documents whose FIELD is
"test" and the old ones those where it is "train" (SQuAD: whole articles, which the tree has never seen); without it,
a random half of all documents (a control: nothing new in kind). Old queries that no training has seen and new ones
are then ranked against all documents. Half of the new queries serve as labels where a row says so. Every finished
tree and seed is a line of the ``.jsonl`` beside ``--out``, and is not measured again; what stands above the first
table in ``--out`` stays.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch

from palmette import RetrievalData, TreeModel, load_data, load_encoder
from palmette.cache import EncodingCache
from palmette.encoder import Encoder, States
from palmette.losses import ntvd
from palmette.methods.tree.living.rows import NewRows, reshaped
from palmette.methods.tree.propagation import coarsen
from palmette.methods.tree.search import reached
from palmette.methods.tree.task import TreeTask
from palmette.metrics import Judgements, score_ranks
from palmette.pairs import EncodedPairs
from palmette.training import TrainingConfig, train
from palmette.types import Document

JUDGED = 300
"""Queries of each kind."""
EARLIER: dict[str, Any] = {"space": "encoder", "growth": 1.5, "upper": 0}
"""What the first tables were measured with."""
TREES: dict[str, dict[str, Any]] = {
    "depth 8": {"depth": 8, **EARLIER},
    "depth 6": {"depth": 6, **EARLIER},
    "depth 8, sharpness 3": {"depth": 8, "sharpness": 3.0, **EARLIER},
    "depth 8, adapted space": {"depth": 8, "space": "adapted"},
    "depth 6, adapted space": {"depth": 6, "space": "adapted"},
}


@dataclass
class Scene:
    """Documents before and after, and the queries of each.

    Attributes:
        old: What the tree is trained on.
        arrivals: The new documents.
        labels: The new documents with queries.
        documents: [N, d] old ones, then new ones.
        asked: Old and new queries [Q, d] and their judgements.
    """

    encoder: Encoder
    cache: EncodingCache
    old: RetrievalData
    arrivals: list[Document]
    labels: RetrievalData
    documents: torch.Tensor
    asked: dict[str, tuple[torch.Tensor, Judgements]]

    @classmethod
    def of(
        cls, data: RetrievalData, topics: str | None, seed: int, encoder: Encoder, cache: EncodingCache
    ) -> Scene:
        """Split documents and queries."""
        draw = np.random.default_rng(seed)
        half = set(
            draw.permutation([document.key for document in data.corpus])[: len(data.corpus) // 2].tolist()
        )
        parts: dict[str, list[Document]] = {"train": [], "test": []}
        for document in data.corpus:
            part = str(document.metadata[topics]) if topics else ("test" if document.key in half else "train")
            parts.get(part, []).append(document)
        ids = {part: {document.key for document in held} for part, held in parts.items()}
        judged = {query: found for split in data.qrels.values() for query, found in split.items()}
        queries = {
            part: [query for query in sorted(judged) if set(judged[query]) <= known]
            for part, known in ids.items()
        }
        for listed in queries.values():
            draw.shuffle(listed)
        held = {part: min(JUDGED, len(listed) // 2) for part, listed in queries.items()}

        def learned(part: str) -> RetrievalData:
            chosen = queries[part][held[part] :]
            texts = {query: data.queries[query] for query in chosen}
            return RetrievalData(part, parts[part], texts, {"train": {q: judged[q] for q in chosen}})

        every = parts["train"] + parts["test"]
        rows = {document.key: row for row, document in enumerate(every)}
        asked = {}
        for part, name in (("train", "old"), ("test", "new")):
            chosen = queries[part][: held[part]]
            vectors = cache.encode(encoder, [data.queries[query] for query in chosen], kind="query")
            flat = [
                (at, rows[doc], grade)
                for at, query in enumerate(chosen)
                for doc, grade in judged[query].items()
            ]
            asked[name] = (
                torch.from_numpy(vectors),
                Judgements.of(len(chosen), len(every), *zip(*flat, strict=True)),
            )
        documents = torch.from_numpy(cache.encode(encoder, [document.content for document in every]))
        return cls(encoder, cache, learned("train"), parts["test"], learned("test"), documents, asked)

    @property
    def both(self) -> RetrievalData:
        """All documents: the old ones' training queries, and self-made ones for the new."""
        made = load_data(self.arrivals, dev_fraction=0)
        train_qrels = {**self.old.qrels["train"], **made.qrels["train"]}
        corpus = [*self.old.corpus, *self.arrivals]
        return RetrievalData("both", corpus, {**self.old.queries, **made.queries}, {"train": train_qrels})

    @torch.inference_mode()
    def leaves(self, model: TreeModel, x: torch.Tensor) -> torch.Tensor:
        """Leaf probabilities."""
        return torch.cat([model.module(States(part)) for part in torch.split(x, 4096)])

    def measure(self, model: TreeModel, middle: int) -> dict[str, float]:
        """Columns, quality at the leaves and at a middle level, and how the documents lie."""
        shape, found = model.config.shape, self.leaves(model, self.documents)
        fallen = reached(found.numpy(), shape)[:, 0]
        fullest = np.bincount(fallen, minlength=shape.leaves).max()
        row = {"columns": float(shape.leaves), "fullest": float(fullest)}
        for name, (vectors, judgements) in self.asked.items():
            asked = self.leaves(model, vectors)
            row[name] = quality(asked, found, judgements)
            coarse = [coarsen(x, shape, middle) for x in (asked, found)]
            row[f"{name} mid"] = quality(coarse[0], coarse[1], judgements)
        return row


def quality(queries: torch.Tensor, documents: torch.Tensor, judgements: Judgements) -> float:
    """nDCG@10 by overlap."""
    ranks = [ntvd(part, documents).topk(10, dim=1).indices for part in torch.split(queries, 64)]
    return score_ranks(torch.cat(ranks).numpy(), judgements, ks=(10,))["ndcg@10"]


def retuned(model: TreeModel, data: RetrievalData, scene: Scene, **options: Any) -> TreeModel:
    """Go on training all nodes on some documents only."""
    pairs = EncodedPairs.encode(load_data(data), scene.encoder, scene.cache, progress=False)
    module = NewRows(reshaped(model.module, model.config), np.arange(len(model.config.shape.splits)))
    train(TreeTask(module, pairs), TrainingConfig(**options), device="cpu", progress=False)  # type: ignore[arg-type]
    return TreeModel(model.config, model.encoder, module.settle())


def ways(
    scene: Scene, options: dict[str, Any], seed: int, steps: int
) -> Iterator[tuple[str, TreeModel, float]]:
    """Every way to deal with new documents: its name, the model and the seconds."""
    how: dict[str, Any] = {"cache": scene.cache, "progress": False}
    loop = {"steps": steps, "seed": seed, "batch_size": 64, "evaluate_every": max(1, steps // 2)}
    growing = {**how, **loop, "device": "cpu"}
    clock = time.perf_counter()

    def done(name: str, model: TreeModel) -> tuple[str, TreeModel, float]:
        nonlocal clock
        seconds, clock = time.perf_counter() - clock, time.perf_counter()
        return name, model, seconds

    fitting = {**growing, "encoder": scene.encoder, **options}
    model = TreeModel.fit(scene.old, **fitting)
    yield done("as it is, trained on the old documents", model)
    new, labels = scene.arrivals, scene.labels
    yield done("grow(new), new nodes not trained", model.grow(new, **{**growing, "steps": 0}))
    yield done("grow(new)", model.grow(new, **growing))
    yield done("grow(new, levels=2)", model.grow(new, levels=2, **growing))
    yield done("grow(new with labels)", model.grow(labels, **growing))
    yield done("grow(all, crowded=1)", model.grow(scene.both, crowded=1, **growing))
    yield done("training all nodes on, with the new", retuned(model, load_data(new), scene, **loop))
    yield done("training all nodes on, with the new and labels", retuned(model, labels, scene, **loop))
    yield done("trained anew on all", TreeModel.fit(scene.both, **fitting))
    deeper = {**fitting, "depth": options["depth"] + 1}
    yield done("trained anew on the old, a level more", TreeModel.fit(scene.old, **deeper))


def cuts(scene: Scene, model: TreeModel, middle: int) -> dict[str, dict[str, float]]:
    """Pruned trees beside the levels of the whole one."""
    rows = {}
    for level in (model.config.depth - 1, model.config.depth - 3):
        columns = len(model.config.shape.levels[level])
        row = scene.measure(model, level)
        rows[f"level {level}"] = {"columns": columns, "old": row["old mid"], "new": row["new mid"]}
        pruned = model.prune(scene.old, columns=columns, cache=scene.cache, progress=False)
        rows[f"prune(columns={columns})"] = scene.measure(pruned, 1)
    for tolerance in (0.005, 0.02):
        pruned = model.prune(scene.old, tolerance=tolerance, cache=scene.cache, progress=False)
        rows[f"prune(tolerance={tolerance})"] = scene.measure(pruned, 1)
    return rows


def table(results: list[dict[str, Any]]) -> str:
    """Markdown, mean ± spread over the seeds."""
    parts = []
    for data, tree in dict.fromkeys((r["data"], r["tree"]) for r in results):
        here = [r for r in results if (r["data"], r["tree"]) == (data, tree)]
        facts = here[0]["facts"]
        parts.append(
            f"## {data}, {tree}\n\n{facts['old']:,} old documents, {facts['new']:,} new ones ({facts['which']}); "
            f"{len(here)} seeds; {facts['steps']} steps; the encoder itself: "
            f"{_cell([r['encoder']['old'] for r in here])} old, {_cell([r['encoder']['new'] for r in here])} new"
        )
        columns = ("columns", "old", "new", "old mid", "new mid", "fullest", "seconds")
        head = (
            "nDCG@10",
            "columns",
            "old",
            "new",
            f"old, level {facts['middle']}",
            f"new, level {facts['middle']}",
        )
        parts.append(_table((*head, "fullest leaf", "seconds"), columns, [r["ways"] for r in here]))
        parts.append(
            _table(("pruning", "columns", "old", "new"), ("columns", "old", "new"), [r["cuts"] for r in here])
        )
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], columns: tuple[str, ...], seeds: list[dict[str, dict[str, float]]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(columns)]
    for name in seeds[0]:
        rows = [seed[name] for seed in seeds if name in seed]
        cells = [_cell([row[column] for row in rows]) for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if max(values) > 1:
        return f"{mean(values):.0f}"
    spread = f" ± {pstdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}".replace("0.", ".")


def one(scene: Scene, options: dict[str, Any], seed: int, steps: int, middle: int) -> dict[str, Any]:
    """All rows of a tree and a seed."""
    rows: dict[str, dict[str, float]] = {}
    pruned: dict[str, dict[str, float]] = {}
    for name, model, seconds in ways(scene, options, seed, steps):
        rows[name] = {**scene.measure(model, middle), "seconds": seconds}
        print(f"    {name}: {rows[name]}", flush=True)
        if name == "as it is, trained on the old documents":
            pruned = cuts(scene, model, middle)
    unit = torch.nn.functional.normalize
    near = {
        name: (unit(q) @ unit(scene.documents).T).topk(10, dim=1).indices.numpy()
        for name, (q, _) in scene.asked.items()
    }
    encoder = {name: score_ranks(near[name], scene.asked[name][1], ks=(10,))["ndcg@10"] for name in near}
    return {"ways": rows, "cuts": pruned, "encoder": encoder}


def main() -> None:
    """Measure what is missing, then write what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--topics", help="metadata that says which documents are new (test) and old (train)")
    parser.add_argument("--trees", nargs="+", default=list(TREES), choices=list(TREES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--out", type=Path, default=Path("living.md"))
    args = parser.parse_args()
    store = args.out.with_suffix(".jsonl")
    results = [json.loads(line) for line in store.read_text("utf-8").splitlines()] if store.exists() else []
    encoder, cache = load_encoder(args.encoder), EncodingCache(args.cache)
    for seed in args.seeds:
        for folder in args.data:
            data = load_data(folder)
            scene = Scene.of(data, args.topics, seed, encoder, cache)
            for tree in args.trees:
                name = data.name if args.topics else f"{data.name}, a random half"
                key = {"data": name, "tree": tree, "seed": seed}
                if any(all(r[k] == v for k, v in key.items()) for r in results):
                    continue
                print(f"{name}, {tree}, seed {seed}", flush=True)
                options, middle = TREES[tree], TREES[tree]["depth"] - 2
                facts = {
                    "old": len(scene.old.corpus),
                    "new": len(scene.arrivals),
                    "which": "topics that training has not seen" if args.topics else "drawn at random",
                    "steps": args.steps,
                    "middle": middle,
                }
                results.append({**key, "facts": facts, **one(scene, options, seed, args.steps, middle)})
                with store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    print(text := table(results))
    notes = (
        args.out.read_text("utf-8").partition("\n## ")[0] if args.out.exists() else ""
    )  # what stands above stays
    args.out.write_text(f"{notes}\n{text}" if notes else text, encoding="utf-8")


if __name__ == "__main__":
    main()
