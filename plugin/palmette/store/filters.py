"""The filter language: which documents may be found at all, decided before any ranking.

    {"lang": "en"}                                  equality; with a list as metadata, any element
    {"year": {"$gte": 2020, "$lt": 2024}}           comparison, numbers with numbers and text with text
    {"author.name": {"$in": ["Ada", "Grace"]}}      nested metadata by dots
    {"$or": [{"lang": "en"}, {"$not": {"tags": {"$any": ["draft"]}}}]}
    {"lang": None}                                  documents without a lang
    {"$id": ["a", "b"]}                             only among these ids

What a document has under a name is a *set of values*: the scalar, or the elements of the list, or what lies
under the name in nested mappings. ``None``, ``[]`` and a missing key are all the empty set. A condition holds
when some value satisfies it (``$all``: when every given value is among them); ``$ne``, ``$nin`` and ``$not``
are the plain complements, so they hold for documents that lack the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from palmette.errors import FilterError
from palmette.store.conditions import (
    INT64,
    And,
    Condition,
    Filter,
    Ids,
    Not,
    Or,
    Scalar,
    flatten,
    holds,
    names,
)
from palmette.types import Metadata

__all__ = [
    "OPERATORS",
    "And",
    "Condition",
    "Filter",
    "Ids",
    "Not",
    "Or",
    "Scalar",
    "both",
    "flatten",
    "matches",
    "names",
    "parse_filter",
]

_MAX_DEPTH = 50


def parse_filter(given: Mapping[str, Any] | Filter | None) -> Filter | None:
    """Read a filter; ``None`` and ``{}`` mean all documents. Anything malformed raises FilterError."""
    if given is None or isinstance(given, Condition | Ids | Not | And | Or):
        return given
    if not isinstance(given, Mapping):
        raise FilterError(
            f"a filter must be a mapping such as {{'lang': 'en'}}, got {type(given).__name__}: {given!r:.200}"
        )
    return _parse(given, 0) if given else None


def both(first: Filter | None, second: Filter | None) -> Filter | None:
    """What passes both filters: a caller's filter can narrow a retriever's own, never widen it."""
    if first is None or second is None:
        return second if first is None else first
    return And((first, second))


def matches(filter: Mapping[str, Any] | Filter | None, metadata: Metadata, id: str | None = None) -> bool:
    """Whether a document with this metadata (and id) passes the filter."""
    parsed = parse_filter(filter)
    return parsed is None or holds(parsed, flatten(metadata), id)


def _parse(given: Mapping[str, Any], depth: int) -> Filter:
    if depth > _MAX_DEPTH:
        raise FilterError(f"a filter may be nested {_MAX_DEPTH} deep at most")
    parts: list[Filter] = []
    for name, value in given.items():
        if not isinstance(name, str):
            raise FilterError(f"filter names must be str, got {name!r}")
        _check_text(name)
        if name in ("$and", "$or", "$not"):
            parts.append(_logic(name, value, depth))
        elif name == "$id":
            parts.append(_ids(value))
        elif name.startswith("$"):
            raise _unknown(name, f"at the top of a filter ({name!r}: …)", _LOGIC)
        else:
            parts.append(_field(name, value, depth))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _logic(name: str, value: object, depth: int) -> Filter:
    if name == "$not":
        if not isinstance(value, Mapping) or not value:
            raise FilterError(f"$not takes one filter such as {{'lang': 'en'}}, got {value!r:.200}")
        return Not(_parse(value, depth + 1))
    if not isinstance(value, list | tuple) or not value:
        raise FilterError(f"{name} takes a non-empty list of filters, got {value!r:.200}")
    parts = []
    for part in value:
        if isinstance(part, Condition | Ids | Not | And | Or):
            parts.append(part)
        elif isinstance(part, Mapping) and part:
            parts.append(_parse(part, depth + 1))
        else:
            raise FilterError(
                f"{name} takes a list of filters such as {{'lang': 'en'}}, but one is {part!r:.200}"
            )
    return And(tuple(parts)) if name == "$and" else Or(tuple(parts))


def _ids(value: object) -> Filter:
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in ("$eq", "$in", "$ne", "$nin"):
            raise FilterError(
                f"$id takes an id, a list of ids, or one of $eq, $in, $ne, $nin; got {value!r:.200}"
            )
        [(op, inner)] = value.items()
        return Not(_ids(inner)) if op in ("$ne", "$nin") else _ids(inner)
    ids = [value] if isinstance(value, str) else value
    if not isinstance(ids, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in ids):
        raise FilterError(f"$id takes a str or a list of str, got {value!r:.200}")
    return Ids(frozenset(ids))


def _field(name: str, value: object, depth: int) -> Filter:
    if not isinstance(value, Mapping):
        return _equal(name, "$eq", value)
    if not value:
        raise FilterError(
            f"the filter on {name!r} is an empty mapping; give a value or operators ({', '.join(OPERATORS)})"
        )
    parts: list[Filter] = []
    for op, operand in value.items():
        if op == "$not":
            if not isinstance(operand, Mapping):
                raise FilterError(
                    f"$not under {name!r} takes operators such as {{'$in': [...]}}, got {operand!r:.200}"
                )
            if depth > _MAX_DEPTH:
                raise FilterError(f"a filter may be nested {_MAX_DEPTH} deep at most")
            parts.append(Not(_field(name, operand, depth + 1)))
        elif op in OPERATORS:
            parts.append(OPERATORS[op](name, op, operand))
        elif isinstance(op, str) and not op.startswith("$"):
            raise FilterError(
                f"nested metadata is reached by dots: {name + '.' + op!r}, not {{{name!r}: {{{op!r}: …}}}}"
            )
        else:
            raise _unknown(op, f"under {name!r}", [*OPERATORS, "$not"])
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _unknown(op: object, where: str, known: Iterable[str]) -> FilterError:
    known = list(known)
    near = get_close_matches(str(op), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return FilterError(f"unknown filter operator {op!r} {where}.{hint} Operators: {', '.join(known)}")


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"filter text {text!r:.100} cannot be written as UTF-8 ({error.reason})") from error
    return text


def _scalar(name: str, op: str, value: object) -> Scalar:
    """A filter value as a plain str, int or float."""
    if isinstance(value, str):
        return _check_text(str.__str__(value))
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and -INT64 <= value < INT64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    hint = "; use its isoformat(), in metadata too" if hasattr(value, "isoformat") else ""
    hint = "; use $in, $any or $all for several values" if isinstance(value, list | tuple | set) else hint
    raise FilterError(f"{op} on {name!r} takes text, a finite number or a bool, got {value!r:.200}{hint}")


def _several(name: str, op: str, value: object) -> list[object]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise FilterError(f"{op} on {name!r} takes a list of values, got {value!r:.200}")
    return list(value)


def _equal(name: str, op: str, value: object) -> Filter:
    return _among(name, op, [value])


def _among(name: str, op: str, value: object) -> Filter:
    given = _several(name, op, value)
    present = tuple(_scalar(name, op, one) for one in given if one is not None)
    among = Condition(name, "in", present)
    if len(present) == len(given):
        return among
    absent = Not(Condition(name, "exists"))
    return Or((among, absent)) if present else absent


def _complement(positive: Callable[[str, str, object], Filter]) -> Callable[[str, str, object], Filter]:
    return lambda name, op, value: Not(positive(name, op, value))


def _every(name: str, op: str, value: object) -> Filter:
    given = tuple(_scalar(name, op, one) for one in _several(name, op, value))
    if not given:
        raise FilterError(f"$all on {name!r} needs at least one value")
    return Condition(name, "all", given)


def _compare(name: str, op: str, value: object) -> Filter:
    return Condition(name, op[1:], (_scalar(name, op, value),))


def _text(name: str, op: str, value: object) -> Filter:
    if not isinstance(value, str):
        raise FilterError(f"{op} on {name!r} takes text, got {value!r:.200}")
    return Condition(name, op[1:], (_scalar(name, op, value),))


def _exists(name: str, op: str, value: object) -> Filter:
    if not isinstance(value, bool):
        raise FilterError(f"{op} on {name!r} takes True or False, got {value!r:.200}")
    return Condition(name, "exists") if value else Not(Condition(name, "exists"))


OPERATORS: dict[str, Callable[[str, str, object], Filter]] = {
    "$eq": _equal,
    "$ne": _complement(_equal),
    "$gt": _compare,
    "$gte": _compare,
    "$lt": _compare,
    "$lte": _compare,
    "$in": _among,
    "$nin": _complement(_among),
    "$any": _among,
    "$all": _every,
    "$exists": _exists,
    "$contains": _text,
    "$icontains": _text,
}
"""What may stand under a metadata name."""

_LOGIC = ["$and", "$or", "$not", "$id"]
