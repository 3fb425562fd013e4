"""Keyword options of every training, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = ["CommonOptions", "TrainingOptions"]


class CommonOptions(TypedDict, total=False):
    """What every ``fit`` takes, with one default."""

    clip: float
    """Largest gradient norm; 0 for none. Default: ``1.0``."""

    precision: Literal["auto", "float32", "bfloat16"]
    """``auto`` is bfloat16 on a GPU that has it, and on a CPU that has it where a transformer learns; else
    float32. Default: ``'auto'``.
    """

    evaluate_every: int | None
    """Steps between validations; ``None`` for ten in a run. Default: ``None``."""

    patience: int | None
    """Validations without a better metric after which training stops; ``None`` for never. Default: ``None``."""

    save_every: int | None
    """Steps between saved states (with an ``output_dir``); ``None`` for at each validation. Default: ``None``."""

    seed: int
    """Of everything random. Default: ``0``."""


class TrainingOptions(CommonOptions, total=False):
    """How to train; see :class:`TrainingConfig`."""

    steps: int
    """Optimiser steps at most. Default: ``1000``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``128``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``0.001``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.05``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'cosine'``."""
