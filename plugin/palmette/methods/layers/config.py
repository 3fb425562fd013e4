"""Options of per-layer retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

TRAINING: Mapping[str, Any] = {"steps": 200, "batch_size": 128, "learning_rate": 1e-5}
"""Defaults of the training loop."""


def ascending(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Raise unless these are layer numbers in ascending order."""
    if not layers or min(layers) < 1 or list(layers) != sorted(set(layers)):
        raise ValueError(f"layers must be numbers from 1 on, rising, each once; got {layers!r}")
    return layers


Layers = Annotated[tuple[int, ...], AfterValidator(ascending)]


class LayersConfig(Config):
    """Layers of a frozen encoder that search, and their retrieval networks."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {  # the steps are 30 epochs of its 122,892 pairs; it searches with order="layer"
            "start": "random", "skip": "outside", "pooling": "cls", "trains": "all",
            "similarity": "inner_product", "multiplier": 1.0,
            "steps": 14_400, "batch_size": 256, "learning_rate": 2e-5, "decay": "linear",
        }
    }  # fmt: skip

    layers: Layers | None = None
    """Layers that produce query vectors, 1 for the first; ``None`` for all."""
    depth: Annotated[int, Field(ge=1, le=24)] = 2
    """Transformer layers in a retrieval network (copies: fewer than the encoder has left)."""
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Dropout in the networks while they train."""
    start: Literal["encoder", "random"] = "encoder"
    """``encoder`` starts as close to the encoder's own query as a layer can come: networks are copies of its last
    layers (needs ``skip="inside"``), or add what they learn to a linear map of the layer; the last layer
    starts with the encoder's own query, the one before it with a linear map. ``random`` is the paper's.
    """
    skip: Literal["inside", "outside"] = "inside"
    """Second skip connection of a network's layers: ``inside`` the layer norm (BERT) or ``outside`` (the paper)."""
    pooling: Literal["both", "cls"] = "both"
    """Input of the query head: the output at ``cls`` (the paper's), or ``both`` that and the mean over tokens."""
    trains: Literal["heads", "all"] = "heads"
    """Train the linear ``heads`` of the networks only, or ``all`` of their weights."""
    similarity: Literal["cosine", "inner_product"] = "cosine"
    """``cosine`` of query and document, or their ``inner_product``."""
    multiplier: Annotated[float, Field(gt=0)] = 20.0
    """Factor of the similarities in the loss."""
    states: Annotated[int, FILLED_IN] = 0
    """Width of the encoder's states (filled in by ``fit``)."""
    vector: Annotated[int, FILLED_IN] = 0
    """Width of the encoder's vectors (filled in by ``fit``)."""
    last: Annotated[int, FILLED_IN] = 0
    """Number of the encoder's layers (filled in by ``fit``)."""
    heads: Annotated[int, FILLED_IN] = 1
    """Attention heads of the networks: the encoder's where they are copies, else one for 32 columns (filled in by
    ``fit``).
    """
    from_encoder: Annotated[bool, FILLED_IN] = False
    """Whether the networks are copies of encoder layers (filled in by ``fit``)."""
    wide: Annotated[int, FILLED_IN] = 0
    """Inner width of the networks' layers, where it is not 4 × their width (filled in by ``fit``)."""

    def check(self) -> None:
        """Check layers, heads, and that something learns."""
        if self.layers is not None and self.last and self.layers[-1] > self.last:
            raise ConfigError(f"layers: layer {self.layers[-1]} is given, but the encoder has {self.last} layers")
        if self.heads < 1 or self.states % self.heads:
            raise ConfigError(f"layers: {self.heads} heads do not divide a width of {self.states}; train again")
        if self.start == "random" and self.trains == "heads":
            raise ConfigError("layers: trains='heads' leaves random networks untrained; use trains='all'")

    @property
    def query_layers(self) -> tuple[int, ...]:
        """Layers that produce query vectors, once the encoder is known."""
        return self.layers or tuple(range(1, self.last + 1))

    @property
    def shared(self) -> bool:
        """True if all networks are one frozen stack of copies under heads of their own."""
        return self.from_encoder and self.trains == "heads"

    def kind(self, layer: int) -> Literal["own", "copy", "map", "random"]:
        """Initial query of a layer."""
        if self.start == "random":
            return "random"
        return "own" if layer == self.last else "copy" if self.from_encoder else "map"

    def depth_of(self, layer: int) -> int:
        """Transformer layers of a layer's network.

        Copies skip at least one of the encoder's remaining layers: with all of them a layer would produce the
        encoder's own query again.
        """
        return max(0, min(self.depth, self.last - layer - 1)) if self.from_encoder else self.depth


class LayersSearch(Config):
    """Options of one search by layers."""

    layers: Layers | None = None
    """Search with these layers only; the encoder stops at the last of them. ``None`` for all."""
    order: Literal["fused", "layer"] = "fused"
    """One list from all layers. ``fused``: by the weighted mean of their similarities, which is one query; ``layer``:
    ``k`` in equal parts, the first layer's first (the paper).
    """
