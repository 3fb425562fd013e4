"""Popular answers: does correcting a loss for how often a batch holds a document help other methods, too?

    python tests/benchmarks/popular.py WORDNET_NOUNS [--methods tree paths] [--strengths 0 0.5 1] [--seeds 0]
    python tests/benchmarks/popular.py SQUAD [--methods tree paths]

Of ``wordnet_nouns`` it is the synsets of one kind (``--root``, vertebrates), asked for by name: what answers are a
synset and all above it, so that a general one answers many. Elsewhere the questions of a BEIR folder. A document of
the batch then counts as a negative 1 / P(a batch holds it), to the power of the strength; 0 is the method as it is.
The tree's InfoNCE and the triplets of paths are changed here, in this script, and nowhere else.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import taxonomy
import torch
from torch import Tensor
from torch.nn import functional as F

from palmette import Index, RetrievalData, load_data, load_encoder
from palmette.encoder.cache import CachedEncoder
from palmette.maths import symmetric_info_nce as plain_info_nce
from palmette.methods.paths import training as paths_task
from palmette.methods.taxonomy.losses import column_weights
from palmette.methods.tree import init as tree_init
from palmette.methods.tree import losses as tree_losses
from palmette.methods.tree import training as tree_training
from palmette.metrics import score_run
from palmette.methods import model_class


def named(folder: str, root: str) -> RetrievalData:
    """A kind of things, and pairs of a name and what it names or a kind of that; a tenth of the leaves to test by."""
    synsets, tree = taxonomy.wordnet(folder)
    below = tree.descendants(tree.row(root))
    ids = [synsets[row]["_id"] for row in below]
    place = {int(row): at for at, row in enumerate(below)}
    above = tree.matches(8).take(below)
    qrels: dict[str, dict[str, dict[str, int]]] = {"train": {}, "dev": {}, "test": {}}
    leaves = set(tree.leaves().tolist())
    draw = np.random.default_rng(2024)
    for at, row in enumerate(below.tolist()):
        mine = above.documents[above.starts[at] : above.starts[at + 1]].tolist()
        split = "train" if row not in leaves else draw.choice(["train", "dev", "test"], p=[0.8, 0.1, 0.1])
        qrels[split][f"q{ids[at]}"] = {ids[place[found]]: 1 for found in mine if found in place}
    queries = {f"q{ids[at]}": synsets[row]["title"] for at, row in enumerate(below.tolist())}
    return RetrievalData(root, [taxonomy.document(synsets[row]) for row in below], queries, qrels)


class Corrected:
    """The log weights of the documents of the batch at hand, as negatives."""

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.weights = torch.zeros(0)

    def look(self, task: Any, rows: np.ndarray) -> None:
        """Weigh the documents of a batch."""
        drawn = task.pairs.document_rows
        frequency = np.bincount(drawn) / len(drawn)
        documents = drawn[rows]
        _, inverse, counts = np.unique(documents, return_inverse=True, return_counts=True)
        times = torch.from_numpy(counts[inverse]).float()
        log_p = torch.from_numpy(np.log(frequency[documents])).float()
        self.weights = column_weights(times, log_p, len(rows), self.strength) - times.log()

    def info_nce(self, logits: Tensor, known: Tensor, *_: Any) -> Tensor:
        """Of the tree; a document's own questions are all alike and need no correction."""
        if len(self.weights) != len(logits):  # where the multipliers begin, before the first batch
            return plain_info_nce(logits, known)
        own = torch.eye(len(logits), dtype=torch.bool)
        left = logits.masked_fill(known & ~own, -torch.inf)
        weighed = torch.where(own, left, left + self.weights)
        target = torch.arange(len(logits))
        return 0.5 * (F.cross_entropy(weighed, target) + F.cross_entropy(left.T, target))

    def triplet(self, similarity: Tensor, negative: Tensor, margin: float) -> Tensor:
        """Of paths."""
        positive = similarity.diagonal()[:, None]
        weights = torch.ones(similarity.shape[1])
        weights[: len(self.weights)] = self.weights.exp()
        weights = weights * negative
        return (torch.relu(similarity - positive + margin) * weights).sum() / weights.sum().clamp(min=1e-9)


TASKS: dict[str, list[tuple[Any, str, Any, str]]] = {
    "tree": [
        (tree_init, "_AdapterTask", tree_init, "info_nce"),
        (tree_training, "TreeTask", tree_losses, "info_nce"),
    ],
    "paths": [(paths_task, "PathsTask", paths_task, "triplet")],
}
"""Where each method's tasks look for their loss: the tree first learns the space that it lives in."""


def fit(method: str, data: RetrievalData, options: dict[str, Any], strength: float, coder: Any) -> Any:
    """A model, trained with the correction."""

    def looking(plain: Any, corrected: Corrected) -> Any:
        def loss(task: Any, network: Any, rows: np.ndarray, *rest: Any) -> Tensor:
            corrected.look(task, rows)
            found: Tensor = plain(task, network, rows, *rest)
            return found

        return loss

    with ExitStack() as patches:
        for module, task, where, loss in TASKS[method]:
            owner, corrected = getattr(module, task), Corrected(strength)
            patches.enter_context(patch.object(owner, "loss", looking(owner.loss, corrected)))
            patches.enter_context(patch.object(where, loss, getattr(corrected, loss)))
        return model_class(method).fit(data, encoder=coder, cache=coder.cache, **options)


def popularity(data: RetrievalData, ids: list[list[str]], asked: list[str]) -> list[float]:
    """Recall@10 of documents that many training questions share (the tenth most asked for), and of the others."""
    times: dict[str, int] = {}
    for judged in data.qrels["train"].values():
        for id in judged:
            times[id] = times.get(id, 0) + 1
    popular = set(sorted(times, key=lambda id: -times[id])[: max(1, len(times) // 10)])
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for query, found in zip(asked, ids, strict=True):
        for id in data.qrels["test"][query]:
            hits[id in popular].append(id in found)
    return [float(np.mean(hits[key])) if hits[key] else float("nan") for key in (True, False)]


def main() -> None:
    """Every method at every strength."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--methods", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--strengths", nargs="*", type=float, default=[0.0, 0.5, 1.0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--root", default="n01471682")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--cache")
    args = parser.parse_args()
    coder = CachedEncoder(load_encoder(args.encoder), args.cache)
    wordnet = (Path(args.folder) / "synsets.jsonl.gz").is_file()
    data = named(args.folder, args.root) if wordnet else load_data(args.folder, titles=False)
    asked = list(data.qrels["test"])
    print(f"{data.name}: {len(data.corpus)} documents, { ({s: len(q) for s, q in data.qrels.items()}) }")
    print("| method | strength | seed | nDCG@10 | recall@10 | of popular answers | of others |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for method in args.methods:
        for strength in args.strengths:
            for seed in args.seeds:
                options = {"seed": seed, "steps": args.steps}
                model = fit(method, data, options, strength, coder)
                texts = [data.queries[id] for id in asked]
                ids = Index.build(data.corpus, model).rank(texts, 10, lexical=0).ids
                score = score_run(dict(zip(asked, ids, strict=True)), data.qrels["test"], ks=(10,))
                cells = [score["ndcg@10"], score["recall@10"], *popularity(data, ids, asked)]
                row = " | ".join(f"{value:.3f}" for value in cells)
                print(f"| {method} | {strength:g} | {seed} | {row} |", flush=True)


if __name__ == "__main__":
    main()
