"""Values of metadata: what JSON can hold, and how a value is written as text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from uuid import UUID

from palmette.errors import shown

_DEPTH = 100
"""Most levels of nested values; Python's own limit lies far above."""
_BITS = 14_000
"""Most bits of an integer; Python refuses to write longer ones out."""
_INT64 = 2**63
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot encode."""


def json_fault(value: object, place: str, depth: int = 0) -> str | None:
    """Describe the first part of a value that is not JSON, and its replacement; ``None`` if all of it is JSON."""
    if depth > _DEPTH:
        return f"{place[:80]!r} is nested more than {_DEPTH} deep"
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"{place!r} is an integer of {value.bit_length()} bits; write it as text"
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return f"{place or 'it'} has the key {shown(key)}; write {shown(shown(key))}"
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        faults = (json_fault(inner, f"{place}.{key}" if place else str(key), depth + 1) for key, inner in items)
        return next(filter(None, faults), None)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    hints = {"isoformat": "its isoformat()", "item": "its item()", "union": "a sorted list"}
    hint = next((text for name, text in hints.items() if hasattr(value, name)), "text, numbers, lists or None")
    return f"{place!r} is {shown(value)} ({type(value).__name__}); write {hint}"


def written(value: Any) -> str:
    """A value as text: lists with commas, mappings as ``name: value``, numbers without needless digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, Mapping):
        parts = ((str(key), written(inner)) for key, inner in value.items())
        return ", ".join(f"{key}: {inner}" for key, inner in parts if inner)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(filter(None, map(written, value)))
    return str(value).strip()


def json_value(value: Any, depth: int = 0) -> Any:
    """JSON of a value that frameworks keep in metadata: dates in ISO format, UUIDs and paths as text, Python's numbers.

    Values of other types, and what is nested too deeply, stay as they are, for :class:`Document` to refuse by name.
    """
    if depth > _DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: json_value(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner, depth + 1) for inner in value]
    if isinstance(value, UUID | PurePath) or getattr(getattr(value, "dtype", None), "kind", "") == "M":
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def storable(value: Any, depth: int = 1) -> Any:
    """JSON of a file as an index can store it: no value is lost because another system allows more.

    Half of a surrogate pair becomes U+FFFD. Integers beyond 64 bits, infinities, NaN, and what is nested too deeply
    become their text. Other values stay as they are.

    >>> storable({"barcode": 40123456789012345678, "limit": float("inf")})
    {'barcode': '40123456789012345678', 'limit': 'inf'}
    """
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value) if not value.isascii() else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        if -_INT64 <= value < _INT64:
            return value
        return str(value) if value.bit_length() <= _BITS else hex(value)  # Python writes no long ones in decimals
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth >= _DEPTH:
        try:
            return storable(json.dumps(value, ensure_ascii=False, default=str))
        except (RecursionError, TypeError):
            return "\u2026"
    if isinstance(value, Mapping):
        return {storable(key): storable(inner, depth + 1) for key, inner in value.items()}
    return [storable(inner, depth + 1) for inner in value]
