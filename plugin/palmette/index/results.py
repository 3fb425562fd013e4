"""What an index answers, apart from hits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Changes", "IndexStats", "Ranking"]


@dataclass(frozen=True)
class IndexStats:
    """What an index holds."""

    documents: int
    method: str
    model: str
    location: str
    bytes: int
    segments: int
    reclaimable: int


@dataclass(frozen=True)
class Changes:
    """What a write did, by document id."""

    added: list[str]
    updated: list[str]
    unchanged: list[str]
    deleted: list[str]


@dataclass(frozen=True)
class Ranking:
    """Ids and scores per query, best first, and the share of the documents that a query was compared with."""

    ids: list[list[str]]
    scores: list[list[float]]
    visited: float
