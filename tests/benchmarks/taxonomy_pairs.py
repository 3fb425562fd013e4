"""Taxonomy models of plain pairs, without a hierarchy: nDCG@10 on training queries that were kept away.

    python tests/benchmarks/taxonomy_pairs.py FOLDER [--seeds 0 1 2] [--set dimension=64 learning_rate=1e-4 …]

FOLDER is a BEIR folder. A quarter of its training queries, 1,000 at most, is what options are chosen by: neither
training nor its validation sees them, and the test split stays untouched.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from palmette import RetrievalData, TaxonomyModel, load_data, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.methods.taxonomy.config import TRAINING, TaxonomyConfig
from palmette.methods.taxonomy.data import TaxonomyData
from palmette.metrics import score_run
from palmette.training.config import TrainingConfig


def settings(given: list[str]) -> dict[str, Any]:
    """``name=value`` as options: numbers as numbers, the rest as words."""
    found: dict[str, Any] = {}
    for word in given:
        name, _, value = word.partition("=")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def ndcg(queries: torch.Tensor, documents: torch.Tensor, data: RetrievalData, judged: Any) -> float:
    """Of an exact search."""
    best = torch.cat([(part @ documents.T).topk(10, dim=1).indices for part in queries.split(256)])
    run = {id: [data.corpus[row].key for row in rows] for id, rows in zip(judged, best.tolist(), strict=True)}
    return score_run(run, judged, ks=(10,))["ndcg@10"]


def main() -> None:
    """One row per seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-titles", action="store_true")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--cache")
    args = parser.parse_args()
    encoder, cache = load_encoder(args.encoder), EncodingCache(args.cache)
    full, options = load_data(args.folder, titles=not args.no_titles), settings(args.set)
    loop = {name: value for name, value in options.items() if name in TrainingConfig.names()}
    own = {name: value for name, value in options.items() if name not in loop}
    print("| seed | encoder | taxonomy | best step |\n|---:|---:|---:|---:|", flush=True)
    for seed in args.seeds:
        train = dict(full.qrels["train"])
        drawn = np.random.default_rng(100 + seed).permutation(sorted(train))
        held = {id: train.pop(id) for id in drawn[: min(1000, len(drawn) // 4)].tolist()}
        data = TaxonomyData.load(replace(full, qrels={**full.qrels, "train": train}, remainders={}))
        _, task = TaxonomyModel.task(TaxonomyConfig(**own), data, encoder, cache, seed=seed, progress=False)
        trained = train(task, TrainingConfig(**{**TRAINING, **loop}, seed=seed), progress=False)
        asked = torch.from_numpy(cache.encode(encoder, [full.queries[id] for id in held], kind="query"))
        documents = task.document_inputs
        assert documents is not None
        with torch.inference_mode():
            mine = ndcg(task.module.queries(asked), task.module.node_vectors, full, held)
        plain = ndcg(asked, documents, full, held)
        print(f"| {seed} | {plain:.4f} | {mine:.4f} | {trained.best_step} |", flush=True)


if __name__ == "__main__":
    main()
