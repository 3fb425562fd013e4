"""Options of the training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import Config, check_keys
from palmette.errors import ConfigError


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
    patience: Annotated[int, Field(ge=1)] | None = None
    """Validations without a better metric after which training stops; ``None`` for never."""
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
    kind: type[Config],
    defaults: Mapping[str, Any],
    config: Config | Mapping[str, Any] | None,
    preset: str | None,
    training: TrainingConfig | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    owner: str | None = None,
) -> tuple[Any, TrainingConfig]:
    """Configs of method and loop: defaults, then the preset, then given configs, then single options."""
    own, loop = kind.choices(), TrainingConfig.choices()
    owner = owner or f"{kind.__name__.removesuffix('Config')}Model"
    check_keys(f"{owner}.fit", options, [*own, *loop])
    chosen = kind.preset(preset) | _set_options(config, kind)
    paced = {**defaults, **{name: chosen.pop(name) for name in loop if name in chosen}}
    paced |= _set_options(training, TrainingConfig)
    for name, value in options.items():
        (chosen if name in own else paced)[name] = value
    return kind(**chosen), TrainingConfig(**paced)


def _set_options(config: Config | Mapping[str, Any] | None, kind: type[Config]) -> dict[str, Any]:
    """Options set in a config or a mapping; defaults of a config that were not touched do not count."""
    if config is None:
        return {}
    if isinstance(config, kind):
        return {name: getattr(config, name) for name in config.model_fields_set}
    if isinstance(config, Mapping):
        check_keys(kind.__name__, config, kind.choices())
        return dict(config)
    raise ConfigError(f"give a {kind.__name__} or a mapping of its options, got {type(config).__name__}")
