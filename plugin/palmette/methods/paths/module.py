"""The vector space, and the indexer on it (n texts, m width, B branches, H heights, b beam)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import Backbone
from palmette.methods.paths.config import ENCODER_RATE, SHARPNESS, PathsConfig

TextBatch = Tensor | tuple[Tensor, Tensor]
"""Texts: embeddings [n, m], or padded token ids and token mask [n, T] each."""

INITIAL_DEVIATION = 0.02
"""Initial standard deviation of U."""
BEAM_FACTOR = 2
"""Width of the beam below the root, as a multiple of the leaves that are then ordered."""
LEAST_LOG_PROBABILITY = -69.08
"""Log probability below which leaves are ordered by their centroids alone."""
TEXTS_AT_ONCE = 64
"""Texts whose wide beams are in memory together."""
TEXTS_PER_ROUTING = 4096
"""Texts routed together to their likeliest leaf."""


class Routed(NamedTuple):
    """Likeliest path: its embedding T(x) [n, B·H] (probabilities of the children, root first), and its turns [n, H]."""

    embedding: Tensor
    path: Tensor


class Beam(NamedTuple):
    """Likeliest leaves, best first: numbers [n, b] and log probabilities [n, b]."""

    leaves: Tensor
    logs: Tensor


class Indexer(nn.Module):
    """One network per height: p = softmax(Wᵀ F(x; U) + b), F(x; U) = x + ReLU(Uᵀx), x = [one-hots of the path; text].

    The bias is not the paper's: it makes any k-means a possible start, and full leaves less attractive.
    """

    def __init__(self, branches: int, height: int, width: int) -> None:
        super().__init__()
        self.branches, self.height = branches, height
        sizes = [branches * h + width for h in range(height)]
        self.inner = nn.ParameterList(nn.Parameter(torch.randn(s, s) * INITIAL_DEVIATION * s**-0.5) for s in sizes)
        self.outer = nn.ParameterList(nn.Parameter(torch.randn(s, branches) * s**-0.5) for s in sizes)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(branches)) for _ in sizes)

    def transformed(self, x: Tensor, path: Tensor) -> Tensor:
        """F([one-hots; text]) of texts [n, m] after paths [n, b, h]: [n, b, h·B + m], the last turn first."""
        h, turns = path.shape[2], path.flip(2)
        inner, shift = self.inner[h], h * self.branches
        if not h:
            return (x + torch.relu(x @ inner))[:, None]
        rows = turns + self.branches * torch.arange(h, device=x.device)  # rows of U that the one-hots select
        hidden = (x @ inner[shift:])[:, None] + inner[rows].sum(2)  # [n, b, h·B + m]
        hot = F.one_hot(turns, self.branches).flatten(2).to(x.dtype)  # [n, b, h·B]
        return torch.cat([hot, x[:, None].expand(-1, path.shape[1], -1)], dim=2) + torch.relu(hidden)

    def log_probabilities(self, x: Tensor, path: Tensor) -> Tensor:
        """Children of paths [n, b, h]: [n, b, B] (equation 1)."""
        h = path.shape[2]
        logits: Tensor = self.transformed(x, path) @ self.outer[h] + self.bias[h]
        return logits.log_softmax(2)

    def forward(self, x: Tensor) -> Routed:
        """Likeliest path of texts [n, m]."""
        reached = x.new_ones(len(x), 1)
        path = torch.zeros(len(x), 0, dtype=torch.int64, device=x.device)
        parts = []
        for _ in range(self.height):
            p = self.log_probabilities(x, path[:, None])[:, 0].exp() * reached  # [n, B]
            parts.append(p)
            best = p.argmax(1, keepdim=True)
            reached, path = p.gather(1, best), torch.cat([path, best], dim=1)
        return Routed(torch.cat(parts, dim=1), path)

    def beam(self, x: Tensor, width: int) -> Beam:
        """Likeliest leaves of texts [n, m] by beam search; exact for a width of at least B^(H−1)."""
        reached = x.new_zeros(len(x), 1)  # [n, b]
        path = torch.zeros(len(x), 1, 0, dtype=torch.int64, device=x.device)  # [n, b, h]
        for _ in range(self.height):
            logs = (self.log_probabilities(x, path) + reached[..., None]).flatten(1)  # [n, b·B]
            reached, at = logs.topk(min(width, logs.shape[1]), dim=1)  # [n, b']
            before = path.gather(1, (at // self.branches)[..., None].expand(-1, -1, path.shape[2]))
            path = torch.cat([before, (at % self.branches)[..., None]], dim=2)
        return Beam(self.numbers(path), reached)

    def numbers(self, paths: Tensor) -> Tensor:
        """Paths [..., H] → leaf numbers [...]."""
        powers = [self.branches**h for h in range(self.height - 1, -1, -1)]
        numbers: Tensor = (paths * torch.tensor(powers, device=paths.device)).sum(-1)
        return numbers

    def path_of(self, leaf: int) -> list[int]:
        """Turns that lead to a leaf."""
        return [leaf // self.branches**h % self.branches for h in range(self.height - 1, -1, -1)]

    def name_of(self, leaf: int) -> str:
        """Turns that lead to a leaf, such as ``3.17``."""
        return ".".join(map(str, self.path_of(leaf)))


class Paths(nn.Module):
    """The indexer on the embeddings of an encoder, which may learn too."""

    centres: Tensor
    """[L, m] mean vector of the training documents in each leaf; zero before training ends."""
    lr_scale: Mapping[str, float] = {"backbone.": ENCODER_RATE}

    def __init__(self, config: PathsConfig, backbone: Backbone | None = None) -> None:
        super().__init__()
        assert config.branches is not None
        self.config, self.backbone = config, backbone
        self.transformer_learns = backbone is not None
        if backbone is not None:
            backbone.freeze(None)
        self.indexer = Indexer(config.branches, config.height, config.width)
        self.register_buffer("centres", torch.zeros(config.leaves, config.width))

    def router(self) -> Paths:
        """Copy in double precision on the CPU, without backbone: equal results in any batch."""
        copy = deepcopy(self, {id(self.backbone): None})
        return copy.to("cpu", torch.float64).requires_grad_(False)

    def forward(self, *parts: TextBatch) -> tuple[Tensor, Routed]:
        """Unit vectors of texts [n, m], and their paths."""
        read = torch.cat([self.read(part) for part in parts])
        with torch.autocast(read.device.type, enabled=False):  # half precision is for the transformer alone
            vectors = F.normalize(read.float(), dim=1)
            return vectors, self.indexer(vectors)

    def read(self, part: TextBatch) -> Tensor:
        """Embeddings [n, m] of the encoder."""
        if isinstance(part, Tensor):
            return part
        assert self.backbone is not None
        return self.backbone.pool(self.backbone(*part), part[1])

    def leaf_of(self, x: Tensor) -> Tensor:
        """Likeliest leaf [n] of unit vectors [n, m]."""
        return torch.cat([self.indexer.beam(part, 1).leaves[:, 0] for part in torch.split(x, TEXTS_PER_ROUTING)])

    def leaves_in_order(self, x: Tensor, count: int) -> Beam:
        """First ``count`` leaves to visit of unit vectors [n, m].

        Leaves of a beam are ordered by log probability plus weighted cosine with the leaf's centroid.
        """
        weight, every = self.config.centroid_weight * SHARPNESS, self.config.leaves
        wide = every if self.indexer.height == 1 else min(every, BEAM_FACTOR * count)
        parts = []
        for part in torch.split(x, TEXTS_AT_ONCE):
            leaves, logs = self.indexer.beam(part, wide)
            near = (part @ self.centres.T).gather(1, leaves)
            score = logs.clamp(min=LEAST_LOG_PROBABILITY) + weight * near if weight else logs
            at = score.topk(min(count, wide), dim=1).indices
            parts.append((leaves.gather(1, at), logs.gather(1, at)))
        return Beam(*map(torch.cat, zip(*parts, strict=True)))
