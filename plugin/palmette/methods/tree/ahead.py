"""What learns ahead of the tree, in seconds: tried at several rates, kept as far as held-out queries bear it out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from palmette.training import Task, TrainingConfig, train

__all__ = ["learn_ahead"]


def learn_ahead(
    task: Task,
    config: TrainingConfig,
    rates: Sequence[float],
    *,
    passes: int,
    label: str,
    progress: bool | None,
) -> None:
    """Leave the best weights of all rates in ``task.module``: those before the first step, where nothing helps.

    Args:
        task: What to learn, with a validation.
        config: How, at most.
        rates: Peak rates to try.
        passes: Passes over few pairs at most.
        label: What the bars say.
        progress: Progress bars; ``None`` shows them on a terminal.
    """
    batches = math.ceil(task.size() / config.batch_size)
    config = config.replace(steps=min(config.steps, passes * batches))
    best, start = -math.inf, _weights(task)
    kept = start
    for rate in rates:
        task.module.load_state_dict(start)
        told = f"{label}, rate {rate:g}"
        # In this process alone: of several each comes to the same, and none waits for the others.
        run = train(
            task, config.replace(learning_rate=rate), device="cpu", alone=True, progress=progress, label=told
        )
        if run.metrics[task.metric] > best:
            best, kept = run.metrics[task.metric], _weights(task)
    task.module.load_state_dict(kept)


def _weights(task: Task) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.module.state_dict().items()}
