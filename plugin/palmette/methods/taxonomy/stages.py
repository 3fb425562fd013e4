"""Training in one stage or two, and what is measured once it is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.methods.taxonomy.calibration import AT_ONCE, FAR, fit_cut, widest_gaps
from palmette.methods.taxonomy.data import DEV, Asked
from palmette.methods.taxonomy.sampling import Sampler
from palmette.methods.taxonomy.task import TaxonomyTask
from palmette.training import Trained, TrainingConfig, train

__all__ = ["finish", "run"]

JUDGED = 64
"""Results beyond its matches that a query's cut-off is calibrated on."""


def run(task: TaxonomyTask, training: TrainingConfig, **how: Any) -> Trained:
    """Train, finetune where the recipe says so, and finish the module."""
    config = task.module.config
    if config.recipe == "joint":
        trained = train(task, training, **how)
    else:
        late = round(training.steps * config.finetune_share)
        first = train(task, training.replace(steps=training.steps - late), **how)
        far = replace(
            task,
            sampler=Sampler(task.lessons.train.matches, "heavy-tail"),
            multiplier=task.multiplier * config.finetune_multiplier,
            hard=0,
        )
        folder = how.pop("output_dir", None)
        second = train(
            far,
            training.replace(steps=late, learning_rate=training.learning_rate * config.finetune_rate),
            output_dir=None if folder is None else Path(folder) / "finetune",
            **how | {"label": how.get("label", "train") + ", far matches"},
        )
        trained = replace(
            second,
            steps=first.steps + second.steps,
            best_step=first.steps + second.best_step,
            seconds=first.seconds + second.seconds,
            history=first.history + second.history,
        )
    return replace(trained, metrics={**trained.metrics, **finish(task)})


@torch.no_grad()
def finish(task: TaxonomyTask) -> dict[str, float]:
    """Keep the nodes' embeddings and the calibration; say how good the cut-off is on queries it was not fitted to."""
    module = task.module
    nodes = task.nodes()
    if len(module.vectors):
        module.vectors.copy_(nodes)
    asked, inputs = task.lessons.dev, task.inputs.dev
    if len(asked) < 20:  # too few to calibrate by
        rows = np.linspace(0, task.size() - 1, min(DEV, task.size())).astype(np.int64)
        asked = task.lessons.train.take(rows)
        inputs = task.inputs.train[torch.from_numpy(rows).to(task.inputs.train.device)]
    queries = module.queries(inputs) * module.config.multiplier
    deep = 2 * int(task.lessons.train.matches.counts.max())
    gaps, scores, relevant = _judged(queries, nodes, asked, deep)
    odd = torch.arange(len(queries), device=queries.device) % 2 == 1
    fitted = fit_cut(gaps[~odd], scores[~odd], relevant[~odd])
    kept = fitted[0] * gaps[odd].clamp(-FAR, FAR) + fitted[1] * scores[odd] + fitted[2] >= 0
    right = float((kept & relevant[odd]).sum())
    module.cut[:3] = fit_cut(gaps, scores, relevant)
    module.cut[3] = deep
    wanted = int(asked.matches.counts[1::2].sum())
    return {"cut precision": right / max(1, int(kept.sum())), "cut recall": right / max(1, wanted)}


def _judged(
    queries: torch.Tensor, nodes: torch.Tensor, asked: Asked, deep: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each query's best documents [Q, k]: the gaps under them, their scores, and which of them match."""
    k = min(len(nodes), int(asked.matches.counts.max()) + JUDGED)
    places, gaps, best = [], [], []
    for part in torch.split(queries, AT_ONCE):
        scores = part @ nodes.T  # [B, N]
        top = scores.topk(k, dim=1)
        places.append(top.indices)
        best.append(top.values)
        gaps.append(widest_gaps(top.values, scores, deep))
    found = torch.cat(places).cpu().numpy()  # [Q, k]
    size = asked.matches.size
    keys = asked.matches.owners * size + asked.matches.documents  # ascending
    wanted = np.arange(len(found))[:, None] * size + found
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return torch.cat(gaps), torch.cat(best), torch.from_numpy(keys[at] == wanted).to(queries.device)
