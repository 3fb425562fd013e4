"""Keyword options of ``PathsModel.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal

from palmette.training import CommonOptions

__all__ = ["PathsOptions"]


class PathsOptions(CommonOptions, total=False):
    """What ``PathsModel.fit`` takes; see :class:`PathsConfig` and :class:`PathsTraining`."""

    branches: int | None
    """Children B of every node; ``None`` takes as many as give about 2√N leaves for N documents. Default:
    ``None``.
    """

    height: int
    """Heights H of the tree, which has B^H leaves. Default: ``1``."""

    per_document: int
    """Leaves that every document goes to (d2l). Default: ``1``."""

    start: Literal["kmeans", "random"]
    """The indexer begins as a ``kmeans`` of the corpus, of what is left of it at every further height, or at
    ``random`` as in the paper, from where leaves tend to collapse. Default: ``'kmeans'``.
    """

    sharpness: float
    """Factor of the start's similarities under the softmax. Default: ``40.0``."""

    semantic: float
    """λ₁, weight of the loss on embeddings. Default: ``1.0``."""

    indexing: float
    """λ₂, weight of the same loss on path embeddings. Default: ``0.8``."""

    intra_leaf: float
    """λ₃, weight of the loss that keeps unlike documents out of one leaf. Default: ``0.2``."""

    intra_leaf_form: Literal["triplet", "product"]
    """The ``triplet`` anchored on the relevant document (the paper's algorithm), or the plain ``product`` of
    two documents' path embeddings (its equation). Default: ``'triplet'``.
    """

    margin: float
    """γ of all triplets. Default: ``0.3``."""

    similar: float
    """τ: documents whose cosine reaches it may share a leaf. Default: ``0.9``."""

    balance: float
    """Weight of a term that asks for equally full leaves. Default: ``0.0``."""

    capacity: float
    """How many documents a leaf is expected to hold at most, as a multiple of equally full leaves: fuller ones
    are made less attractive; 0 for no limit. With 1.15 leaves begin even and stay so, and searches take
    equally long, but documents that come in dense groups are torn apart. Default: ``2.0``.
    """

    negatives: Literal["in-batch", "leaves", "nearest"]
    """Wrong answers beside those of the batch: none (``in-batch``), from the ``leaves`` that the query goes
    to, or its ``nearest`` documents wherever they lie. Default: ``'in-batch'``.
    """

    refresh: int
    """Epochs between two searches for them. Default: ``5``."""

    nearness: float
    """How much the cosine of a query and a leaf's mean document counts, times ``sharpness``, beside the log of
    the leaf's probability, when leaves to visit are put in order; 0 for the paper's order. A trained
    probability says little about the leaves far down. Default: ``0.4``.
    """

    indexer_rate: float
    """Learning rate of the indexer, as a multiple of that of the rest. Default: ``1.0``."""

    encoder_learns: Literal["nothing", "last", "all"]
    """The encoder's ``last`` layer, or ``all`` of it; a checkpoint then holds its weights. With ``nothing``, a
    linear map on its embeddings learns alone, which takes minutes on a CPU. Default: ``'nothing'``.
    """

    encoder_rate: float
    """Its learning rate, as a multiple of that of the map. Default: ``0.1``."""

    steps: int
    """Optimiser steps at most. Default: ``600``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``64``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``0.0003``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.05``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'cosine'``."""
