"""Retrieval networks on the layers of a frozen encoder (B batch, T tokens, L layers, h states, w width, d vector)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.layers.config import LayersConfig

__all__ = ["LayerQueries", "RNet", "RNetLayer", "summary"]


class RNetLayer(nn.Module):
    """A transformer layer with its second skip outside the norm: LN(W₂ σ(W₁ a)) + a, a = LN(x + attention(x))."""

    def __init__(self, width: int, heads: int, dropout: float, skip: str) -> None:
        super().__init__()
        self.heads, self.outside = heads, skip == "outside"
        self.asking, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.attended = nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
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
            for part in (self.asking, self.keys, self.values)
        )  # [B, heads, T, w / heads]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        out: Tensor = self.attended(mixed.transpose(1, 2).flatten(2))
        return out


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """[B, T, w] → [B, w], over the tokens that are there."""
    weights = mask.to(x.dtype)
    return torch.einsum("btw,bt->bw", x, weights / weights.sum(1, keepdim=True))


def summary(x: Tensor, mask: Tensor) -> Tensor:
    """What a linear start reads of a layer: the mean of its tokens beside the first, [B, T, h] → [B, 2h]."""
    return torch.cat([mean(x, mask), x[:, 0]], dim=1)


class RNet(nn.Module):
    """One layer's states → its query.

    With ``start="encoder"`` the query is a map of the layer's summary, fixed before training, plus what the
    transformer layers add to it, which is nothing at first. The last layer's map is the encoder's own query.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        width = config.width or config.states
        self.pooling, self.anchored = config.pooling, config.start == "encoder"
        self.into = nn.Linear(config.states, width) if width != config.states else nn.Identity()
        self.layers = nn.ModuleList(
            RNetLayer(width, config.heads, config.dropout, config.skip) for _ in range(config.depth)
        )
        project = self.anchored or width != config.vector
        self.out = nn.Linear(width, config.vector) if project else nn.Identity()
        if self.anchored:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)
            self.register_buffer("weight", torch.zeros(config.vector, 2 * config.states))  # [d, 2h]
            self.register_buffer("bias", torch.zeros(config.vector))

    def forward(self, x: Tensor, mask: Tensor, own: Tensor | None = None) -> Tensor:
        """States [B, T, h] → [B, d]; ``own`` [B, d] is the encoder's query, where the layer is the last."""
        y = self.into(x)
        for layer in self.layers:
            y = layer(y, mask)
        out: Tensor = self.out(y[:, 0] if self.pooling == "cls" else mean(y, mask))
        if not self.anchored:
            return out
        return out + (F.linear(summary(x, mask), self.weight, self.bias) if own is None else own)

    @torch.no_grad()
    def anchor(self, summaries: Tensor, targets: Tensor, ridge: float = 1.0) -> None:
        """Set the map to the ridge regression of the encoder's queries [n, d] on summaries [n, 2h]."""
        x, y = summaries.double(), targets.double()
        center, middle = x.mean(0), y.mean(0)
        x, y = x - center, y - middle
        gram = x.T @ x
        gram.diagonal().add_(ridge)
        weight = torch.linalg.solve(gram, x.T @ y).T  # [d, 2h]
        self.weight.copy_(weight)
        self.bias.copy_(middle - weight @ center)


class LayerQueries(nn.Module):
    """A retrieval network per layer, and how much each layer counts in a fused list."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.config = config
        self.networks = nn.ModuleList(RNet(config) for _ in config.asking)
        self.shares = nn.Parameter(torch.zeros(len(config.asking)))  # [L] logits

    def forward(
        self, layers: Sequence[Tensor], mask: Tensor, own: Tensor | None, asking: Sequence[int] | None = None
    ) -> Tensor:
        """States of the asking layers, [B, T, h] each → queries [B, L, d].

        Args:
            layers: One for each of ``asking``.
            mask: [B, T] where there is a token.
            own: [B, d] the encoder's query, for the layer that is its last.
            asking: Places among the trained layers; ``None`` for all.
        """
        raise NotImplementedError
