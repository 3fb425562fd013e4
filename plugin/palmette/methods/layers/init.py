"""Initial networks: the closest each layer comes to the encoder's own query without training.

The last layers of a frozen encoder work on the states of earlier layers too: with the layers between left out, they
give queries almost as good as the encoder's, and different enough to find other documents. So a layer's network starts
as a copy of the last layers, and its head as the encoder's own pooling. Where no layer would be left out, where the
encoder is not of BERT's kind, or where the networks have another shape, a layer starts as the linear map of its states
that comes nearest to the encoder's query (a ridge regression).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import Encoder
from palmette.maths import ridge
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.module import LayerNetworks, RNetLayer

CLOSE = 0.05
"""Relative error up to which a copied layer computes what the encoder's does; bfloat16 makes about .01."""
SAME = 0.999
"""Cosine from which on a summary is the encoder's own pooling."""


@torch.no_grad()
def complete_config(config: LayersConfig, encoder: Encoder, states: Tensor, mask: Tensor) -> LayersConfig:
    """Config with the encoder's widths, layers and heads, and whether the networks are copies of its layers.

    Args:
        config: The user's.
        encoder: The frozen encoder.
        states: [B, T, L + 1, h] of some texts, the embeddings first.
        mask: [B, T] token mask.
    """
    sizes = {"states": encoder.hidden_size, "vector": encoder.dimension, "last": encoder.num_layers}
    config = config.replace(**sizes, from_encoder=False)
    copies = encoder.copies(1) if config.skip == "inside" and config.inner == config.states else None
    if config.start == "encoder" and copies is not None and config.heads in (None, copies.heads):
        same = config.replace(heads=copies.heads, wide=len(copies.layers[0]["inner.weight"]))
        layer = RNetLayer(same.inner, copies.heads, 0.0, same.skip, same.wide)
        layer.load_state_dict(copies.layers[0])
        copy, wanted = layer(states[:, :, -2], mask)[mask], states[:, :, -1][mask]  # [Σ T, h]
        if float((copy - wanted).norm() / wanted.norm()) < CLOSE:
            return same.replace(from_encoder=True)
    return config.replace(heads=config.heads or max(1, config.inner // 32))


@torch.no_grad()
def initialise(
    config: LayersConfig, encoder: Encoder, summaries: Callable[[int], Tensor], own: Tensor, seed: int
) -> LayerNetworks:
    """Networks before training.

    Args:
        config: Complete.
        encoder: The frozen encoder.
        summaries: Layer number → pooled states of some queries [n, p].
        own: [n, d] the encoder's vectors of these queries.
        seed: For random weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = LayerNetworks(config)
    copies = encoder.copies(min(config.depth, config.last)) if config.from_encoder else None
    weights = [] if copies is None else copies.layers
    for layers in (module.stack, *(n.layers for n in module.networks_of() if n.kind == "copy")):
        for part, state in zip(list(layers)[::-1], weights[::-1], strict=False):
            part.load_state_dict(state)
    for layer, network in zip(config.query_layers, module.networks_of(), strict=True):
        if network.kind == "copy" and config.depth_of(layer):
            _set(network.head, *_pooling(summaries(config.last), own, config.states))
        elif network.kind == "copy":
            _set(network.head, *ridge(summaries(layer), own))
        elif network.map is not None:
            _set(network.map, *ridge(summaries(layer), own))
    return module


def _set(linear: nn.Module, weight: Tensor, bias: Tensor) -> None:
    assert isinstance(linear, nn.Linear)
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


def _pooling(pooled: Tensor, own: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """Map of the last layer's summaries [n, p] to the encoder's queries [n, d]: its own pooling, if linear."""
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
