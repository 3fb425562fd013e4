"""Trees, by the options they are trained with.

A new configuration is one line in ``TREES``. Beside the options of ``TreeModel.fit`` there is ``labels``: False trains
from the documents alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette import Index, TreeModel, load_data
from palmette.errors import ConfigError

from .bench import COLUMNS, Bench, Measured, Meter, fold, overlaps

SHALLOW = {"depth": 6, "split": "cross_attention", "steps": 200, "batch_size": 64}
TREES: dict[str, dict[str, Any]] = {
    "tree": {},
    "tree, not trained": {"steps": 0},
    "tree, random start": {"start": "random"},
    "tree, without labels": {"labels": False},
    "tree, constant schedule": {"schedule": "constant"},
    "tree, linear schedule": {"schedule": "linear"},
    "tree, exponential schedule": {"schedule": "exponential"},
    "tree, matryoshka schedule": {"schedule": "matryoshka"},
    "tree, node dropout .1": {"dropout": 0.1},
    "tree, sharpness .1": {"sharpness": 0.1},
    "tree, sharpness 1": {"sharpness": 1.0},
    "tree, sharpness 3": {"sharpness": 3.0},
    "tree, sharpness 10": {"sharpness": 10.0},
    "tree, mlp": {"split": "mlp"},
    "tree, cross-attention": {"split": "cross_attention", "steps": 200, "batch_size": 64},
    "tree, cross-attention, random start": {
        "split": "cross_attention",
        "start": "random",
        "steps": 200,
        "batch_size": 64,
    },
    "tree, depth 6": {"depth": 6, "steps": 200, "batch_size": 64},
    "tree, depth 6, cross-attention": SHALLOW,
    "tree, depth 6, cross-attention, linear then mean": SHALLOW | {"aggregation": "linear_then_mean"},
    "tree, depth 6, cross-attention, mean then linear": SHALLOW | {"aggregation": "mean_then_linear"},
    "tree, learned propagation": {"propagation": "learned"},
    "no tree": {"propagation": "none", "schedule": "constant"},
}


def tree(bench: Bench, seed: int, *, name: str, options: Mapping[str, Any]) -> Measured:
    """Train a tree, measure it at all its levels, and index the documents."""
    chosen = {"depth": bench.depth, "steps": bench.steps} | dict(options)
    labelled = chosen.pop("labels", True)
    data = bench.data if labelled else load_data(list(bench.data.corpus), seed=seed)
    meter = Meter()
    with meter.part("train"):
        model = TreeModel.fit(
            data,
            encoder=bench.encoder,
            cache=bench.encoder.cache,
            device=bench.device,
            seed=seed,
            progress=False,
            **chosen,
        )
    documents = model.embed([document.content for document in bench.data.corpus])  # [N, 2^D]
    queries = {split: model.embed(bench.texts(split), kind="query") for split in bench.queries}
    scores = bench.judge(queries, documents, [2**level for level in _levels(model)], fold, overlaps)
    with meter.part("index"):
        Index.in_memory(model).add(bench.data.corpus, progress=False)
    notes = {
        "options": dict(options),
        f"dev {model.record.metric}": model.record.metrics.get(model.record.metric),
        "best step": model.record.best_step,
    }
    return Measured({name: scores}, meter.seconds, notes)


def _levels(model: TreeModel) -> list[int]:
    """The levels that can be searched: all of a tree's, one where there is no tree."""
    found = []
    for level in range(1, model.config.depth + 1):
        try:
            model.search_options({"level": level})
        except ConfigError:
            continue
        found.append(level)
    return [level for level in found if 2**level in COLUMNS]
