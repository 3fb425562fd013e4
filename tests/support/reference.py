"""NumPy in double precision for forwards that are written from the papers' equations."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Doubles = NDArray[np.float64]


def weights_of(module: nn.Module) -> dict[str, Doubles]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().double().numpy() for name, value in named}


def randomise(module: nn.Module, seed: int, scale: float = 1.0) -> torch.Generator:
    """Give every parameter random values, and return the generator."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype))
    return draw


def softmax(x: Doubles) -> Doubles:
    powers: Doubles = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def relu(x: Doubles) -> Doubles:
    return np.maximum(x, 0)


def gelu(x: Doubles) -> Doubles:
    return x * np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.flat]).reshape(x.shape)


def linear(x: Doubles, w: dict[str, Doubles], name: str) -> Doubles:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(x: Doubles, w: dict[str, Doubles], name: str) -> Doubles:
    """Layer norm of that name, as in BERT."""
    out: Doubles = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return out * w[f"{name}.weight"] + w[f"{name}.bias"]


def unit(x: Doubles) -> Doubles:
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
