"""Keyword options of ``LayersModel.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal

from palmette.training import CommonOptions

__all__ = ["LayersOptions"]


class LayersOptions(CommonOptions, total=False):
    """What ``LayersModel.fit`` takes; see :class:`LayersConfig` and :class:`LayersTraining`."""

    layers: tuple[int, ...] | None
    """The layers that ask, 1 for the first; ``None`` for all. Default: ``None``."""

    depth: int
    """Transformer layers in a retrieval network (copies: fewer than the encoder has left). Default: ``2``."""

    width: int | None
    """Their width; ``None`` for the encoder's. Default: ``None``."""

    heads: int | None
    """Their attention heads; ``None`` for the encoder's, or one for 32 columns. Default: ``None``."""

    dropout: float
    """Inside them, while they are trained. Default: ``0.1``."""

    start: Literal["encoder", "random"]
    """``encoder`` begins as near to the encoder's own query as a layer can come: the networks are copies of
    its last layers (of its width, with the skip ``inside``), or add what they learn to a linear map of the
    layer; the last layer begins with the encoder's own query, the one before it with a linear map.
    ``random`` is the paper's. Default: ``'encoder'``.
    """

    skip: Literal["inside", "outside"]
    """The second skip of a network's layers: ``inside`` the layer norm as in BERT, ``outside`` as in the
    paper. Default: ``'inside'``.
    """

    pooling: Literal["both", "mean", "cls"]
    """What of a network's output becomes the query: the ``mean`` of its tokens, the one at ``cls`` (the
    paper's), or a linear map of ``both``. Default: ``'both'``.
    """

    trains: Literal["heads", "all"]
    """The ``heads`` alone, the linear maps at the end, or ``all`` of the networks. Default: ``'heads'``."""

    schedule: Literal["together", "one by one"]
    """Whether the networks are trained ``together`` or ``one by one``. Default: ``'together'``."""

    similarity: Literal["cosine", "inner_product"]
    """``cosine`` of query and document, or their ``inner_product``. Default: ``'cosine'``."""

    multiplier: float
    """What similarities are multiplied by in the loss. Default: ``20.0``."""

    negatives: int
    """Documents drawn at random for each step, besides those of the batch's other queries. Default: ``0``."""

    steps: int
    """Optimiser steps at most. Default: ``200``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``128``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``1e-05``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.05``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'cosine'``."""
