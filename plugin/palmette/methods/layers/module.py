"""Retrieval networks on the layers of a frozen encoder (B batch, T tokens, L layers, h states, w width, d vector)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder.attention import learning_attention
from palmette.methods.layers.config import LayersConfig

__all__ = ["LayerQueries", "RNet", "RNetLayer", "summary"]

EPSILON = 1e-12
"""Of the layer norms, as in BERT."""


class RNetLayer(nn.Module):
    """A transformer layer: LN(W₂ σ(W₁ a)) + a with the skip outside the norm, LN(W₂ σ(W₁ a) + a) with it inside.

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
        """[B, T, w], and where there is a token [B, T] → [B, T, w]."""
        a = self.norms[0](x + self.dropout(self._attention(x, mask)))
        y = self.dropout(self.outer(F.gelu(self.inner(a))))
        out: Tensor = self.norms[1](y) + a if self.outside else self.norms[1](y + a)
        return out

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )  # [B, heads, T, w / heads]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        out: Tensor = self.attended(mixed.transpose(1, 2).flatten(2))
        return out


def summary(x: Tensor, mask: Tensor, pooling: str = "both") -> Tensor:
    """[B, T, w] → the mean of the tokens that are there [B, w], the first token [B, w], or both [B, 2w]."""
    if pooling == "cls":
        return x[:, 0]
    there = mask.to(x.dtype)
    mean = torch.einsum("btw,bt->bw", x, there / there.sum(1, keepdim=True))
    return mean if pooling == "mean" else torch.cat([mean, x[:, 0]], dim=1)


class RNet(nn.Module):
    """One layer's states → its query: a few transformer layers, and a head on their summary.

    Where it has something to begin with (:meth:`LayersConfig.kind`), it adds to that: the encoder's ``own`` query, or a
    ``map`` of the layer's states that was fitted before training.
    """

    def __init__(self, config: LayersConfig, layer: int) -> None:
        super().__init__()
        self.kind, self.pooling = config.kind(layer), config.pooling
        width, wide = config.inner, 2 if config.pooling == "both" else 1
        heads = config.heads or max(1, width // 32)
        self.into = nn.Linear(config.states, width) if width != config.states else nn.Identity()
        self.layers = nn.ModuleList(
            RNetLayer(width, heads, config.dropout, config.skip, config.wide)
            for _ in range(0 if config.shared else config.layers_of(layer))
        )
        plain = self.kind == "random" and wide * width == config.vector
        self.head = nn.Identity() if plain else nn.Linear(wide * width, config.vector)
        self.map = nn.Linear(wide * config.states, config.vector) if self.kind == "map" else None
        if isinstance(self.head, nn.Linear) and self.kind in ("own", "map"):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor, mask: Tensor) -> Tensor:
        """States [B, T, h], and where there is a token [B, T] → what the head reads, and the map [B, p]."""
        y = self.into(x)
        for layer in self.layers:
            y = layer(y, mask)
        read = summary(y, mask, self.pooling)
        return read if self.map is None else torch.cat([read, summary(x, mask, self.pooling)], dim=1)

    def query(self, features: Tensor, own: Tensor | None) -> Tensor:
        """Features [B, p], and the encoder's own query [B, d] where the layer is its last → [B, d]."""
        if self.kind == "own":
            assert own is not None
            return torch.add(own, self.head(features))
        if self.map is None:
            query: Tensor = self.head(features)
            return query
        wide = self.map.in_features
        return torch.add(self.head(features[:, :-wide]), self.map(features[:, -wide:]))


def _shares(config: LayersConfig) -> Tensor:
    """At first the last layer counts as much as all others together, which were measured to be worth that: [L]."""
    others = len(config.asking) - 1
    if config.asking[-1] != config.last or not others:
        return torch.full((others + 1,), 1 / (others + 1))
    return torch.tensor([0.5 / others] * others + [0.5])


class LayerQueries(nn.Module):
    """A retrieval network per asking layer, and how much each counts in a fused list."""

    shares: Tensor

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.config = config
        self.networks = nn.ModuleList(RNet(config, layer) for layer in config.asking)
        self.stack = nn.ModuleList(
            RNetLayer(config.inner, config.heads or 1, 0.0, config.skip, config.wide)
            for _ in range(max(map(config.layers_of, config.asking)) if config.shared else 0)
        )
        self.register_buffer("shares", _shares(config))  # [L]

    @property
    def transformer_learns(self) -> bool:
        """Whether training gains from bfloat16 on CPUs that have it."""
        return self.config.trains == "all"

    def networks_of(self, layers: Sequence[int] | None) -> list[RNet]:
        """The networks of some asking layers (all by default)."""
        asking, every = self.config.asking, self.networks.children()
        known = {
            layer: network for layer, network in zip(asking, every, strict=True) if isinstance(network, RNet)
        }
        return [known[layer] for layer in layers or asking]

    def features(
        self, states: Sequence[Tensor], mask: Tensor, layers: Sequence[int] | None = None
    ) -> list[Tensor]:
        """States [B, T, h] of some asking layers, where there is a token [B, T] → what their heads read."""
        with learning_attention():
            after = (
                self._stacked(states, mask, layers or self.config.asking) if self.config.shared else states
            )
            networks = self.networks_of(layers)
            return [network.features(x, mask) for network, x in zip(networks, after, strict=True)]

    def _stacked(self, states: Sequence[Tensor], mask: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """States after the shared stack, which each layer enters where the encoder has as many left: in one pass."""
        after = list(states)
        for left, part in zip(range(len(self.stack), 0, -1), self.stack, strict=True):
            inside = [place for place, layer in enumerate(layers) if self.config.layers_of(layer) >= left]
            if inside:
                y = part(torch.cat([after[place] for place in inside]), mask.repeat(len(inside), 1))
                for place, own in zip(inside, y.split(len(mask)), strict=True):
                    after[place] = own
        return after

    def forward(
        self,
        inputs: Sequence[Tensor],
        mask: Tensor | None,
        own: Tensor | None,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Queries [B, L, d] of some asking layers.

        Args:
            inputs: For each its states [B, T, h]; or its features [B, p], where there is no mask.
            mask: [B, T] where there is a token.
            own: [B, d] the encoder's queries, where its last layer is among them.
            layers: Their numbers; ``None`` for all.
        """
        read = list(inputs) if mask is None else self.features(inputs, mask, layers)
        queries = [network.query(x, own) for network, x in zip(self.networks_of(layers), read, strict=True)]
        return self.finish(torch.stack(queries, dim=1))

    def weights(self, layers: Sequence[int] | None = None) -> Tensor:
        """How much each of some layers counts in a fused list, 1 in all: [L]."""
        places = [self.config.asking.index(layer) for layer in layers or self.config.asking]
        chosen = self.shares[places]
        total = chosen.sum()
        return chosen / total if total > 0 else torch.full_like(chosen, 1 / len(places))

    def fused(self, queries: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """The query whose similarity is the weighted mean of the layers': [B, L, d] → [B, d]."""
        return torch.einsum("bld,l->bd", queries, self.weights(layers).to(queries.dtype))

    def finish(self, queries: Tensor) -> Tensor:
        """Of unit length, where similarity is a cosine."""
        return F.normalize(queries.float(), dim=-1) if self.config.similarity == "cosine" else queries.float()
