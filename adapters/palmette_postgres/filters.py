"""Filters as conditions in SQL on the table ``documents``; :mod:`palmette.store.filters` says what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from palmette.store.filters import And, Condition, Filter, Ids, Not, Or, Scalar
from palmette_postgres.schema import escape, plain

Sql = tuple[str, list[Any]]
"""A condition and its parameters."""
OUTER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""Operators of jsonpath; it compares numbers with numbers, and text with text by code points."""


def to_sql(node: Filter, judged: Callable[[Condition], list[int]]) -> Sql:
    """Write a filter as a condition that is never null.

    ``judged`` gives the keys of the documents that pass a condition which SQL cannot express.
    """
    match node:
        case And(parts) | Or(parts):
            each = [to_sql(part, judged) for part in parts]
            word = " AND " if isinstance(node, And) else " OR "
            return f"({word.join(text for text, _ in each)})", [value for _, values in each for value in values]
        case Not(part):
            text, values = to_sql(part, judged)
            return f"NOT {text}", values
        case Ids(ids):
            return "(id = ANY(%s))", [[escape(id) for id in sorted(ids)]]
        case Condition(name, "exists"):
            return '("values" ? %s)', [escape(name)]
        case Condition(name, "in", values):
            return '("values" @> ANY(%s::jsonb[]))', [[_held(name, value) for value in values]]
        case Condition(name, "all", values):
            return '("values" @> %s::jsonb)', [_held(name, *values)]
    name, op, value = node.name, node.op, node.values[0]
    if op in OUTER:
        path = f"$[*] ? (@ {OUTER[op]} $value)"
        variables = json.dumps({"value": plain(value)}, ensure_ascii=False)
        return f"coalesce(jsonb_path_exists(\"values\" -> %s, '{path}', %s::jsonb), false)", [escape(name), variables]
    if op == "contains" and isinstance(value, str) and not any(sign in value for sign in "\0\1\2\3"):
        items = "jsonb_array_elements(coalesce(\"values\" -> %s, '[]')) AS item"
        text = "jsonb_typeof(item) = 'string' AND strpos((item #>> '{}') COLLATE \"C\", %s) > 0"
        return f"EXISTS (SELECT FROM {items} WHERE {text})", [escape(name), value]
    return "(key = ANY(%s))", [judged(node)]  # letters of either case, as Python folds them


def _held(name: str, *values: Scalar) -> str:
    """JSON that metadata contain which have all these values under a name."""
    return json.dumps({escape(name): [plain(value) for value in values]}, ensure_ascii=False)
