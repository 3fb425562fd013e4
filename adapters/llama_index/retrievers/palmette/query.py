"""PalmetteQuery: a query with its own k, filters and search options; LlamaIndex's filters as palmette's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from palmette.config import check_kind
from palmette.errors import FilterError, shown

Filters = MetadataFilters | MetadataFilter | Mapping[str, Any] | None
"""LlamaIndex's filters, or palmette's such as ``{"year": {"$gte": 2020}}``."""

_RENAMED = {
    FilterOperator.TEXT_MATCH: "$contains",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$icontains",
    FilterOperator.CONTAINS: "$eq",  # equality with a list means that the list has the element
}
"""Operators that palmette does not call by the same name in lower case, such as ``$gte``."""


def palmette_filter(filters: Filters) -> dict[str, Any] | None:
    """Convert LlamaIndex's filters to palmette's language; ``None`` where there is nothing to filter by."""
    if filters is None:
        return None
    if isinstance(filters, Mapping):
        return dict(filters) or None
    if isinstance(filters, MetadataFilter):
        if filters.operator is FilterOperator.IS_EMPTY:
            return {filters.key: {"$exists": False}}  # missing, null and [] are the same here
        operator = _RENAMED.get(filters.operator, f"${filters.operator.name.lower()}")
        return {filters.key: {operator: filters.value}}
    if not isinstance(filters, MetadataFilters):
        raise FilterError(
            f"filters are MetadataFilters or a mapping, got {type(filters).__name__}: {shown(filters, 200)}"
        )
    parts = [part for part in map(palmette_filter, filters.filters) if part is not None]
    if not parts:
        return None
    match filters.condition:
        case FilterCondition.OR:
            return {"$or": parts}
        case FilterCondition.NOT:  # none of them holds
            return {"$not": {"$or": parts}}
    return parts[0] if len(parts) == 1 else {"$and": parts}


@dataclass(init=False)
class PalmetteQuery(QueryBundle):
    """A query bundle with search settings of its own, for retrievers and query engines.

        retriever.retrieve(PalmetteQuery("a question", top_k=3, filters={"lang": "en"}, level=6))
        query_engine.query(PalmetteQuery("a question", top_k=20))

    The retriever's settings are the defaults.

    Attributes:
        top_k: Number of nodes, instead of the retriever's ``similarity_top_k``.
        filters: Filters that narrow the retriever's own, and cannot widen them.
        score_threshold: Leave out nodes that score less.
        lexical: Weight of words beside the method: 0 … 1, or ``"auto"``.
        explain: Whether to return :class:`ExplainedNode`.
        options: Search options of the method, also taken as keywords (``level=6``).
    """

    top_k: int | None = None
    filters: Filters = None
    score_threshold: float | None = None
    lexical: float | Literal["auto"] | None = None
    explain: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        query_str: str,
        image_path: str | None = None,
        custom_embedding_strs: list[str] | None = None,
        embedding: list[float] | None = None,
        *,
        top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        lexical: float | Literal["auto"] | None = None,
        explain: bool | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        check_kind("options", options, (Mapping, type(None)), "a mapping")
        super().__init__(query_str, image_path, custom_embedding_strs, embedding)
        self.top_k, self.filters, self.score_threshold = top_k, filters, score_threshold
        self.lexical, self.explain = lexical, explain
        self.options = {**(options or {}), **more}
