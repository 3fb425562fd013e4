"""The two towers (B batch, w width of the encoder's embedding, d of ours, N known nodes)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.taxonomy.nodes import Nodes

__all__ = ["Head", "Towers"]

SMALL = 0.1
"""Standard deviation at which rows of a lookup table begin."""
PACE = 10.0
"""How much faster a row of a table learns than a head's weight: it is met far less often."""


def principal(x: Tensor) -> Tensor:
    """Directions along which embeddings [n, w] spread most, widest first: [min(n, w), w]."""
    part = x[:: max(1, len(x) // 20_000)].double()
    _, vectors = torch.linalg.eigh(part.T @ part)  # ascending, as columns
    axes: Tensor = vectors.flip(1).T[: min(x.shape)].float()
    return axes


class Head(nn.Module):
    """Encoder embedding → ours: linear, and what a hidden layer adds to that."""

    def __init__(self, config: TaxonomyConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, config.dimension)
        self.inner = nn.Linear(config.width, config.hidden) if config.hidden else None
        self.outer = nn.Linear(config.hidden, config.dimension) if config.hidden else None
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if self.outer is not None:
            nn.init.zeros_(self.outer.weight)
            nn.init.zeros_(self.outer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, w] → [B, d]."""
        y: Tensor = self.linear(x)
        if self.inner is not None and self.outer is not None:
            y = y + self.outer(F.gelu(self.inner(x)))
        return y


class Table(nn.Module):
    """A learned row per node."""

    def __init__(self, nodes: int, dimension: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(nodes, dimension))  # [N, d]

    def forward(self, rows: Tensor) -> Tensor:
        """[B] → [B, d]."""
        return F.embedding(rows, self.rows, sparse=True)  # a step costs its batch, not the table


class Towers(nn.Module):
    """A query tower and a document tower, each a head on text, a table of rows, or (documents) their sum.

    Besides what is learned it keeps what is measured once training is over: the embeddings of the nodes, for
    explanations, and the calibration of the cut-off.
    """

    vectors: Tensor
    cut: Tensor

    def __init__(self, config: TaxonomyConfig, nodes: Nodes | None = None) -> None:
        super().__init__()
        self.config = config
        self.nodes = nodes
        self.paces = {"query_rows": PACE, "document_rows": PACE}
        lookup = Table(config.nodes, config.dimension) if config.documents != "text" else None
        self.document_rows = lookup
        self.query_rows = Table(config.nodes, config.dimension) if config.queries == "lookup" else None
        self.query_head = Head(config) if config.queries == "text" else None
        self.document_head = None
        if config.documents != "lookup":
            self.document_head = self.query_head if config.heads == "shared" else Head(config)
        kept = 0 if config.documents == "lookup" else config.nodes  # the table holds them already
        self.register_buffer("vectors", torch.zeros(kept, config.dimension))  # [N, d]
        self.register_buffer("cut", torch.tensor([1.0, 0.0, 0.0, 1.0]))  # [4], see ``calibration.py``

    @torch.no_grad()
    def begin(self, x: Tensor | None, generator: torch.Generator) -> None:
        """Both heads start alike, as the principal directions of all documents [n, w]; tables small and at random."""
        config = self.config
        if self.query_head is not None and x is not None:
            weight = self.query_head.linear.weight  # [d, w]
            weight.copy_(torch.randn(weight.shape, generator=generator) * config.width**-0.5)
            axes = principal(x)[: config.dimension]
            weight[: len(axes)] = axes
            if self.document_head is not None:
                self.document_head.load_state_dict(self.query_head.state_dict())
        for table in (self.query_rows, self.document_rows):
            if table is not None and config.documents == "lookup":
                table.rows.copy_(torch.randn(table.rows.shape, generator=generator) * SMALL)

    @torch.no_grad()
    def fill(self, queries: Tensor, documents: Tensor) -> None:
        """Set the rows of both tables [N, d]."""
        for table, rows in ((self.query_rows, queries), (self.document_rows, documents)):
            assert table is not None
            table.rows.copy_(rows)

    @property
    def node_vectors(self) -> Tensor:
        """[N, d] embeddings of the known nodes."""
        if self.document_head is None and self.document_rows is not None:
            return self._finish(self.document_rows.rows)
        return self.vectors

    def queries(self, inputs: Tensor) -> Tensor:
        """Encoder embeddings [B, w], or rows of nodes [B], → [B, d]."""
        tower = self.query_head if self.query_head is not None else self.query_rows
        assert tower is not None
        return self._finish(tower(inputs))

    def documents(self, inputs: Tensor | None, rows: Tensor) -> Tensor:
        """Encoder embeddings [B, w] and rows of nodes [B] (−1 where it is none) → [B, d]."""
        parts = []
        if self.document_head is not None:
            assert inputs is not None
            parts.append(self.document_head(inputs))
        if self.document_rows is not None:
            known = self.document_rows(rows.clamp(min=0))
            parts.append(known * (rows >= 0)[:, None])
        return self._finish(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])

    def forward(self, queries: Tensor, documents: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both towers in one pass, as training needs them."""
        return self.queries(queries), self.documents(documents, rows)

    def _finish(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=1) if self.config.similarity == "cosine" else x.float()
