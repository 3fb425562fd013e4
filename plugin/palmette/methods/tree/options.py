"""Keyword options of ``TreeModel.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal

from palmette.training import CommonOptions

__all__ = ["TreeOptions"]


class TreeOptions(CommonOptions, total=False):
    """What ``TreeModel.fit`` takes; see :class:`TreeConfig` and :class:`TreeTraining`."""

    depth: int
    """Levels D of split nodes; the finest representation has 2^D columns. Default: ``10``."""

    split: Literal["linear", "mlp", "cross_attention"]
    """What scores a text at a node: a hyperplane on the embedding (``linear``), a small network shared by all
    nodes (``mlp``), or learned node embeddings that attend to the text's tokens (``cross_attention``).
    Default: ``'linear'``.
    """

    aggregation: Literal["mean_then_linear", "linear_then_mean", "tree"]
    """How a node's attention output becomes a score (``cross_attention`` only): the mean of its embeddings'
    outputs through one shared linear map, one linear map per node and the mean of the scores, or the latter
    refined by a small network over the scores of the node and its ancestors (``tree``). Default:
    ``'tree'``.
    """

    propagation: Literal["product", "learned", "none"]
    """How scores become probabilities: the ``product`` of the turns on the way, a ``learned`` function of them
    for each leaf, or ``none``: no tree, one score per leaf. Default: ``'product'``.
    """

    schedule: Literal[
        "constant", "stochastic", "stochastic_linear", "uniform", "linear", "exponential", "matryoshka"
    ]
    """Which level a step trains. ``constant``: the leaves. ``stochastic``: one drawn with P(h) ∝ h² (∝ h for
    ``stochastic_linear``, equal for ``uniform``), which makes the coarse levels good. ``linear``,
    ``exponential``: from the root down while training goes on, a level at a time or doubling.
    ``matryoshka``: all at once. Default: ``'stochastic'``.
    """

    start: Literal["principal", "random"]
    """``principal`` begins from the corpus's principal directions, so that the untrained tree already keeps
    the encoder's geometry (other splits than linear then add to that); ``random`` as in the paper. Default:
    ``'principal'``.
    """

    space: Literal["adapted", "encoder"]
    """What the splits measure: the encoder's embeddings (``encoder``), or those after a linear map that is
    learned from the pairs before the tree begins (``adapted``). Default: ``'adapted'``.
    """

    learn_from: Literal["auto", "labels", "documents"]
    """The pairs that are given (``labels``), or questions made of the documents (``documents``), as where no
    pairs are given. ``auto``: the pairs, but where the map that they teach serves the held-out questions no
    better than none, and one of made questions clearly does, these; without a map to learn, the pairs.
    Default: ``'auto'``.
    """

    sharpness: float
    """Steepness of the root's split at the start. Gentle trees keep the encoder's distances; sharp ones put a
    text into few leaves, which makes topics crisper. Default: ``0.3``.
    """

    growth: float
    """Factor by which slopes grow from level to level at the start. At √2 every direction counts as much as
    any other: a node holds half the columns of its parent, and columns add up by their squares. Default:
    ``1.414``.
    """

    upper: int
    """Levels whose splits learn ahead of the others, all these levels at once, which is what makes the small
    representations good; 0 for none. (With ``start="principal"`` and a tree.). Default: ``5``.
    """

    distill: float
    """Share of the loss that teaches the cosines of that space; the rest teaches the pairs. Default: ``0.5``."""

    temperature: float
    """Of the cosines in that share. Default: ``0.05``."""

    l1: float
    """Weight of the L1 norm of the representation's square roots, which is least when a text sits in one leaf.
    (The probabilities' own L1 norm is always 1.). Default: ``0.0``.
    """

    dropout: float
    """Probability of dropping a node's score in training. Default: ``0.0``."""

    hidden: int
    """Width of the ``mlp`` split's hidden layer. Default: ``128``."""

    heads: int
    """Attention heads of the ``cross_attention`` split. Default: ``8``."""

    head_width: int
    """Width of one head. Default: ``64``."""

    node_embeddings: int
    """Learned embeddings per node. Default: ``1``."""

    split_dropout: float
    """Dropout inside the ``mlp`` split. Default: ``0.2``."""

    steps: int
    """Optimiser steps at most. Default: ``1000``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``128``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``0.0005``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.05``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'cosine'``."""
