"""Keyword options of ``Reader.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal

from palmette.training import CommonOptions

__all__ = ["ReaderOptions"]


class ReaderOptions(CommonOptions, total=False):
    """What ``Reader.fit`` takes; see :class:`ReaderConfig` and :class:`ReaderTraining`."""

    unit: Literal["span", "sentence"]
    """What an answer is: a ``span`` of words, found by an encoder that reads question and passage together and
    is trained for it, or a whole ``sentence``, chosen by a few learned weights over the frozen encoder's
    similarities, which takes seconds and needs no answers to learn from. Default: ``'span'``.
    """

    max_length: int
    """Tokens of question and passage together; longer passages are read in windows. Default: ``128``."""

    overlap: int
    """Passage tokens that two neighbouring windows share. Default: ``32``."""

    max_answer: int
    """Tokens of an answer at most. Default: ``30``."""

    max_question: int
    """Tokens of a question that are read. Default: ``48``."""

    trained_layers: int | None
    """How many of the encoder's layers learn, from the top; ``None`` for all. Fewer train faster and make a
    smaller checkpoint. Word embeddings never learn. Default: ``None``.
    """

    dropout: float
    """Share of hidden values left out in training. Default: ``0.1``."""

    passages: int
    """Passages read for each training question: one that answers it, the others as a retriever finds them.
    Default: ``1``.
    """

    absent: float
    """Share of the training questions whose own passage is withheld, so that no answer is right. Default:
    ``0.15``.
    """

    steps: int
    """Optimiser steps at most. Default: ``600``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``16``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``0.0002``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.01``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.1``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'linear'``."""
