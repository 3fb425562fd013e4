"""One training loop for all methods.

A method's :class:`Task` says what is learned: module, loss of a batch, validation, stages. The loop says how: AdamW
with warm-up and decay, clipping, mixed precision, the best weights restored, a JSON log, and a
resume that ends where an unbroken run would have ended: every random draw is a function of (seed, step).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palmette.training.config import TrainingConfig
    from palmette.training.loop import Stage, Task, TrainingResult, Untrained, train

__all__ = ["Stage", "Task", "TrainingConfig", "TrainingResult", "Untrained", "train"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: the loop imports torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "config" if name == "TrainingConfig" else "loop"
    return getattr(import_module(f"{__name__}.{module}"), name)
