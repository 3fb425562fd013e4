"""What the networks begin as: the closest each layer can come to the encoder's own query without training.

A frozen encoder's last layers work on the states of earlier ones too: with the layers between left out, they give
queries almost as good as the encoder's, and different enough to find other documents. So a layer's network begins as a
copy of the last layers, and its head as the encoder's own pooling. Where no layer would be left out, where the
encoder's layers are not of BERT's kind, or where the networks have another shape, a layer begins as the linear map of
its states that comes nearest to the encoder's query (a ridge regression).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import Encoder
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.module import LayerQueries, RNetLayer

__all__ = ["completed", "ridge", "started"]

CLOSE = 0.05
"""Relative error up to which a copied layer computes what the encoder's does; bfloat16 makes about .01."""
SAME = 0.999
"""Cosine from which on a summary is the encoder's own pooling."""
RIDGE = 1.0


@torch.no_grad()
def completed(config: LayersConfig, encoder: Encoder, states: Tensor, mask: Tensor) -> LayersConfig:
    """The config with what the encoder decides: widths, layers, heads, and whether the networks begin as copies.

    Args:
        config: As the user gave it.
        encoder: That the networks sit on.
        states: [B, T, L + 1, h] of some texts, the embeddings first.
        mask: [B, T] where there is a token.
    """
    config = config.replace(
        states=encoder.hidden_size, vector=encoder.dimension, last=encoder.num_layers, copied=False
    )
    copies = encoder.copies(1) if config.skip == "inside" and config.inner == config.states else None
    if config.start == "random" or copies is None or config.heads not in (None, copies.heads):
        return config.replace(heads=config.heads or max(1, config.inner // 32))
    same = config.replace(heads=copies.heads, wide=len(copies.layers[0]["inner.weight"]))
    layer = RNetLayer(same.inner, copies.heads, 0.0, same.skip, same.wide)
    layer.load_state_dict(copies.layers[0])
    made, wanted = layer(states[:, :, -2], mask)[mask], states[:, :, -1][mask]  # [Σ T, h]
    if float((made - wanted).norm() / wanted.norm()) < CLOSE:
        return same.replace(copied=True)
    return config.replace(heads=config.heads or max(1, config.inner // 32))


@torch.no_grad()
def started(
    config: LayersConfig, encoder: Encoder, summaries: Callable[[int], Tensor], own: Tensor, seed: int
) -> LayerQueries:
    """The networks before training.

    Args:
        config: Completed.
        encoder: That they sit on.
        summaries: Layer number → what pooling makes of its states, for some queries [n, p].
        own: [n, d] the encoder's queries for them.
        seed: Of what begins at random.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = LayerQueries(config)
    copies = encoder.copies(min(config.depth, config.last)) if config.copied else None
    weights = [] if copies is None else copies.layers
    _load(module.stack, weights)
    for layer, network in zip(config.asking, module.networks_of(None), strict=True):
        if network.kind == "copy":
            _load(network.layers, weights)
            whole = config.layers_of(layer) > 0
            head = (
                _pooling(summaries(config.last), own, config.states)
                if whole
                else ridge(summaries(layer), own)
            )
            _set(network.head, *head)
        elif network.map is not None:
            _set(network.map, *ridge(summaries(layer), own))
    return module


def _load(layers: nn.ModuleList, weights: list[dict[str, Tensor]]) -> None:
    """The last of these weights into as many layers."""
    for layer, own in zip(list(layers)[::-1], weights[::-1], strict=False):
        layer.load_state_dict(own)


def _set(linear: nn.Module, weight: Tensor, bias: Tensor) -> None:
    assert isinstance(linear, nn.Linear)
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


def _pooling(pooled: Tensor, own: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """The map of last states' summaries [n, p] to the encoder's queries [n, d]: its own pooling where that is one."""
    width = own.shape[1]
    if width == states:
        halves = torch.split(pooled, states, dim=1)
        alike = [float(F.cosine_similarity(half, own).mean()) for half in halves]
        best = alike.index(max(alike))
        if alike[best] > SAME:
            length = (halves[best] * own).sum() / halves[best].square().sum()
            blocks = [torch.eye(width) * (length if place == best else 0.0) for place in range(len(halves))]
            return torch.cat(blocks, dim=1), torch.zeros(width)
    return ridge(pooled, own)


def ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [d, p] and bias [d] that map x [n, p] to y [n, d] with the least squared error, kept small."""
    x, y = x.double(), y.double()
    center, middle = x.mean(0), y.mean(0)
    x, y = x - center, y - middle
    gram = x.T @ x
    gram.diagonal().add_(RIDGE)
    weight = torch.linalg.solve(gram, x.T @ y).T
    return weight.float(), (middle - weight @ center).float()
