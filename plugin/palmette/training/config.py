"""How to train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError

__all__ = ["TrainingConfig"]


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How to train.

    Attributes:
        steps: Optimiser steps at most.
        batch_size: Pairs per step (and per process).
        learning_rate: Peak rate of AdamW.
        weight_decay: Decoupled weight decay of matrices (never of biases and scales).
        warmup: Share of the steps in which the rate rises.
        decay: How the rate falls afterwards, to zero at the last step.
        clip: Largest gradient norm; 0 for none.
        precision: ``auto`` is bfloat16 on a GPU that has it, and on a CPU that has it where a transformer learns; else
            float32.
        evaluate_every: Steps between validations; ``None`` for ten in a run.
        patience: Validations without a better metric after which training stops; ``None`` for never.
        save_every: Steps between saved states (with an ``output_dir``); ``None`` for at each validation.
        seed: Of everything random.
    """

    steps: int = 1000
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup: float = 0.05
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    clip: float = 1.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    evaluate_every: int | None = None
    patience: int | None = None
    save_every: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Ranges."""
        for name, low, high in (
            ("steps", 0, 1e9),
            ("batch_size", 2, 1e7),
            ("weight_decay", 0, 1e3),
            ("warmup", 0, 1),
            ("clip", 0, 1e9),
            ("evaluate_every", 1, 1e9),
            ("patience", 1, 1e9),
            ("save_every", 1, 1e9),
            ("seed", 0, 2**31 - 1),
        ):
            check_range("training", name, getattr(self, name), low, high)
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"training: learning_rate must be above 0, got {self.learning_rate!r}")

    @property
    def interval(self) -> int:
        """Steps between validations."""
        return self.evaluate_every or max(1, math.ceil(self.steps / 10))

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0 ≤ step < steps."""
        rise = round(self.warmup * self.steps)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        done = (step - rise) / max(1, self.steps - rise)
        factor = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}
        return self.learning_rate * factor[self.decay]
