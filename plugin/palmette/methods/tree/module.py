"""The network: split scores s_t(x), their propagation, and the tree of both.

Nodes are numbered as in a heap: the root is 0, node t has children 2t + 1 (left) and 2t + 2 (right), and level h holds
the nodes 2^h − 1 … 2^(h+1) − 2. Leaf c is node 2^D − 1 + c. (B batch, T tokens, d width, N split nodes, C leaves,
D depth, H heads, k head width.)
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from palmette.encoder import States
from palmette.methods.tree.config import TreeConfig

HEADS = 8
"""Attention heads H of the cross-attention split."""
HEAD_WIDTH = 64
"""Width k of an attention head."""
NODE_HIDDEN = 8
"""Hidden width of the small network that each node (and each leaf) has of its own."""
NODE_DROPOUT = 0.1
"""Dropout of these networks in training."""
NUMBERS_OF_A_PASS = 1 << 25
"""Numbers that one pass of attention or routing may hold; larger inputs are split into parts."""
LEAST_MULTIPLIER = 1e-4
"""Lower bound of a learned multiplier of similarities."""
MOST_MULTIPLIER = 1e4
"""Upper bound of a learned multiplier of similarities."""


# -- split functions: f(states, n) → [B, n] scores of the first n nodes ---------------------------------------


class Linear(nn.Module):
    """A hyperplane per node: s_t(x) = a_t (θ_t·x + b_t).

    The slopes a are set at the start and stay fixed.
    """

    slopes: Tensor

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.zeros(nodes, width))  # [N, d] θ
        self.offsets = nn.Parameter(torch.zeros(nodes))  # [N] b
        self.register_buffer("slopes", torch.ones(nodes))  # [N] a

    def forward(self, states: States, n: int) -> Tensor:
        """[B, n]."""
        embeddings: Tensor = states.pooled  # [B, d]
        return F.linear(embeddings, self.directions[:n], self.offsets[:n]) * self.slopes[:n]


class CrossAttention(nn.Module):
    """Node embeddings attend to a text's tokens, and each node's output becomes its score (equations 3 – 6).

    The projections of queries, keys and values are shared by all nodes.
    """

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        inner = HEADS * HEAD_WIDTH  # H·k
        self.embeddings = nn.Parameter(torch.randn(config.splits, 1, inner))  # [N, 1, H·k]: one per node
        self.query = nn.Linear(inner, inner, bias=False)
        self.key = nn.Linear(config.token_width, inner, bias=False)
        self.value = nn.Linear(config.token_width, inner, bias=False)
        self.out = nn.Parameter(torch.randn(config.splits, inner) / math.sqrt(inner))  # [N, H·k]

    def forward(self, states: States, n: int) -> Tensor:
        """[B, n]."""
        tokens, mask = states.tokens, states.mask
        assert tokens is not None
        assert mask is not None
        key, value = _heads(self.key(tokens)), _heads(self.value(tokens))  # [B, H, T, k]
        size = max(
            1, NUMBERS_OF_A_PASS // (len(tokens) * HEADS * max(tokens.shape[1], key.shape[-1]))
        )  # nodes of a part
        parts = []
        for start in range(0, n, size):
            nodes = slice(start, min(start + size, n))
            inputs = (self.embeddings[nodes], self.out[nodes], key, value, mask[:, None, None, :])
            if torch.is_grad_enabled() and n > size:
                parts.append(checkpoint(self._attend, *inputs, use_reentrant=False))
            else:
                parts.append(self._attend(*inputs))
        return torch.cat(parts, dim=1)

    def _attend(self, embeddings: Tensor, out: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        node_queries = _heads(self.query(embeddings.flatten(0, 1))[None])  # [1, H, n, k]
        query = node_queries.expand(len(key), -1, -1, -1)  # [B, H, n, k]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # [B, H, n, k]
        readout = out.reshape(len(out), HEADS, -1)  # [n, H, k]
        return torch.einsum("bhnk,nhk->bn", attended, readout)


def _heads(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:-1], HEADS, -1).transpose(1, 2)  # [B, T, H·k] → [B, H, T, k]


class AncestorRefinement(nn.Module):
    """Each node corrects its score by a small network over its and its ancestors' scores (the paper's ``tree``)."""

    above: Tensor
    mask: Tensor

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        number, up = torch.arange(1, config.leaves)[:, None], torch.arange(config.depth)
        above = (number >> up) - 1  # [N, D] itself, parent, …
        self.register_buffer("above", above.clamp_min(0), persistent=False)
        self.register_buffer("mask", (above >= 0).float(), persistent=False)  # [N, D]
        nodes = len(above)
        self.inner = nn.Parameter(torch.randn(nodes, config.depth, NODE_HIDDEN) / math.sqrt(config.depth))
        self.bias = nn.Parameter(torch.zeros(nodes, NODE_HIDDEN))
        self.out = nn.Parameter(torch.randn(nodes, NODE_HIDDEN) / math.sqrt(NODE_HIDDEN))

    def forward(self, scores: Tensor) -> Tensor:
        """[B, n] → [B, n]."""
        n = scores.shape[1]
        ancestors = scores[:, self.above[:n]] * self.mask[:n]  # [B, n, D]
        inner = F.relu(torch.einsum("bnd,ndh->bnh", ancestors, self.inner[:n]) + self.bias[:n])  # [B, n, hidden]
        inner = F.dropout(inner, NODE_DROPOUT, self.training)
        return scores + torch.einsum("bnh,nh->bn", inner, self.out[:n])


# -- propagation: scores → probabilities ----------------------------------------------------------------------


def propagate(scores: Tensor, level: int) -> Tensor:
    """Product propagation (equation 7): T(x)_t = ∏ of the routing probabilities on the way from the root to t.

    [B, n] scores of the first n ≥ 2^level − 1 split nodes, of which σ is the probability of going left → [B, 2^level].
    """
    reach = scores.new_ones(len(scores), 1)  # [B, 1]: everything reaches the root
    for above in range(level):
        here = scores[:, 2**above - 1 : 2 ** (above + 1) - 1]  # [B, 2^above]
        reach = torch.stack([reach * torch.sigmoid(here), reach * torch.sigmoid(-here)], dim=-1).flatten(1)
    return reach


def fold_leaves(leaves: Tensor, level: int) -> Tensor:
    """A coarser level: each node is the sum of the leaves under it ([B, C] → [B, 2^level])."""
    return leaves.reshape(len(leaves), 2**level, -1).sum(-1)


class LearnedPropagation(nn.Module):
    """A leaf's score is the product's logarithm, corrected by a small network of its own over the turns on its way.

    A softmax over all leaves follows; inner nodes are sums of their leaves, so that levels are consistent.
    """

    path: Tensor
    turns: Tensor

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        leaves, depth = config.leaves, config.depth
        leaf, down = torch.arange(leaves)[:, None], depth - torch.arange(depth)  # [C, 1], [D]
        path = ((leaf + leaves) >> down) - 1  # [C, D] splits from the root
        self.register_buffer("path", path, persistent=False)
        turns = 1.0 - 2.0 * ((leaf >> (down - 1)) & 1)  # [C, D] 1 left, −1 right
        self.register_buffer("turns", turns, persistent=False)
        self.inner = nn.Parameter(torch.randn(leaves, depth, NODE_HIDDEN) / math.sqrt(depth))
        self.bias = nn.Parameter(torch.zeros(leaves, NODE_HIDDEN))
        self.out = nn.Parameter(torch.randn(leaves, NODE_HIDDEN) / math.sqrt(NODE_HIDDEN))

    def forward(self, scores: Tensor) -> Tensor:
        """[B, N] → [B, C], rows of sum 1."""
        turned = F.logsigmoid(scores[:, self.path] * self.turns)  # [B, C, D] log-probability of each turn
        inner = F.relu(torch.einsum("bcd,cdh->bch", turned.exp(), self.inner) + self.bias)  # [B, C, hidden]
        inner = F.dropout(inner, NODE_DROPOUT, self.training)
        return torch.softmax(turned.sum(-1) + torch.einsum("bch,ch->bc", inner, self.out), dim=-1)


# -- the tree -------------------------------------------------------------------------------------------------


class Tree(nn.Module):
    """Scores of all nodes in one pass, and the probabilities that follow."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.config = config
        self.linear = None if config.reads_tokens else Linear(config.splits, config.width)
        self.beyond = CrossAttention(config) if config.reads_tokens else None
        self.refine = AncestorRefinement(config) if config.reads_tokens else None
        self.learned = LearnedPropagation(config) if config.propagation == "learned" else None
        self.log_multipliers = nn.Parameter(torch.zeros(config.depth))  # [D]

    def multiplier(self, level: int) -> Tensor:
        """Factor of a level's nTVD in the loss: overlaps of few columns differ by less than those of many."""
        return self.log_multipliers[level - 1].exp().clamp(LEAST_MULTIPLIER, MOST_MULTIPLIER)

    def forward(self, states: States, level: int | None = None) -> Tensor:
        """Probabilities of the nodes of a level, the leaves by default: [B, 2^level]."""
        config = self.config
        level = config.depth if level is None else level
        n = config.splits if self.learned else 2**level - 1  # nodes that the level needs
        split = self.linear or self.beyond
        assert split is not None
        scores: Tensor = split(states, n)  # [B, n]
        if self.refine is not None:
            scores = self.refine(scores)
        scores = F.dropout(scores, config.dropout, self.training)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.learned is None:
            return propagate(scores, level)
        leaves: Tensor = self.learned(scores)  # [B, C]
        return leaves if level == config.depth else fold_leaves(leaves, level)


class DoubleRouter:
    """A copy of a tree in double precision.

    The last digits of a sum depend on the batch that a text is in, and rounding amplifies them: in single precision 37
    of 200 texts had leaves one unit (2⁻¹⁵) apart alone and in a batch, and twins did not tie.
    """

    def __init__(self, tree: Tree) -> None:
        device = tree.log_multipliers.device
        self.device = torch.device("cpu") if device.type == "mps" else device  # mps has no double precision
        self.tree = copy.deepcopy(tree).to(self.device).double()
        self.part = max(1, NUMBERS_OF_A_PASS // (tree.config.leaves * tree.config.depth))

    def leaves(self, embeddings: Tensor) -> NDArray[np.float64]:
        """Leaf probabilities [B, C] of embeddings [B, d], for trees that read no tokens."""
        parts = torch.split(embeddings.to(self.device, torch.float64), self.part)
        return np.concatenate([self.tree(States(x)).cpu().numpy() for x in parts])

    def embed(self, embeddings: Tensor) -> NDArray[np.float64]:
        """Unit vectors [B, d]."""
        vectors: NDArray[np.float64] = F.normalize(embeddings.to(self.device, torch.float64)).cpu().numpy()
        return vectors
