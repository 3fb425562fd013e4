"""One training loop for all methods.

A method says *what* is learned in a :class:`Task` (module, loss of a batch, validation, stages); the loop says *how*:
AdamW with warm-up and decay, clipping, mixed precision, early stopping on a retrieval metric with the best weights
restored, a JSON log, and a resume that ends where an unbroken run would have ended. Every random draw is a function of
(seed, step), so nothing but the step has to be remembered to draw the same numbers again.

Several GPUs: start the same command with ``accelerate launch``; every process draws its own batches and the gradients
are averaged. The main process validates and saves.
"""

from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, Task, TrainingResult, train

__all__ = [
    "Stage",
    "Task",
    "TrainingConfig",
    "TrainingResult",
    "train",
]
