"""Options of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.methods.tree.shape import Shape
from palmette.training import TrainingConfig

__all__ = ["Schedule", "Split", "TreeConfig", "TreeSearch", "TreeTraining"]

Split = Literal["linear", "mlp", "cross_attention"]
Aggregation = Literal["mean_then_linear", "linear_then_mean", "tree"]
Propagation = Literal["product", "learned", "none"]
Schedule = Literal[
    "constant", "stochastic", "stochastic_linear", "uniform", "linear", "exponential", "matryoshka"
]
Start = Literal["principal", "random"]
Space = Literal["adapted", "encoder"]
LearnFrom = Literal["auto", "labels", "documents"]


@dataclass(frozen=True)
class TreeConfig(Config):
    """What tree to train.

    Attributes:
        depth: Levels D of split nodes; the finest representation has 2^D columns.
        split: What scores a text at a node: a hyperplane on the embedding (``linear``), a small network shared by
            all nodes (``mlp``), or learned node embeddings that attend to the text's tokens (``cross_attention``).
        aggregation: How a node's attention output becomes a score (``cross_attention`` only): the mean of its
            embeddings' outputs through one shared linear map, one linear map per node and the mean of the scores,
            or the latter refined by a small network over the scores of the node and its ancestors (``tree``).
        propagation: How scores become probabilities: the ``product`` of the turns on the way, a ``learned``
            function of them for each leaf, or ``none``: no tree, one score per leaf.
        schedule: Which level a step trains. ``constant``: the leaves. ``stochastic``: one drawn with P(h) ∝ h²
            (∝ h for ``stochastic_linear``, equal for ``uniform``), which makes the coarse levels good.
            ``linear``, ``exponential``: from the root down while training goes on, a level at a time or doubling.
            ``matryoshka``: all at once.
        start: ``principal`` begins from the corpus's principal directions, so that the untrained tree already
            keeps the encoder's geometry (other splits than linear then add to that); ``random`` as in the paper.
        space: What the splits measure: the encoder's embeddings (``encoder``), or those after a linear map that is
            learned from the pairs before the tree begins (``adapted``).
        learn_from: The pairs that are given (``labels``), or questions made of the documents (``documents``), as where
            no pairs are given. ``auto``: the pairs, but where the map that they teach serves the held-out questions
            no better than none, and one of made questions clearly does, these; without a map to learn, the pairs.
        sharpness: Steepness of the root's split at the start. Gentle trees keep the encoder's distances; sharp
            ones put a text into few leaves, which makes topics crisper.
        growth: Factor by which slopes grow from level to level at the start. At √2 every direction counts as much as
            any other: a node holds half the columns of its parent, and columns add up by their squares.
        upper: Levels whose splits learn ahead of the others, all these levels at once, which is what makes the
            small representations good; 0 for none. (With ``start="principal"`` and a tree.)
        distill: Share of the loss that teaches the cosines of that space; the rest teaches the pairs.
        temperature: Of the cosines in that share.
        l1: Weight of the L1 norm of the representation's square roots, which is least when a text sits in one
            leaf. (The probabilities' own L1 norm is always 1.)
        dropout: Probability of dropping a node's score in training.
        hidden: Width of the ``mlp`` split's hidden layer.
        heads: Attention heads of the ``cross_attention`` split.
        head_width: Width of one head.
        node_embeddings: Learned embeddings per node.
        split_dropout: Dropout inside the ``mlp`` split.
        width: Width of the encoder's embedding (filled in by ``fit``).
        token_width: Width of its token states, where the split reads them (filled in by ``fit``).
        closed: Nodes that do not split although they lie above the last level (filled in by ``grow``, ``prune``).
    """

    depth: int = 10
    split: Split = "linear"
    aggregation: Aggregation = "tree"
    propagation: Propagation = "product"
    schedule: Schedule = "stochastic"
    start: Start = "principal"
    space: Space = "adapted"
    learn_from: LearnFrom = "auto"
    sharpness: float = 0.3
    growth: float = 1.414
    upper: int = 5
    distill: float = 0.5
    temperature: float = 0.05
    l1: float = 0.0
    dropout: float = 0.0
    hidden: int = 128
    heads: int = 8
    head_width: int = 64
    node_embeddings: int = 1
    split_dropout: float = 0.2
    width: int = field(default=0, metadata={"filled_in": True})
    token_width: int = field(default=0, metadata={"filled_in": True})
    closed: tuple[int, ...] = field(default=(), metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges, and what goes together."""
        for name, low, high in (
            ("depth", 1, 14),
            ("upper", 0, 14),
            ("distill", 0, 1),
            ("l1", 0, 1e6),
            ("dropout", 0, 0.99),
            ("split_dropout", 0, 0.99),
            ("hidden", 1, 1e5),
            ("heads", 1, 1e3),
            ("head_width", 1, 1e4),
            ("node_embeddings", 1, 1e3),
            ("width", 0, 1e6),
            ("token_width", 0, 1e6),
        ):
            check_range("tree", name, getattr(self, name), low, high)
        for name in ("sharpness", "growth", "temperature"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"tree: {name} must be above 0 and below 1e6, got {getattr(self, name)!r}")
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


@dataclass(frozen=True)
class TreeTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with the rate that measured best for trees."""

    learning_rate: float = 5e-4


@dataclass(frozen=True)
class TreeSearch(Config):
    """Options of one search in a tree.

    Attributes:
        level: Level to compare at, 1 … depth; ``None`` for the leaves; ``auto`` for the smallest level that lost
            at most ``tolerance`` of the best level's validation quality when the tree was trained.
        tolerance: That share, for ``level="auto"``.
        within: Compare with every document (``all``), or only with those whose own most probable leaf is among
            the query's ``probe`` most probable ones (``global``) or is reached from the root by always taking the
            likelier turn (``greedy``), as cluster trees search. Approximate, and here for comparison.
        probe: Leaves that ``within="global"`` looks into.
        rerank: Scores the ``shortlist`` best anew, and ranks by that: by the encoder's cosine (``encoder``), or by
            that of the space which the tree has adapted (``adapted``).
        shortlist: How many; never fewer than are asked for. Where words count, as many documents that they find join.
    """

    level: int | Literal["auto"] | None = None
    tolerance: float = 0.01
    within: Literal["all", "global", "greedy"] = "all"
    probe: int = 1
    rerank: Literal["encoder", "adapted"] | None = None
    shortlist: int = 100

    def check(self) -> None:
        """Ranges."""
        check_range("tree search", "tolerance", self.tolerance, 0, 1)
        check_range("tree search", "probe", self.probe, 1)
        check_range("tree search", "shortlist", self.shortlist, 1)
