"""NumPy versions of the modules after the transformer of a sentence-transformers model: pooling, projections, norm.

Letters: B texts, T tokens, w width of token states, d width of a layer's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.arrays import Floats, Mask

_LEAST_DIVISOR = 1e-9
"""Smallest divisor of a mean, as in sentence-transformers."""
_SHORTEST = 1e-12
"""Length below which a vector is not scaled up, as in torch."""


_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Poolings by the switch of older versions, in the order of their results."""
POOLINGS = tuple(_SWITCHES.values())
"""Names of the poolings that :func:`pool_tokens` knows."""

ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Identity": lambda values: values,
    "ReLU": lambda values: np.maximum(values, 0),
    "Sigmoid": lambda values: np.asarray(1 / (1 + np.exp(-values)), np.float32),
    "Tanh": lambda values: np.asarray(np.tanh(values), np.float32),
}
"""Functions after a projection, by the name of torch's module."""


def pool_tokens(name: str, tokens: Floats, mask: Floats) -> Floats:
    """Pool token states [B, T, w] where the mask [B, T] is 1, as sentence-transformers does: [B, w]."""
    rows, first = np.arange(len(tokens)), mask.argmax(axis=1)
    if name == "cls":
        return np.asarray(tokens[rows, first])
    if name == "lasttoken":
        return np.asarray(tokens[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)])
    if name == "max":
        return np.asarray(np.where(mask[..., None] > 0, tokens, np.float32(-np.inf)).max(axis=1), np.float32)
    # The others are sums over tokens, divided by the sum of their weights, or by its root.
    weights = mask
    if name == "weightedmean":
        weights = mask * (np.arange(tokens.shape[1]) - first[:, None] + 1).astype(np.float32)
    sums = np.matmul(weights[:, None], tokens)[:, 0]
    total = np.asarray(np.maximum(weights.sum(axis=1, keepdims=True), _LEAST_DIVISOR), np.float32)
    return np.asarray(sums / (np.sqrt(total) if name == "mean_sqrt_len_tokens" else total), np.float32)


@dataclass(frozen=True)
class Dense:
    """A projection [w, d] with a bias [d], and the function after it."""

    weight: Floats
    bias: Floats | None
    activation: str

    def __call__(self, vectors: Floats) -> Floats:
        """Project vectors [n, w]: [n, d]."""
        projected = vectors @ self.weight
        return ACTIVATIONS[self.activation](projected if self.bias is None else projected + self.bias)


@dataclass(frozen=True)
class Head:
    """Everything after the transformer.

    Attributes:
        poolings: Names of the poolings, whose results stand beside each other.
        includes_prompt: Whether the tokens of the prompt are pooled, too.
        after: Projections and ``None`` for scaling to unit length, in their order.
        truncate: Leading numbers of a vector that are kept, of a model that was trained for it.
    """

    poolings: Sequence[str] = ("mean",)
    includes_prompt: bool = True
    after: Sequence[Dense | None] = ()
    truncate: int | None = None

    def pool(self, tokens: Floats, mask: Mask) -> Floats:
        """Pool token states [B, T, w] where the mask [B, T] is true, and finish them: [B, d]."""
        weights = mask.astype(np.float32)
        return self.finish(np.concatenate([pool_tokens(name, tokens, weights) for name in self.poolings], axis=1))

    def finish(self, vectors: Floats) -> Floats:
        """Apply what follows the pooling: [n, w] → [n, d]."""
        for layer in self.after:
            if layer is not None:
                vectors = layer(vectors)
                continue
            lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            vectors = vectors / np.maximum(lengths, np.float32(_SHORTEST))
        return np.asarray(vectors[:, : self.truncate], np.float32)


def pooling_names(config: Mapping[str, Any]) -> list[str]:
    """List the poolings of a module's settings, which older versions write as switches."""
    if (named := config.get("pooling_mode")) is not None:
        return [str(name) for name in (named if isinstance(named, list) else [named])]
    switches = dict.fromkeys((*_SWITCHES, *config))  # known ones first
    chosen = (name for name in switches if name.startswith("pooling_mode_") and config.get(name) is True)
    return [_SWITCHES.get(switch, switch) for switch in chosen]
