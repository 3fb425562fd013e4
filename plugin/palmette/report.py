"""What was measured: one row a system, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["SHOWN", "Report", "Row"]

SHOWN = ("ndcg@10", "recall@1", "recall@10", "recall@100", "mrr@10")
"""The metrics that tables show."""
ANSWERS = ("accuracy@10", "em", "f1", "silent")
"""And where a reader answered."""


@dataclass(frozen=True)
class Row:
    """One system's figures.

    Attributes:
        name: The system.
        metrics: Quality, means over the queries.
        latency_ms: Percentiles of one query asked alone, encoding included.
        prepare_seconds: Encoding and indexing all documents.
        visited: Documents compared with each query, on average, as a share of all.
    """

    name: str
    metrics: Mapping[str, float]
    latency_ms: Mapping[str, float]
    prepare_seconds: float
    visited: float


@dataclass(frozen=True)
class Report:
    """What was measured, on what."""

    data: str
    split: str
    documents: int
    queries: int
    rows: Sequence[Row] = field(default_factory=list)

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def table(self) -> str:
        """A table for people."""
        shown = [*SHOWN, *(name for name in ANSWERS if any(name in row.metrics for row in self.rows))]
        head = ["", *shown, "p50 ms", "p95 ms", "prepare s", "visited"]
        lines = [
            [
                row.name,
                *(f"{row.metrics[name]:.4f}" for name in shown),
                *(f"{row.latency_ms[name]:.1f}" for name in ("p50", "p95")),
                f"{row.prepare_seconds:.1f}",
                f"{row.visited:.0%}",
            ]
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
        printed = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in [head, *lines]
        ]
        title = f"{self.data}, {self.split}: {self.queries:,} queries, {self.documents:,} documents"
        return "\n".join([title, *printed])
