"""Trees, by the options they are trained with; what this version of palmette does not know is skipped.

A new configuration is one line in ``TREES``. Beside the options of ``TreeModel.fit`` there is ``labels``: False trains
from the documents alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from palmette import Index, TreeModel, load_data
from palmette.arrays import as_floats
from palmette.errors import ConfigError
from palmette.methods.tree.search import LEAVES
from palmette.training.config import TrainingConfig

from .bench import COLUMNS, Bench, Floats, Measured, Meter, fold, overlaps

SHALLOW = {"depth": 6, "split": "cross_attention", "steps": 200, "batch_size": 64}
TREES: dict[str, dict[str, Any]] = {
    "tree": {},
    "tree, not trained": {"steps": 0},
    "tree, random start": {"start": "random"},
    "tree, in the encoder's space": {"space": "encoder"},
    "tree, without labels": {"labels": False},
    "tree, from the labels given": {"learn_from": "labels"},
    "tree, constant schedule": {"schedule": "constant"},
    "tree, linear schedule": {"schedule": "linear"},
    "tree, exponential schedule": {"schedule": "exponential"},
    "tree, matryoshka schedule": {"schedule": "matryoshka"},
    "tree, node dropout .1": {"dropout": 0.1},
    "tree, labels alone": {"distill": 0.0},
    "tree, distillation alone": {"distill": 1.0},
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

CHECKED, CLOSE = 200, 1e-4
"""Queries on which the index must agree, and how far its scores may be off (an index may keep fewer digits)."""


def missing(options: Mapping[str, Any], depth: int) -> str | None:
    """Why this version cannot train such a tree; ``None`` when it can."""
    config, training = TreeModel.config_class, TrainingConfig
    own = {key: value for key, value in options.items() if key != "labels"}
    if unknown := sorted(set(own) - {*config.choices(), *training.choices()}):
        return f"there is no option {', '.join(unknown)}"
    try:
        config(**{"depth": depth} | {key: own[key] for key in own if key in config.choices()})
        training(**{key: own[key] for key in own if key in training.choices()})
    except ConfigError as error:
        return str(error)
    return None


def tree(bench: Bench, seed: int, *, name: str, options: Mapping[str, Any]) -> Measured:
    """Train a tree and measure it at all its levels; the first seed also builds an index, which must agree."""
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
    levels = _levels(model)
    few = bench.texts("test")[:8]  # read together: in other batches an encoder's last digits are others
    leaves = model.embed(few, kind="query")
    for level in levels:  # a level is the sum of the next
        np.testing.assert_array_equal(model.embed(few, kind="query", level=level), fold(leaves, 2**level))
    sizes = [2**level for level in levels]
    scores = bench.judge(queries, documents, sizes, fold, overlaps)
    if seed == 0:
        with meter.part("index"):
            index = Index.in_memory(model)
            index.add(bench.data.corpus, progress=False)
        held = _held(index, bench)
        np.testing.assert_array_less(0.99, np.minimum(held, documents).sum(1))
        asked = model.embed(bench.texts("test")[:CHECKED], kind="query")
        for level in {levels[-1], levels[len(levels) // 2]}:
            _check(index, level, bench, asked, held)
    notes = {
        "options": dict(options),
        f"dev {model.record.metric}": model.record.metrics.get(model.record.metric),
        "best step": model.record.best_step,
    }
    return Measured({name: scores}, meter.seconds, meter.peak_mib, notes)


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


def _held(index: Index, bench: Bench) -> Floats:
    """The documents' leaves as the index has them: encoded in other batches, and kept in fewer digits."""
    with index.backend.read() as view:
        keys = view.keys()
        rows = [bench.data.rows[id] for id in view.ids(keys)]
        return as_floats(view.rows(LEAVES, keys))[np.argsort(rows)]


def _check(index: Index, level: int, bench: Bench, queries: Floats, documents: Floats) -> None:
    """The index must rank as plain arithmetic does: the same scores place by place, whatever the order of ties."""
    size = 2**level
    scores = overlaps(fold(queries, size), fold(documents, size))
    found = index.search(bench.texts("test")[:CHECKED], 10, lexical=0, sentences=False, level=level)
    for expected, hits in zip(scores, found, strict=True):
        rows, given = [bench.data.rows[hit.id] for hit in hits], [hit.evidence["own"] for hit in hits]
        np.testing.assert_allclose(given, expected[rows], atol=CLOSE)
        np.testing.assert_allclose(given, np.sort(expected)[::-1][: len(rows)], atol=CLOSE)
