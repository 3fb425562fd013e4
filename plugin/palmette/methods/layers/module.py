"""Retrieval networks on the layers of a frozen encoder (B batch, T tokens, L layers, h states, d vector)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.layers.config import LayersConfig

EPSILON = 1e-12
"""Epsilon of the layer norms, as in BERT."""


class RNetLayer(nn.Module):
    """Transformer layer of equation 3: LN(W₂ σ(W₁ a)) + a, or LN(W₂ σ(W₁ a) + a) with the skip inside the norm.

    In both, a = LN(x + attention(x)).
    """

    def __init__(self, width: int, heads: int, dropout: float, skip: str, wide: int = 0) -> None:
        super().__init__()
        wide = wide or 4 * width
        self.heads, self.outside = heads, skip == "outside"
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attended = nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, wide), nn.Linear(wide, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width, EPSILON) for _ in range(2)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Token states [B, T, h] and token mask [B, T] → [B, T, h]."""
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # [B, heads, T, h / heads]
        # plain products: the gradient of torch's fused attention is slow in bfloat16 on a CPU
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5  # [B, heads, T, T]
        attention = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min).softmax(3)
        mixed = self.attended((attention.to(v.dtype) @ v).transpose(1, 2).flatten(2))
        a = self.norms[0](x + self.dropout(mixed))
        y = self.dropout(self.outer(F.gelu(self.inner(a))))
        out: Tensor = self.norms[1](y) + a if self.outside else self.norms[1](y + a)
        return out


def layer_summary(x: Tensor, mask: Tensor, pooling: str = "both") -> Tensor:
    """[B, T, h] → the first token [B, h], or the mean over tokens and the first token [B, 2h]."""
    if pooling == "cls":
        return x[:, 0]
    present = mask.to(x.dtype)
    mean = torch.einsum("bth,bt->bh", x, present / present.sum(1, keepdim=True))
    return torch.cat([mean, x[:, 0]], dim=1)


class RNet(nn.Module):
    """States of one layer → query: a few transformer layers, and a linear head on their summary.

    Depending on :meth:`LayersConfig.kind` the head's output is added to the encoder's ``own`` query, or to a ``map`` of
    the layer's states that is fitted before training.
    """

    def __init__(self, config: LayersConfig, layer: int) -> None:
        super().__init__()
        self.kind, self.pooling = config.kind(layer), config.pooling
        width, wide = config.states, 2 if config.pooling == "both" else 1
        self.layers = nn.ModuleList(
            RNetLayer(width, config.heads, config.dropout, config.skip, config.wide)
            for _ in range(0 if config.shared else config.depth_of(layer))
        )
        plain = self.kind == "random" and wide * width == config.vector
        self.head = nn.Identity() if plain else nn.Linear(wide * width, config.vector)
        self.map = nn.Linear(wide * width, config.vector) if self.kind == "map" else None
        if isinstance(self.head, nn.Linear) and self.kind in ("own", "map"):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor, mask: Tensor) -> Tensor:
        """States [B, T, h] and token mask [B, T] → inputs of head and map [B, p]."""
        y = x
        for layer in self.layers:
            y = layer(y, mask)
        read = layer_summary(y, mask, self.pooling)
        return read if self.map is None else torch.cat([read, layer_summary(x, mask, self.pooling)], dim=1)

    def query(self, features: Tensor, own: Tensor | None) -> Tensor:
        """Features [B, p], and the encoder's own query [B, d] for its last layer → [B, d]."""
        if self.map is not None:
            wide = self.map.in_features
            return torch.add(self.head(features[:, :-wide]), self.map(features[:, -wide:]))
        query: Tensor = self.head(features)
        if self.kind == "own":
            assert own is not None
            return own + query
        return query


class LayerNetworks(nn.Module):
    """A retrieval network per query layer, and the layers' weights in a fused list."""

    shares: Tensor
    """[L] weights; at first the last layer counts as much as all others together."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.config = config
        layers = config.query_layers
        self.networks = nn.ModuleList(RNet(config, layer) for layer in layers)
        self.stack = nn.ModuleList(
            RNetLayer(config.states, config.heads, 0.0, config.skip, config.wide)
            for _ in range(max(map(config.depth_of, layers)) if config.shared else 0)
        )
        others = len(layers) - 1
        last = 0.5 if layers[-1] == config.last and others else 1 / len(layers)
        self.register_buffer("shares", torch.tensor([(1 - last) / max(1, others)] * others + [last]))  # [L]

    @property
    def transformer_learns(self) -> bool:
        """True where bfloat16 speeds training up on CPUs that compute in it."""
        return self.config.trains == "all"

    def networks_of(self, layers: Sequence[int] | None = None) -> list[RNet]:
        """Networks of some query layers (all by default)."""
        places = [self.config.query_layers.index(layer) for layer in layers or self.config.query_layers]
        return [cast(RNet, self.networks[place]) for place in places]

    def features(self, states: Sequence[Tensor], mask: Tensor, layers: Sequence[int] | None = None) -> list[Tensor]:
        """States [B, T, h] of some query layers, and token mask [B, T] → inputs of their heads."""
        after, layers = list(states), layers or self.config.query_layers
        # Shared stack: a layer enters where the encoder has as many layers left; all in one pass.
        for left, part in zip(range(len(self.stack), 0, -1), self.stack, strict=True):
            inside = [place for place, layer in enumerate(layers) if self.config.depth_of(layer) >= left]
            if inside:
                y = part(torch.cat([after[place] for place in inside]), mask.repeat(len(inside), 1))
                for place, own in zip(inside, y.split(len(mask)), strict=True):
                    after[place] = own
        return [network.features(x, mask) for network, x in zip(self.networks_of(layers), after, strict=True)]

    def forward(
        self, inputs: Sequence[Tensor], mask: Tensor | None, own: Tensor | None, layers: Sequence[int] | None = None
    ) -> Tensor:
        """Queries [B, L, d] of some query layers (all by default), of unit length where similarity is a cosine.

        ``inputs`` are the layers' states [B, T, h] with a token ``mask`` [B, T], or their features [B, p] without.
        ``own`` [B, d] is the encoder's query, where its last layer is among them.
        """
        read = list(inputs) if mask is None else self.features(inputs, mask, layers)
        queries = [network.query(x, own) for network, x in zip(self.networks_of(layers), read, strict=True)]
        stacked = torch.stack(queries, dim=1).float()
        return F.normalize(stacked, dim=-1) if self.config.similarity == "cosine" else stacked

    def weights(self, layers: Sequence[int] | None = None) -> Tensor:
        """Weights of some layers in a fused list, with sum 1: [L]."""
        places = [self.config.query_layers.index(layer) for layer in layers or self.config.query_layers]
        chosen = self.shares[places]
        total = chosen.sum()
        return chosen / total if total > 0 else torch.full_like(chosen, 1 / len(places))

    def fused(self, queries: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Query whose similarity is the weighted mean of the layers': [B, L, d] → [B, d]."""
        return torch.einsum("bld,l->bd", queries, self.weights(layers).to(queries.dtype))
