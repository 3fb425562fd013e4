"""Initial networks: the closest each layer comes to the encoder's own query without training.

The last layers of a frozen encoder work on the states of earlier layers too: with the layers between left out, they
give queries almost as good as the encoder's, and different enough to find other documents. So a layer's network starts
as a copy of the last layers, and its head as the encoder's own pooling. Where no layer would be left out, or the
encoder is not of BERT's kind, a layer starts as the linear map of its states that comes nearest to the encoder's query
(a ridge regression).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import Encoder
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.module import LayerNetworks, RNetLayer
from palmette.training.maths import ridge

COPY_TOLERANCE = 0.05
"""Relative error up to which a copied layer computes what the encoder's does; bfloat16 makes about .01."""
HEAD_COLUMNS = 32
"""Columns of an attention head of networks that are no copies."""
SAME = 0.999
"""Cosine from which on a summary is the encoder's own pooling."""


@torch.no_grad()
def complete_config(config: LayersConfig, encoder: Encoder, states: Tensor, mask: Tensor) -> LayersConfig:
    """Config with the encoder's widths, layers and heads, and whether the networks are copies of its layers.

    ``states`` [B, T, L + 1, h], the embeddings first, and ``mask`` [B, T] are those of some texts.
    """
    sizes = {"states": encoder.hidden_size, "vector": encoder.dimension, "last": encoder.num_layers}
    config = config.replace(**sizes, from_encoder=False)
    copies = encoder.layer_weights(1) if config.start == "encoder" and config.skip == "inside" else None
    if copies is not None:
        same = config.replace(heads=copies.heads, wide=len(copies.layers[0]["inner.weight"]))
        layer = RNetLayer(same.states, copies.heads, 0.0, same.skip, same.wide)
        layer.load_state_dict(copies.layers[0])
        copy, target = layer(states[:, :, -2], mask)[mask], states[:, :, -1][mask]  # [Σ T, h]
        if float((copy - target).norm() / target.norm()) < COPY_TOLERANCE:
            return same.replace(from_encoder=True)
    most = max(1, config.states // HEAD_COLUMNS)
    return config.replace(heads=next(heads for heads in range(most, 0, -1) if config.states % heads == 0))


@torch.no_grad()
def initialise(
    config: LayersConfig, encoder: Encoder, summaries: Callable[[int], Tensor], own: Tensor, seed: int
) -> LayerNetworks:
    """Networks before training, from some queries' pooled states [n, p] by layer and encoder vectors [n, d]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = LayerNetworks(config)
    copies = encoder.layer_weights(min(config.depth, config.last)) if config.from_encoder else None
    for layers in (module.stack, *(n.layers for n in module.networks_of() if n.kind == "copy")):
        for part, state in zip(list(layers)[::-1], copies.layers[::-1] if copies else (), strict=False):
            part.load_state_dict(state)
    for layer, network in zip(config.query_layers, module.networks_of(), strict=True):
        linear = network.head if network.kind == "copy" else network.map
        if isinstance(linear, nn.Linear):
            if network.kind == "copy" and config.depth_of(layer):
                weight, bias = _pooling(summaries(config.last), own, config.states)
            else:
                weight, bias = ridge(summaries(layer), own)
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
    return module


def _pooling(pooled: Tensor, own: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """Map of the last layer's summaries [n, p] to the encoder's queries [n, d]: its own pooling, if linear."""
    if own.shape[1] == states:
        halves = torch.split(pooled, states, dim=1)
        alike = torch.stack([F.cosine_similarity(half, own).mean() for half in halves])
        best = int(alike.argmax())
        if alike[best] > SAME:
            length = (halves[best] * own).sum() / halves[best].square().sum()
            blocks = [torch.eye(states) * (length if place == best else 0.0) for place in range(len(halves))]
            return torch.cat(blocks, dim=1), torch.zeros(states)
    return ridge(pooled, own)
