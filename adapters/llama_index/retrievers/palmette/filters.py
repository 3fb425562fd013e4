"""Conversion of LlamaIndex's metadata filters to palmette's filter language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from palmette.errors import FilterError, shown

Filters = MetadataFilters | MetadataFilter | Mapping[str, Any] | None
"""LlamaIndex's filters, or palmette's such as ``{"year": {"$gte": 2020}}``."""

_OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$any",
    FilterOperator.ALL: "$all",
    FilterOperator.TEXT_MATCH: "$contains",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$icontains",
    FilterOperator.CONTAINS: "$eq",  # equality with a list means that the list has the element
}


def palmette_filter(filters: Filters) -> dict[str, Any] | None:
    """Convert LlamaIndex's filters to palmette's language; ``None`` where there is nothing to filter by."""
    if filters is None:
        return None
    if isinstance(filters, Mapping):
        return dict(filters) or None
    if isinstance(filters, MetadataFilter):
        return _single(filters)
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


def _single(condition: MetadataFilter) -> dict[str, Any]:
    if condition.operator is FilterOperator.IS_EMPTY:
        return {condition.key: {"$exists": False}}  # missing, null and [] are the same here
    return {condition.key: {_OPERATORS[condition.operator]: condition.value}}
