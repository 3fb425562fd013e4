"""Split functions s_t(x): what scores a text at every node, all nodes in one pass.

Each is ``f(states, n)`` → [B, n], the scores of the first n nodes; a shallower level needs no deeper node.
(B batch, T tokens, d width, N nodes, H heads, k head width, E embeddings per node, D depth.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from palmette.encoder import States
from palmette.methods.tree.config import TreeConfig

__all__ = ["CrossAttention", "Linear", "Mlp", "Refine", "pooled"]

PART = 1 << 25
"""Numbers that one pass of attention may hold; more nodes than that go in parts."""
REFINING = 8
"""Hidden width of the small networks that nodes and leaves have of their own."""


def pooled(states: States) -> Tensor:
    """The embedding [B, d]."""
    assert states.pooled is not None
    return states.pooled


class Linear(nn.Module):
    """A hyperplane per node: s_t(x) = a_t (θ_t·x + b_t).

    The slopes a are set where training begins and stay; so a step of the optimiser turns gentle splits no
    further than steep ones.
    """

    slopes: Tensor

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.zeros(nodes, width))  # [N, d] θ
        self.offsets = nn.Parameter(torch.zeros(nodes))  # [N] b
        self.register_buffer("slopes", torch.ones(nodes))  # [N] a

    def forward(self, states: States, n: int) -> Tensor:
        """[B, n]."""
        return F.linear(pooled(states), self.directions[:n], self.offsets[:n]) * self.slopes[:n]


class Mlp(nn.Module):
    """One hidden layer shared by all nodes, and a row of weights for each."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.dropout = config.split_dropout
        self.hidden = nn.Linear(config.width, config.hidden)
        self.out = nn.Parameter(
            torch.randn(config.scored, config.hidden) / math.sqrt(config.hidden)
        )  # [N, hidden]

    def forward(self, states: States, n: int) -> Tensor:
        """[B, n]."""
        inner = F.dropout(F.relu(self.hidden(pooled(states))), self.dropout, self.training)  # [B, hidden]
        return F.linear(inner, self.out[:n])


class CrossAttention(nn.Module):
    """Node embeddings ask, the text's tokens answer; what each node hears becomes its score.

    Queries, keys and values are projected by matrices that all nodes share.
    """

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.heads, self.many = config.heads, config.node_embeddings
        inner = config.heads * config.head_width  # H·k
        self.embeddings = nn.Parameter(torch.randn(config.scored, self.many, inner))  # [N, E, H·k]
        self.query = nn.Linear(inner, inner, bias=False)
        self.key = nn.Linear(config.token_width, inner, bias=False)
        self.value = nn.Linear(config.token_width, inner, bias=False)
        shared = config.aggregation == "mean_then_linear"
        rows = 1 if shared else config.scored
        self.out = nn.Parameter(torch.randn(rows, inner) / math.sqrt(inner))  # [1 or N, H·k]

    def forward(self, states: States, n: int) -> Tensor:
        """[B, n]."""
        tokens, mask = states.tokens, states.mask
        assert tokens is not None
        assert mask is not None
        key, value = self._heads(self.key(tokens)), self._heads(self.value(tokens))  # [B, H, T, k]
        seen = mask[:, None, None, :]  # [B, 1, 1, T]
        size = max(
            1, PART // (tokens.shape[0] * self.heads * self.many * max(tokens.shape[1], key.shape[-1]))
        )
        parts = []
        for start in range(0, n, size):
            asked = slice(start, min(start + size, n))
            out = self.out if len(self.out) == 1 else self.out[asked]
            given = (self.embeddings[asked], out, key, value, seen)
            keep = torch.is_grad_enabled() and n > size
            parts.append(
                checkpoint(self._attend, *given, use_reentrant=False) if keep else self._attend(*given)
            )
        return torch.cat(parts, dim=1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)  # [B, T, H·k] → [B, H, T, k]

    def _attend(self, embeddings: Tensor, out: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        """Scores of some nodes: [n, E, H·k] embeddings → [B, n]."""
        query = self._heads(self.query(embeddings.flatten(0, 1))[None]).expand(
            len(key), -1, -1, -1
        )  # [B, H, n·E, k]
        heard = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)  # [B, H, n·E, k]
        heard = heard.reshape(*heard.shape[:2], -1, self.many, heard.shape[-1]).mean(3)  # [B, H, n, k]
        readout = out.reshape(len(out), self.heads, -1).expand(heard.shape[2], -1, -1)  # [n, H, k]
        return torch.einsum("bhnk,nhk->bn", heard, readout)  # a mean of linear maps is the map of the mean


class Refine(nn.Module):
    """The ``tree`` aggregation: a node's score, corrected by a small network over its own and its ancestors' scores."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        shape = config.shape
        splits = shape.splits.tolist()
        place = {node: at for at, node in enumerate(splits)}
        above = torch.zeros(
            len(splits), config.depth, dtype=torch.long
        )  # [N, D] places of itself and its ancestors
        there = torch.zeros(len(splits), config.depth)  # [N, D] 1 where there is one
        for row, node in enumerate(splits):
            for column in range(config.depth):
                above[row, column], there[row, column] = place[node], 1.0
                if node == 0:
                    break
                node = (node - 1) // 2
        self.register_buffer("above", above, persistent=False)
        self.register_buffer("there", there, persistent=False)
        self.inner = nn.Parameter(torch.randn(len(splits), config.depth, REFINING) / math.sqrt(config.depth))
        self.bias = nn.Parameter(torch.zeros(len(splits), REFINING))
        self.out = nn.Parameter(torch.randn(len(splits), REFINING) / math.sqrt(REFINING))

    above: Tensor
    there: Tensor

    def forward(self, scores: Tensor) -> Tensor:
        """[B, n] → [B, n]."""
        n = scores.shape[1]
        seen = scores[:, self.above[:n]] * self.there[:n]  # [B, n, D]
        inner = F.relu(torch.einsum("bnd,ndh->bnh", seen, self.inner[:n]) + self.bias[:n])  # [B, n, REFINING]
        inner = F.dropout(inner, 0.1, self.training)
        return scores + torch.einsum("bnh,nh->bn", inner, self.out[:n])
