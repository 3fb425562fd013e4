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


POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "lasttoken"}
"""Poolings that :func:`pool_tokens` knows, by the switch of older versions."""

ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Identity": lambda values: values,
    "Tanh": lambda values: np.asarray(np.tanh(values), np.float32),
}
"""Functions after a projection, by the name of torch's module."""


def pool_tokens(name: str, tokens: Floats, mask: Floats) -> Floats:
    """Pool token states [B, T, w] where the mask [B, T] is 1, as sentence-transformers does: [B, w]."""
    rows = np.arange(len(tokens))
    if name == "cls":
        return np.asarray(tokens[rows, mask.argmax(axis=1)])
    if name == "lasttoken":
        return np.asarray(tokens[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)])
    sums = np.matmul(mask[:, None], tokens)[:, 0]
    total = np.asarray(np.maximum(mask.sum(axis=1, keepdims=True), _LEAST_DIVISOR), np.float32)
    return np.asarray(sums / total, np.float32)


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
        pooling: Name of the pooling.
        after: Projections and ``None`` for scaling to unit length, in their order.
        truncate: Leading numbers of a vector that are kept, of a model that was trained for it.
    """

    pooling: str = "mean"
    after: Sequence[Dense | None] = ()
    truncate: int | None = None

    def pool(self, tokens: Floats, mask: Mask) -> Floats:
        """Pool token states [B, T, w] where the mask [B, T] is true, and finish them: [B, d]."""
        return self.finish(pool_tokens(self.pooling, tokens, mask.astype(np.float32)))

    def finish(self, vectors: Floats) -> Floats:
        """Apply what follows the pooling: [n, w] → [n, d]."""
        for layer in self.after:
            if layer is not None:
                vectors = layer(vectors)
                continue
            lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            vectors = vectors / np.maximum(lengths, np.float32(_SHORTEST))
        return np.asarray(vectors[:, : self.truncate], np.float32)


def pooling_name(config: Mapping[str, Any]) -> str | None:
    """Return the pooling of a module's settings, which older versions write as switches; ``None`` for no known one."""
    named: Any = config.get("pooling_mode")
    if named is None:
        switches = [name for name in config if name.startswith("pooling_mode_") and config[name] is True]
        named = [POOLINGS.get(name) for name in switches] or "mean"
    if isinstance(named, list) and len(named) == 1:
        named = named[0]
    known = isinstance(named, str) and named in POOLINGS.values() and config.get("include_prompt", True) is not False
    return str(named) if known else None
