"""Options of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.training import TrainingConfig, TrainingOptions

__all__ = ["TreeConfig", "TreeOptions", "TreeSearch", "TreeTraining"]


class TreeOptions(TrainingOptions, total=False):
    """Keyword options of ``TreeModel.fit``; see :class:`TreeConfig` and :class:`palmette.training.TrainingConfig`."""

    depth: int
    schedule: Literal["constant", "stochastic"]
    start: Literal["principal", "random"]
    slope: float
    growth: float
    dropout: float


@dataclass(frozen=True)
class TreeConfig(Config):
    """What tree to train.

    Attributes:
        depth: Levels D of split nodes; the finest representation has 2^D columns.
        schedule: Which level a step trains: always the leaves (``constant``), or one drawn with P(h) ∝ h²
            (``stochastic``), which makes the coarse levels good.
        start: ``principal`` begins from the corpus's principal directions, so that the untrained tree already
            keeps the encoder's geometry; ``random`` from random hyperplanes.
        slope: Steepness of the root's split at the start: gentle slopes keep the encoder's distances, steep
            ones make sharp trees.
        growth: Factor by which slopes grow from level to level at the start.
        dropout: Probability of dropping a node's score in training.
        width: Width of the encoder's embedding (filled in by ``fit``).
    """

    depth: int = 10
    schedule: Literal["constant", "stochastic"] = "stochastic"
    start: Literal["principal", "random"] = "principal"
    slope: float = 1.0
    growth: float = 1.5
    dropout: float = 0.0
    width: int = field(default=0, metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges."""
        check_range("tree", "depth", self.depth, 1, 14)
        check_range("tree", "dropout", self.dropout, 0, 0.99)
        check_range("tree", "width", self.width, 0)
        for name in ("slope", "growth"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"tree: {name} must be above 0, got {getattr(self, name)!r}")

    @property
    def splits(self) -> int:
        """Number of split nodes."""
        return (1 << self.depth) - 1

    @property
    def leaves(self) -> int:
        """Number of leaves: columns of the finest level."""
        return 1 << self.depth


@dataclass(frozen=True)
class TreeTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with the rate that measured best for trees."""

    learning_rate: float = 2e-3


@dataclass(frozen=True)
class TreeSearch(Config):
    """Options of one search in a tree.

    Attributes:
        level: Level to compare at, 1 … depth; ``None`` for the leaves.
    """

    level: int | None = None
