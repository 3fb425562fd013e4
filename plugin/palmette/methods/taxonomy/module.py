"""The dual encoder (B batch, w width of the encoder's embedding, d of ours, N known nodes)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.training.maths import principal_directions

TABLE_STD = 0.1
"""Standard deviation of the first rows of a lookup table."""
TABLE_RATE = 10.0
"""Learning rate of a table over that of a head: a row is trained far less often."""


class Table(nn.Module):
    """A learned row per node."""

    def __init__(self, config: TaxonomyConfig) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(config.nodes, config.dimension))  # [N, d]

    def forward(self, rows: Tensor) -> Tensor:
        """[B] → [B, d]."""
        return F.embedding(rows, self.rows, sparse=True)  # a step costs its batch, not the table


class DualEncoder(nn.Module):
    """A query tower and a document tower: each a linear head on text, a table of rows, or (documents) their sum.

    Buffers keep what is measured after training: the nodes' embeddings, for explanations, and the calibration of the
    cut-off.
    """

    vectors: Tensor
    cut: Tensor

    def __init__(self, config: TaxonomyConfig, nodes: Nodes | None = None) -> None:
        super().__init__()

        def head() -> nn.Module:
            return nn.Sequential(OrderedDict(linear=nn.Linear(config.width, config.dimension)))

        self.config, self.nodes = config, nodes
        self.lr_scale = {"query_rows": TABLE_RATE, "document_rows": TABLE_RATE}
        self.document_rows = None if config.documents == "text" else Table(config)
        self.query_rows = Table(config) if config.queries == "lookup" else None
        self.query_head = head() if config.queries == "text" else None
        self.document_head = None if config.documents == "lookup" else head()
        rows = 0 if config.documents == "lookup" else config.nodes  # the table holds them already
        self.register_buffer("vectors", torch.zeros(rows, config.dimension))  # [N, d]
        self.register_buffer("cut", torch.tensor([1.0, 0.0, 0.0, 1.0]))  # [4], see ``search.py``

    @torch.no_grad()
    def initialise(self, x: Tensor | None, generator: torch.Generator) -> None:
        """Start both heads as the principal directions of all documents [n, w], and tables small and at random."""
        config = self.config
        if self.query_head is not None and x is not None:
            weight = torch.randn(config.dimension, config.width, generator=generator)  # [d, w]
            weight *= config.width**-0.5
            axes = principal_directions(x[:: max(1, len(x) // 20_000)], centre=False)[: config.dimension]
            weight[: len(axes)] = axes
            for head in filter(None, (self.query_head, self.document_head)):
                head.load_state_dict({"linear.weight": weight, "linear.bias": torch.zeros(config.dimension)})
        for table in (self.query_rows, self.document_rows):
            if table is not None and config.documents == "lookup":
                table.rows.copy_(torch.randn(table.rows.shape, generator=generator) * TABLE_STD)

    @property
    def node_vectors(self) -> Tensor:
        """[N, d] embeddings of the known nodes."""
        if self.document_head is None and self.document_rows is not None:
            return self.document_rows.rows
        return self.vectors

    def queries(self, inputs: Tensor) -> Tensor:
        """Encoder embeddings [B, w], or rows of nodes [B], → [B, d]."""
        tower = self.query_head if self.query_head is not None else self.query_rows
        assert tower is not None
        embedded: Tensor = tower(inputs)
        return embedded.float()

    def documents(self, inputs: Tensor | None, rows: Tensor) -> Tensor:
        """Encoder embeddings [B, w] and rows of nodes [B] (−1 for unknown documents) → [B, d]."""
        parts = [] if self.document_head is None else [self.document_head(inputs)]
        if self.document_rows is not None:
            parts.append(self.document_rows(rows.clamp(min=0)) * (rows >= 0)[:, None])
        embedded: Tensor = sum(parts[1:], parts[0])
        return embedded.float()

    def forward(self, queries: Tensor, documents: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Embed queries and documents in one pass, as distributed training needs it."""
        return self.queries(queries), self.documents(documents, rows)
