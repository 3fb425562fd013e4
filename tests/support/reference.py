"""NumPy in double precision for forwards that are written from the papers' equations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

Doubles = NDArray[np.float64]


def weights_of(module: nn.Module) -> dict[str, Doubles]:
    """Parameters and buffers of a module by name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().double().numpy() for name, value in named}


def softmax(x: Doubles) -> Doubles:
    """Softmax over the last axis."""
    powers: Doubles = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x: Doubles) -> Doubles:
    """Sigmoid."""
    return 1 / (1 + np.exp(-x))


def relu(x: Doubles) -> Doubles:
    """Positive part."""
    return np.maximum(x, 0)


def unit(x: Doubles) -> Doubles:
    """Rows of length 1."""
    scaled: Doubles = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return scaled


def info_nce(logits: Doubles, own: NDArray[np.int64], known: NDArray[np.bool_]) -> float:
    """−log(e^own / Σ e^other), averaged over rows; known answers are in no row's sum but their own."""
    total = 0.0
    for row, column in enumerate(own):
        counted = ~known[row]
        counted[column] = True
        total += np.log(np.exp(logits[row][counted]).sum()) - logits[row, column]
    return total / len(own)
