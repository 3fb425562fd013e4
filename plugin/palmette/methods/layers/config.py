"""Options of per-layer retrieval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.training import TrainingConfig, TrainingOptions

__all__ = ["LayersConfig", "LayersOptions", "LayersSearch", "LayersTraining"]


class LayersOptions(TrainingOptions, total=False):
    """Keyword options of ``LayersModel.fit``; see :class:`LayersConfig` and the training's."""

    layers: tuple[int, ...] | None
    depth: int
    width: int | None
    heads: int
    dropout: float
    pooling: Literal["mean", "cls"]
    start: Literal["encoder", "random"]
    skip: Literal["outside", "inside"]
    schedule: Literal["together", "one by one"]
    similarity: Literal["cosine", "inner_product"]
    multiplier: float
    negatives: int


@dataclass(frozen=True)
class LayersConfig(Config):
    """What queries to train on the layers of a frozen encoder.

    Attributes:
        layers: The layers that ask, 1 for the first; ``None`` for all.
        depth: Transformer layers in a retrieval network.
        width: Their width; ``None`` for the encoder's.
        heads: Their attention heads.
        dropout: Inside them, while training.
        pooling: What a network gives: the ``mean`` over its tokens, or what stands at ``cls``.
        start: What a layer's query is before training: a linear map of its states that comes as near as can be to the
            ``encoder``'s own query, to which the network adds what it learns; or what a ``random`` network gives.
        skip: Whether a network's second skip connection goes ``outside`` the layer norm or ``inside``, as in BERT.
        schedule: Whether the networks are trained ``together`` or ``one by one``.
        similarity: ``cosine`` of query and document, or their ``inner_product``.
        multiplier: What similarities are multiplied by in the loss.
        negatives: Documents drawn at random for each step, besides those of the batch's other queries.
        states: Width of the encoder's states (filled in by ``fit``).
        vector: Width of its vectors (filled in by ``fit``).
    """

    layers: tuple[int, ...] | None = None
    depth: int = 2
    width: int | None = 128
    heads: int = 4
    dropout: float = 0.1
    pooling: Literal["mean", "cls"] = "mean"
    start: Literal["encoder", "random"] = "encoder"
    skip: Literal["outside", "inside"] = "outside"
    schedule: Literal["together", "one by one"] = "together"
    similarity: Literal["cosine", "inner_product"] = "cosine"
    multiplier: float = 20.0
    negatives: int = 1024
    states: int = field(default=0, metadata={"filled_in": True})
    vector: int = field(default=0, metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges, and heads that divide the width."""
        for name, low, high in (
            ("depth", 1, 24),
            ("width", 1, 8192),
            ("heads", 1, 256),
            ("dropout", 0, 0.9),
            ("negatives", 0, 1e6),
            ("states", 0, float("inf")),
            ("vector", 0, float("inf")),
        ):
            check_range("layers", name, getattr(self, name), low, high)
        if not 0 < self.multiplier < 1e6:
            raise ConfigError(f"layers: multiplier must be above 0, got {self.multiplier!r}")
        if self.layers is not None:
            check_layers("layers", self.layers)
        if (width := self.width or self.states) % self.heads:
            raise ConfigError(f"layers: {self.heads} heads do not divide a width of {width}; change one")

    @property
    def asking(self) -> tuple[int, ...]:
        """The layers that ask, once they are known."""
        return self.layers or ()


def check_layers(owner: str, layers: tuple[int, ...]) -> None:
    """At least one, each once, from 1 on, the first ones first."""
    if not layers or min(layers) < 1 or list(layers) != sorted(set(layers)):
        raise ConfigError(f"{owner}: layers must be numbers from 1 on, rising, each once; got {layers!r}")


@dataclass(frozen=True)
class LayersTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with what measured best for layers."""

    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 3e-4


@dataclass(frozen=True)
class LayersSearch(Config):
    """Options of one search by layers.

    Attributes:
        layers: Only the queries of these; the encoder stops at the last of them. ``None`` for all.
        order: How the documents of all layers become one list. ``fused``: by the weighted mean of their similarities;
            ``layer``: each layer's share of ``k``, the first layer's first, as in the paper; ``interleave``: the same,
            the best of each layer, then the second best of each, ….
        budget: Shares of ``k`` by layer, in the layers' order; they are exact numbers where they add up to ``k``.
            ``None`` for equal shares. Not with ``fused``.
    """

    layers: tuple[int, ...] | None = None
    order: Literal["fused", "layer", "interleave"] = "fused"
    budget: tuple[int, ...] | None = None

    def check(self) -> None:
        """Rising layers, and a budget that some layer has a share of."""
        if self.layers is not None:
            check_layers("layers search", self.layers)
        if self.budget is None:
            return
        if self.order == "fused":
            raise ConfigError(
                f"layers search: order='fused' ranks all documents at once and takes no budget={self.budget!r}; "
                "use order='layer' or 'interleave'"
            )
        if min(self.budget, default=-1) < 0 or not sum(self.budget):
            raise ConfigError(
                f"layers search: budget must be shares of 0 or more, not all 0; got {self.budget!r}"
            )
