"""Training, and what is measured and kept once it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.methods.paths.capacity import level_out
from palmette.methods.paths.curve import SHARES
from palmette.methods.paths.facts import Facts
from palmette.methods.paths.health import load
from palmette.methods.paths.keywords import keywords_of
from palmette.methods.paths.routing import Router
from palmette.methods.paths.task import LOADED, PathsTask
from palmette.training import Trained, TrainingConfig, train

__all__ = ["run"]

PART = 4096


def run(task: PathsTask, training: TrainingConfig, **how: Any) -> Trained:
    """Train, and complete the module and the task's facts."""
    task.expect(training)
    trained = train(task, training, **how)
    loads = tuple(
        {
            "step": entry["step"],
            "epoch": round(entry["step"] / task.steps_per_epoch, 2),
            **_loaded(entry["metrics"]),
        }
        for entry in trained.history
        if entry.get("metrics")
    )
    finish(task)
    task.facts = replace(task.facts, loads=loads)
    return trained


def _loaded(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix(LOADED): value for name, value in metrics.items() if name.startswith(LOADED)}


@torch.no_grad()
def finish(task: PathsTask) -> None:
    """Level the leaves; keep their themes, the recall curve, the load and the keywords."""
    module, config = task.module, task.module.config
    vectors = _vectors(task)
    if config.capacity:
        level_out(module.indexer, vectors, config.capacity, config.sharpness)
    parts = [module.indexer.beam(part, config.per_document).leaves for part in torch.split(vectors, PART)]
    leaves = torch.cat(parts)  # [N, l]
    sums = torch.zeros_like(module.centres).index_add_(0, leaves[:, 0], vectors)
    counts = torch.bincount(leaves[:, 0], minlength=config.leaves)
    module.centres.copy_(sums / counts.clamp(min=1)[:, None])
    curve = {} if task.held_out is None else task.measured(SHARES, Router(module))[0]
    documents, queries = keywords_of(
        task.pairs.data, leaves[:, 0].cpu().numpy(), *_asked(task), Router(module).path_of
    )
    filled = load(np.bincount(leaves.cpu().numpy().ravel(), minlength=config.leaves))
    task.facts = Facts(curve, filled, documents=documents, queries=queries)


def _vectors(task: PathsTask) -> Tensor:
    """[N, m] of the whole corpus."""
    corpus = task.inputs.document_embeddings(np.arange(len(task.pairs.data.corpus)))
    return torch.cat([task.module.embed(part) for part in torch.split(corpus, PART)])


def _asked(task: PathsTask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The training's queries, and the likeliest leaf of each."""
    rows = np.unique(task.pairs.query_rows)
    embedded = task.module.embed(task.inputs.query_embeddings(rows))
    return rows, task.module.indexer.beam(embedded, 1).leaves[:, 0].cpu().numpy()
