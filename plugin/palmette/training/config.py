"""Options of the training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import Config, check_keys


class TrainingConfig(Config):
    """Options of the training loop."""

    steps: Annotated[int, Field(ge=0)] = 1000
    """Optimiser steps at most."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Pairs per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Decoupled weight decay of matrices (never of biases and scales)."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the steps in which the rate rises."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls afterwards, to zero at the last step."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 for none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto`` is bfloat16 on a GPU that has it, and on a CPU that is faster with it where a transformer learns; else
    float32.
    """
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between validations, at each of which the state is saved (with an ``output_dir``); ``None`` for ten in a
    run.
    """
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of everything random."""

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


def fit_configs(
    kind: type[Config], defaults: Mapping[str, Any], preset: str | None, options: Mapping[str, Any], owner: str = ""
) -> tuple[Any, TrainingConfig]:
    """Configs of method and loop: defaults, then the preset, then single options."""
    own, loop = kind.choices(), TrainingConfig.choices()
    owner = owner or f"{kind.__name__.removesuffix('Config')}Model"
    check_keys(f"{owner}.fit", options, [*own, *loop])
    chosen = {**defaults, **kind.preset(preset), **options}
    of_method, of_loop = ({name: chosen[name] for name in names if name in chosen} for names in (own, loop))
    return kind(**of_method), TrainingConfig(**of_loop)
