"""Options of per-layer retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

__all__ = ["TRAINING", "LayersConfig", "LayersSearch", "Order"]

Order = Literal["fused", "layer", "interleave"]


class LayersConfig(Config):
    """What queries to train on the layers of a frozen encoder."""

    layers: tuple[int, ...] | None = None
    """The layers that ask, 1 for the first; ``None`` for all."""
    depth: Annotated[int, Field(ge=1, le=24)] = 2
    """Transformer layers in a retrieval network (copies: fewer than the encoder has left)."""
    width: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Their width; ``None`` for the encoder's."""
    heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Their attention heads; ``None`` for the encoder's, or one for 32 columns."""
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Inside them, while they are trained."""
    start: Literal["encoder", "random"] = "encoder"
    """``encoder`` begins as near to the encoder's own query as a layer can come: the networks are copies of
    its last layers (of its width, with the skip ``inside``), or add what they learn to a linear map of
    the layer; the last layer begins with the encoder's own query, the one before it with a linear map.
    ``random`` is the paper's.
    """
    skip: Literal["inside", "outside"] = "inside"
    """The second skip of a network's layers: ``inside`` the layer norm as in BERT, ``outside`` as in the
    paper.
    """
    pooling: Literal["both", "mean", "cls"] = "both"
    """What of a network's output becomes the query: the ``mean`` of its tokens, the one at ``cls`` (the
    paper's), or a linear map of ``both``.
    """
    trains: Literal["heads", "all"] = "heads"
    """The ``heads`` alone, the linear maps at the end, or ``all`` of the networks."""
    schedule: Literal["together", "one by one"] = "together"
    """Whether the networks are trained ``together`` or ``one by one``."""
    similarity: Literal["cosine", "inner_product"] = "cosine"
    """``cosine`` of query and document, or their ``inner_product``."""
    multiplier: Annotated[float, Field(gt=0)] = 20.0
    """What similarities are multiplied by in the loss."""
    negatives: Annotated[int, Field(ge=0)] = 0
    """Documents drawn at random for each step, besides those of the batch's other queries."""
    states: Annotated[int, FILLED_IN] = 0
    """Width of the encoder's states (filled in by ``fit``)."""
    vector: Annotated[int, FILLED_IN] = 0
    """Width of its vectors (filled in by ``fit``)."""
    last: Annotated[int, FILLED_IN] = 0
    """Its number of layers (filled in by ``fit``)."""
    copied: Annotated[bool, FILLED_IN] = False
    """Whether the networks begin as copies (filled in by ``fit``)."""
    wide: Annotated[int, FILLED_IN] = 0
    """Width inside a network's layers, where it is not four times theirs (filled in by ``fit``)."""

    def check(self) -> None:
        """Ranges, heads that divide the width, layers that are there."""
        if self.layers is not None:
            check_layers("layers", self.layers, self.last or None)
        if self.states and self.inner % (self.heads or 1):
            raise ConfigError(
                f"layers: {self.heads} heads do not divide a width of {self.inner}; change heads or width"
            )
        if self.start == "random" and self.trains == "heads":
            raise ConfigError(
                "layers: trains='heads' would leave random networks as they are; use trains='all'"
            )

    @property
    def asking(self) -> tuple[int, ...]:
        """The layers that ask, once they are known."""
        return self.layers or tuple(range(1, self.last + 1))

    @property
    def inner(self) -> int:
        """Width of the networks."""
        return self.width or self.states

    def kind(self, layer: int) -> Literal["own", "copy", "map", "random"]:
        """What a layer's query begins as."""
        if self.start == "random":
            return "random"
        if layer == self.last:
            return "own"
        return "copy" if self.copied else "map"

    @property
    def shared(self) -> bool:
        """Whether all networks are one stack of copies, which nothing changes, under heads of their own."""
        return self.copied and self.trains == "heads"

    def layers_of(self, layer: int) -> int:
        """Transformer layers of a layer's network.

        Copies leave out at least one of the layers that the encoder has left: with all of them a layer would ask with
        the encoder's own query again.
        """
        return max(0, min(self.depth, self.last - layer - 1)) if self.copied else self.depth


def check_layers(owner: str, layers: tuple[int, ...], last: int | None = None) -> None:
    """At least one, rising, and not beyond the last."""
    if not layers or min(layers) < 1 or list(layers) != sorted(set(layers)):
        raise ConfigError(f"{owner}: layers must be numbers from 1 on, rising, each once; got {layers!r}")
    if last is not None and layers[-1] > last:
        raise ConfigError(f"{owner}: layer {layers[-1]} is asked for, but the encoder has {last} layers")


TRAINING: Mapping[str, Any] = {"steps": 200, "batch_size": 128, "learning_rate": 1e-5}
"""Defaults of the training loop."""


class LayersSearch(Config):
    """Options of one search by layers."""

    layers: tuple[int, ...] | None = None
    """Only the queries of these; the encoder stops at the last of them. ``None`` for all."""
    order: Order = "fused"
    """How the documents of all layers become one list. ``fused``: by the weighted mean of their similarities;
    ``layer``: each layer's share of ``k``, the first layer's first, as in the paper; ``interleave``: the
    same documents, the best of each layer, then the second best of each, ….
    """
    budget: tuple[int, ...] | None = None
    """Shares of ``k`` by layer, in the layers' order: exact numbers where they add up to ``k``. ``None`` for
    equal shares. Not with ``fused``.
    """

    def check(self) -> None:
        """Rising layers, and a budget of which each has its share."""
        if self.layers is not None:
            check_layers("layers search", self.layers)
        if self.budget is None:
            return
        if self.order == "fused":
            raise ConfigError(
                f"layers search: order='fused' ranks all documents at once and has no use for budget={self.budget!r}; "
                "use order='layer' or 'interleave'"
            )
        if min(self.budget, default=-1) < 0 or not sum(self.budget):
            raise ConfigError(
                f"layers search: budget must be shares of 0 or more, not all 0; got {self.budget!r}"
            )
        if self.layers is not None and len(self.budget) != len(self.layers):
            raise ConfigError(
                f"layers search: budget {self.budget!r} needs a share for each of the layers {self.layers!r}"
            )
