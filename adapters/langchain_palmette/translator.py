"""PalmetteTranslator: LangChain's structured queries as palmette's filters, for SelfQueryRetriever."""

from __future__ import annotations

from typing import Any

from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery, Visitor

from palmette.errors import shown


class PalmetteTranslator(Visitor):
    """Translates the filters that a language model writes for ``SelfQueryRetriever``.

    .. code-block:: python

        SelfQueryRetriever.from_llm(
            llm, store, "Notes of an orchard", fields, structured_query_translator=PalmetteTranslator()
        )

    ``contain`` is true for an element of a list and for a part of a text; ``like`` for a part of a text in any case.
    """

    allowed_comparators = tuple(Comparator)
    allowed_operators = tuple(Operator)

    def visit_operation(self, operation: Operation) -> dict[str, Any]:
        """Filter of a logical operation."""
        parts = [part.accept(self) for part in operation.arguments]
        if operation.operator is Operator.NOT:
            return {"$not": {"$or": parts}}
        return {f"${operation.operator.value}": parts}

    def visit_comparison(self, comparison: Comparison) -> dict[str, Any]:
        """Filter of a comparison; dates are compared as ISO texts."""
        name, value, operator = comparison.attribute, comparison.value, f"${comparison.comparator.value}"
        if isinstance(value, dict):  # {"date": "2026-01-02", "type": "date"}
            value = value.get("date", value.get("datetime"))
        if comparison.comparator is Comparator.CONTAIN:
            operator = "$contains" if isinstance(value, str) else "$eq"  # equal to an element of a list
        elif comparison.comparator is Comparator.LIKE:
            operator, value = "$icontains", (value if isinstance(value, str) else shown(value)).strip("%")
        elif comparison.comparator in (Comparator.IN, Comparator.NIN) and not isinstance(value, list):
            value = [value]
        return {name: {operator: value}}

    def visit_structured_query(self, structured_query: StructuredQuery) -> tuple[str, dict[str, Any]]:
        """Return the query text and the search options."""
        condition = structured_query.filter
        return structured_query.query, {} if condition is None else {"filter": condition.accept(self)}
