"""Filters as conditions on a Qdrant collection's payload."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palmette.errors import FilterError
from palmette.store.filters import And, Condition, Filter, Ids, Not, Or, Scalar, plain_number

MOST = 2**53
"""Numbers that the engine's comparisons, in double precision, tell apart."""
METADATA = "m"
"""Payload key of a point's metadata: a list of values for each name, as :func:`escaped_name` writes it."""
NAMES = "n"
"""Payload key of the metadata names that a point has, with their parents: ``a``, ``a.b``; ``$exists`` reads it."""


def escaped_name(name: str) -> str:
    """Write a metadata name without characters that a payload path may not hold: ``a.b`` becomes ``a_x2e_b``."""
    return re.sub(r"[^A-Za-z0-9_-]|_(?=x)", lambda match: f"_x{ord(match[0]):x}_", name) or "_x_"


def field_name(name: str) -> str:
    """Path of a metadata name in the payload: ``m.a_x2e_b`` for ``a.b``."""
    return f"{METADATA}.{escaped_name(name)}"


def to_qdrant(m: Any, node: Filter) -> Any:
    """Write a filter with the classes of a client (``m``); what the engine lacks raises FilterError."""
    match node:
        case And(parts):
            return m.Filter(must=[to_qdrant(m, part) for part in parts])
        case Or(parts):
            return m.Filter(should=[to_qdrant(m, part) for part in parts])
        case Not(part):
            return m.Filter(must_not=[to_qdrant(m, part)])
        case Ids(ids):
            return m.FieldCondition(key="id", match=m.MatchAny(any=sorted(ids) or [""]))  # no id is empty
        case Condition(name, "exists"):
            return m.FieldCondition(key=NAMES, match=m.MatchValue(value=name))
        case Condition(name, "in", values):
            return _among(m, field_name(name), [plain_number(value) for value in values])
        case Condition(name, "all", values):
            return m.Filter(must=[_among(m, field_name(name), [plain_number(value)]) for value in values])
    name, op, value = node.name, node.op, node.values[0]
    if isinstance(value, str):
        raise FilterError(
            f"Qdrant has no ${op} with text, asked for {name!r}: filter by equality, $in, $exists or numbers, or keep "
            "what is looked for as metadata of its own"
        )
    if abs(value) >= MOST:
        raise FilterError(f"Qdrant compares numbers below 2⁵³ only, got ${op}: {value} for {name!r}")
    return m.FieldCondition(key=field_name(name), range=m.Range(**{op: float(value)}))


def _among(m: Any, key: str, values: Sequence[Scalar]) -> Any:
    texts, whole = ([v for v in values if isinstance(v, kind)] for kind in (str, int))
    conditions = [m.FieldCondition(key=key, match=m.MatchAny(any=kind)) for kind in (texts, whole) if kind]
    parts = (value for value in values if isinstance(value, float))
    conditions += [m.FieldCondition(key=key, range=m.Range(gte=part, lte=part)) for part in parts]
    return m.Filter(should=conditions) if conditions else to_qdrant(m, Ids(frozenset()))
