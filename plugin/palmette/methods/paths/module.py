"""The indexer I_φ, and the space it reads (n texts, m width, B branches, H heights, β beam)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.paths.config import PathsConfig

if TYPE_CHECKING:
    from palmette.encoder import Backbone

__all__ = ["Beam", "Indexer", "Part", "Paths", "Routed"]

Part = Tensor | tuple[Tensor, Tensor]
"""Texts: embeddings [n, m], or padded token ids [n, T] and where there is a token."""

SMALL = 0.02
"""Standard deviation at which U begins."""


class Routed(NamedTuple):
    """Where texts go when they always take the likeliest child.

    Attributes:
        embedding: [n, B·H] path embedding T(x): the probabilities of the children at every height, root first.
        path: [n, H] the children taken.
    """

    embedding: Tensor
    path: Tensor


class Beam(NamedTuple):
    """The likeliest leaves of texts, best first.

    Attributes:
        leaves: [n, β] leaf numbers.
        probabilities: [n, β] of reaching them.
    """

    leaves: Tensor
    probabilities: Tensor


class Indexer(nn.Module):
    """One network per height: p = softmax(Wᵀ F(x; U) + b), F(x; U) = x + ReLU(Uᵀx), x = [one-hots of the path; text].

    The bias is not the paper's: it lets the start be any k-means, and full leaves be less attractive.
    """

    def __init__(self, branches: int, height: int, width: int) -> None:
        super().__init__()
        self.branches, self.height = branches, height
        sizes = [branches * h + width for h in range(height)]
        self.inner = nn.ParameterList(nn.Parameter(torch.randn(s, s) * SMALL * s**-0.5) for s in sizes)
        self.outer = nn.ParameterList(nn.Parameter(torch.randn(s, branches) * s**-0.5) for s in sizes)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(branches)) for _ in sizes)

    def transformed(self, x: Tensor, path: Tensor) -> Tensor:
        """F([one-hots; text]) of texts [n, m] that have come along paths [n, h]: [n, h·B + m], the last turn first."""
        h = path.shape[1]
        ways = F.one_hot(path.flip(1), self.branches).flatten(1).to(x.dtype)  # [n, h·B]
        k = torch.cat([ways, x], dim=1)
        return k + torch.relu(k @ self.inner[h])

    def logits(self, x: Tensor, path: Tensor) -> Tensor:
        """For the children there: [n, B]."""
        h = path.shape[1]
        logits: Tensor = self.transformed(x, path) @ self.outer[h] + self.bias[h]
        return logits.float()

    def forward(self, x: Tensor) -> Routed:
        """The path embedding along the likeliest path: [n, m] → [n, B·H]."""
        reached = x.new_ones(len(x), 1, dtype=torch.float32)
        path = torch.zeros(len(x), 0, dtype=torch.int64, device=x.device)
        parts = []
        for _ in range(self.height):
            p = self.logits(x, path).softmax(1) * reached  # [n, B]
            parts.append(p)
            best = p.argmax(1, keepdim=True)
            reached, path = p.gather(1, best), torch.cat([path, best], dim=1)
        return Routed(torch.cat(parts, dim=1), path)

    def beam(self, x: Tensor, beam: int) -> Beam:
        """The β likeliest leaves by beam search, over all texts and beams at once (exact from β ≥ B^(H−1) on)."""
        n = len(x)
        reached = x.new_ones(n, 1, dtype=torch.float32)  # [n, b]
        path = torch.zeros(n, 1, 0, dtype=torch.int64, device=x.device)  # [n, b, h]
        for _ in range(self.height):
            b = path.shape[1]
            each = x[:, None].expand(-1, b, -1).reshape(n * b, -1) if b > 1 else x
            p = self.logits(each, path.flatten(0, 1)).softmax(1).view(n, b, -1) * reached[..., None]
            reached, at = p.flatten(1).topk(min(beam, b * self.branches), dim=1)  # [n, b']
            before = path.gather(1, (at // self.branches)[..., None].expand(-1, -1, path.shape[2]))
            path = torch.cat([before, (at % self.branches)[..., None]], dim=2)
        return Beam(self.numbers(path), reached)

    def numbers(self, paths: Tensor) -> Tensor:
        """Paths [..., H] → leaf numbers [...]."""
        powers = [self.branches**h for h in range(self.height - 1, -1, -1)]
        numbers: Tensor = (paths * torch.tensor(powers, device=paths.device)).sum(-1)
        return numbers


class Paths(nn.Module):
    """A residual linear map of the encoder's embeddings, and the indexer on it; both learn together.

    Attributes:
        backbone: The encoder itself, where it learns too.
        centres: [L, m] mean vector of the training's documents in each leaf, for explanations.
    """

    centres: Tensor

    def __init__(self, config: PathsConfig, backbone: Backbone | None = None) -> None:
        super().__init__()
        assert config.branches is not None
        self.config = config
        self.backbone = backbone
        if backbone is not None:
            backbone.freeze(1 if config.encoder_learns == "last" else None)
        self.adapter = nn.Parameter(torch.zeros(config.width, config.width))
        self.indexer = Indexer(config.branches, config.height, config.width)
        self.register_buffer("centres", torch.zeros(config.leaves, config.width))

    @property
    def transformer_learns(self) -> bool:
        """Whether training gains from bfloat16 on CPUs that have it."""
        return self.backbone is not None

    @property
    def paces(self) -> dict[str, float]:
        """Learning rates of parts, as multiples of the run's."""
        return {"indexer.": self.config.indexer_rate, "backbone.": self.config.encoder_rate}

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings [n, m] → [n, m], rows of length 1."""
        return F.normalize((x + F.linear(x, self.adapter)).float(), dim=1)

    def forward(self, *parts: Part) -> tuple[Tensor, Routed]:
        """Embeddings [n, m], or texts by their tokens → our vectors of all of them, and where they go."""
        read = torch.cat([self._read(part) for part in parts])
        if self.backbone is None:
            vectors = self.embed(read)
            return vectors, self.indexer(vectors)
        with torch.autocast(read.device.type, enabled=False):  # half precision is for the transformer alone
            vectors = self.embed(read.float())
            return vectors, self.indexer(vectors)

    def _read(self, part: Part) -> Tensor:
        if isinstance(part, Tensor):
            return part
        assert self.backbone is not None
        ids, there = part
        return self.backbone.pool(self.backbone(ids, there), there)
