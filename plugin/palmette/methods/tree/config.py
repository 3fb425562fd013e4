"""Options of the tree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError
from palmette.methods.tree.shape import Shape

__all__ = ["TRAINING", "Schedule", "Split", "TreeConfig", "TreeSearch"]

Split = Literal["linear", "mlp", "cross_attention"]
Aggregation = Literal["mean_then_linear", "linear_then_mean", "tree"]
Propagation = Literal["product", "learned", "none"]
Schedule = Literal[
    "constant", "stochastic", "stochastic_linear", "uniform", "linear", "exponential", "matryoshka"
]
Start = Literal["principal", "random"]
Space = Literal["adapted", "encoder"]
LearnFrom = Literal["auto", "labels", "documents"]


class TreeConfig(Config):
    """What tree to train."""

    depth: Annotated[int, Field(ge=1, le=14)] = 10
    """Levels D of split nodes; the finest representation has 2^D columns."""
    split: Split = "linear"
    """What scores a text at a node: a hyperplane on the embedding (``linear``), a small network shared by all
    nodes (``mlp``), or learned node embeddings that attend to the text's tokens (``cross_attention``).
    """
    aggregation: Aggregation = "tree"
    """How a node's attention output becomes a score (``cross_attention`` only): the mean of its embeddings'
    outputs through one shared linear map, one linear map per node and the mean of the scores, or the
    latter refined by a small network over the scores of the node and its ancestors (``tree``).
    """
    propagation: Propagation = "product"
    """How scores become probabilities: the ``product`` of the turns on the way, a ``learned`` function of
    them for each leaf, or ``none``: no tree, one score per leaf.
    """
    schedule: Schedule = "stochastic"
    """Which level a step trains. ``constant``: the leaves. ``stochastic``: one drawn with P(h) ∝ h² (∝ h for
    ``stochastic_linear``, equal for ``uniform``), which makes the coarse levels good. ``linear``,
    ``exponential``: from the root down while training goes on, a level at a time or doubling.
    ``matryoshka``: all at once.
    """
    start: Start = "principal"
    """``principal`` begins from the corpus's principal directions, so that the untrained tree already keeps
    the encoder's geometry (other splits than linear then add to that); ``random`` as in the paper.
    """
    space: Space = "adapted"
    """What the splits measure: the encoder's embeddings (``encoder``), or those after a linear map that is
    learned from the pairs before the tree begins (``adapted``).
    """
    learn_from: LearnFrom = "auto"
    """The pairs that are given (``labels``), or questions made of the documents (``documents``), as where no
    pairs are given. ``auto``: the pairs, but where the map that they teach serves the held-out questions
    no better than none, and one of made questions clearly does, these; without a map to learn, the pairs.
    """
    sharpness: Annotated[float, Field(gt=0)] = 0.3
    """Steepness of the root's split at the start. Gentle trees keep the encoder's distances; sharp ones put a
    text into few leaves, which makes topics crisper.
    """
    growth: Annotated[float, Field(gt=0)] = 1.414
    """Factor by which slopes grow from level to level at the start. At √2 every direction counts as much as
    any other: a node holds half the columns of its parent, and columns add up by their squares.
    """
    upper: Annotated[int, Field(ge=0, le=14)] = 5
    """Levels whose splits learn ahead of the others, all these levels at once, which is what makes the small
    representations good; 0 for none. (With ``start="principal"`` and a tree.)
    """
    distill: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the loss that teaches the cosines of that space; the rest teaches the pairs."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """Of the cosines in that share."""
    l1: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the L1 norm of the representation's square roots, which is least when a text sits in one
    leaf. (The probabilities' own L1 norm is always 1.)
    """
    dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    """Probability of dropping a node's score in training."""
    hidden: Annotated[int, Field(ge=1, le=100000)] = 128
    """Width of the ``mlp`` split's hidden layer."""
    heads: Annotated[int, Field(ge=1, le=1000)] = 8
    """Attention heads of the ``cross_attention`` split."""
    head_width: Annotated[int, Field(ge=1, le=10000)] = 64
    """Width of one head."""
    node_embeddings: Annotated[int, Field(ge=1, le=1000)] = 1
    """Learned embeddings per node."""
    split_dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.2
    """Dropout inside the ``mlp`` split."""
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""
    token_width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of its token states, where the split reads them (filled in by ``fit``)."""
    closed: Annotated[tuple[int, ...], FILLED_IN] = ()
    """Nodes that do not split although they lie above the last level (filled in by ``grow``, ``prune``)."""

    def check(self) -> None:
        """Ranges, and what goes together."""
        if self.closed and self.propagation != "product":
            raise ConfigError(f"tree: closed nodes need propagation='product', got {self.propagation!r}")

    @cached_property
    def shape(self) -> Shape:
        """Which nodes there are."""
        return Shape(self.depth, self.closed)

    @property
    def scored(self) -> int:
        """How many scores a text gets: one per split node, or one per leaf where there is no tree."""
        return self.leaves if self.propagation == "none" else len(self.shape.splits)

    @property
    def leaves(self) -> int:
        """Columns of the finest level."""
        return self.shape.leaves

    @property
    def reads_tokens(self) -> bool:
        """Whether the split reads token states besides the embedding."""
        return self.split == "cross_attention"


TRAINING: Mapping[str, Any] = {"learning_rate": 5e-4}
"""Defaults of the training loop."""


class TreeSearch(Config):
    """Options of one search in a tree."""

    level: int | Literal["auto"] | None = None
    """Level to compare at, 1 … depth; ``None`` for the leaves; ``auto`` for the smallest level that lost at
    most ``tolerance`` of the best level's validation quality when the tree was trained.
    """
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """That share, for ``level="auto"``."""
    within: Literal["all", "global", "greedy"] = "all"
    """Compare with every document (``all``), or only with those whose own most probable leaf is among the
    query's ``probe`` most probable ones (``global``) or is reached from the root by always taking the
    likelier turn (``greedy``), as cluster trees search. Approximate, and here for comparison.
    """
    probe: Annotated[int, Field(ge=1)] = 1
    """Leaves that ``within="global"`` looks into."""
    rerank: Literal["encoder", "adapted"] | None = None
    """Scores the ``shortlist`` best anew, and ranks by that: by the encoder's cosine (``encoder``), or by
    that of the space which the tree has adapted (``adapted``).
    """
    shortlist: Annotated[int, Field(ge=1)] = 100
    """How many; never fewer than are asked for. Where words count, as many documents that they find join."""
