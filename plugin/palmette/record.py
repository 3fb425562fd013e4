"""What a checkpoint remembers of its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from palmette.config import Config
from palmette.data import RetrievalData
from palmette.training import Task, Trained, TrainingConfig

__all__ = ["Record"]


class Record(Config):
    """Where a model comes from: what it was trained on, how, what it reached, and how it was changed since."""

    data: str = "unknown"
    documents: int = 0
    pairs: int = 0
    labelled: bool = True
    made: bool = False
    """Whether the questions that trained were made of the documents although pairs were given."""
    steps: int = 0
    best_step: int | None = None
    """The step after which the weights were kept: 0 where held-out queries found none better than the start."""
    seconds: float = 0.0
    metric: str = ""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    training: Mapping[str, Any] = Field(default_factory=dict)
    changes: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def after(cls, data: RetrievalData, training: TrainingConfig, task: Task, trained: Trained) -> Self:
        """Of a run that has ended."""
        return cls(
            data=data.name,
            documents=len(data.corpus),
            pairs=task.size(),
            labelled=data.labelled,
            steps=trained.steps,
            best_step=trained.best_step,
            seconds=round(trained.seconds, 1),
            metric=task.metric,
            metrics={name: round(float(value), 6) for name, value in trained.metrics.items()},
            training=training.to_dict(),
        )

    def changed(self, change: Mapping[str, Any], metric: str, metrics: Mapping[str, float]) -> Self:
        """The same with one more change, after which the model reached these metrics."""
        rounded = {name: round(float(value), 6) for name, value in metrics.items()}
        return self.replace(metric=metric, metrics=rounded, changes=(*self.changes, change))
