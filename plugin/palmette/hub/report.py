"""Report of an evaluation: figures of several systems on one data set, as a table and in model cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SHOWN_METRICS = ("ndcg@10", "recall@1", "recall@10", "recall@100", "mrr@10")
"""Metrics that tables show."""


@dataclass(frozen=True)
class Row:
    """Figures of one system."""

    name: str
    metrics: Mapping[str, float]  # means over the queries
    latency_ms: Mapping[str, float]  # percentiles of one query asked alone, encoding included
    prepare_seconds: float  # encoding and indexing all documents
    visited: float  # documents compared with each query, on average, as a share of all


@dataclass(frozen=True)
class Report:
    """Figures of several systems on one data set."""

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
        lines = [["", *SHOWN_METRICS, "p50 ms", "p95 ms", "prepare s", "visited"]]
        for row in self.rows:
            figures = [f"{row.metrics[name]:.4f}" for name in SHOWN_METRICS]
            latency = [f"{row.latency_ms[name]:.1f}" for name in ("p50", "p95")]
            lines.append([row.name, *figures, *latency, f"{row.prepare_seconds:.1f}", f"{row.visited:.0%}"])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        title = f"{self.data}, {self.split}: {self.queries:,} queries, {self.documents:,} documents"
        rows = ("  ".join(map(str.rjust, line, widths)) for line in lines)
        return "\n".join([title, *rows])
