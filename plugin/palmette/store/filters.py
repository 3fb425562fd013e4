"""The filter language: which documents may be found at all, decided before any ranking.

    {"lang": "en"}                                  equality; with a list as metadata, any element
    {"year": {"$gte": 2020, "$lt": 2024}}           comparison, numbers with numbers and text with text
    {"author.name": {"$in": ["Ada", "Grace"]}}      nested metadata by dots
    {"$or": [{"lang": "en"}, {"$not": {"tags": {"$any": ["draft"]}}}]}
    {"lang": None}                                  documents without a lang
    {"$id": ["a", "b"]}                             only among these ids

What a document has under a name is a *set of values*: the scalar, or the elements of the list, or what lies
under the name in nested mappings. ``None``, ``[]`` and a missing key are all the empty set. A condition is true
when some value satisfies it (``$all``: when every given value is among them); ``$ne``, ``$nin`` and ``$not``
are the plain complements, so they are true for documents that lack the key.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from palmette.errors import FilterError, InputError, shown
from palmette.types import Metadata

Scalar = str | int | float

OPERATORS = tuple("$eq $ne $gt $gte $lt $lte $in $nin $any $all $exists $contains $icontains".split())
"""Operators under a metadata name."""

_INT64 = 2**63
_MAX_DEPTH = 50


@dataclass(frozen=True)
class Condition:
    """A comparison of the values under ``name`` with ``values``.

    ``op`` is ``in`` (equality included), with any number of values; ``all``, with one or more; ``gt``, ``gte``, ``lt``,
    ``lte``, ``contains`` or ``icontains``, with one; or ``exists``, with none. :class:`Not` gives the others.
    """

    name: str
    op: str
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class Ids:
    """The document's id is among these."""

    ids: frozenset[str]


@dataclass(frozen=True)
class Not:
    """The part is false."""

    part: Filter


@dataclass(frozen=True)
class _Several:
    parts: tuple[Filter, ...]


class And(_Several):
    """Every part is true."""


class Scoped(And):
    """A scope, then perhaps the filter of someone behind it, who must not learn of anything outside.

    A scope in a scope is a ``Scoped`` inside a ``Scoped``, outermost first.
    """

    def levels(self) -> list[tuple[Filter | None, Filter]]:
        """List every filter with the filter that lies outside it, the outermost first."""
        outer, *inner = self.parts
        levels = outer.levels() if isinstance(outer, Scoped) else [(None, outer)]
        return [*levels, *((outer, part) for part in inner)]


class Or(_Several):
    """Some part is true."""


Filter = Condition | Ids | Not | And | Or
"""A filter as :func:`parse_filter` returns it: frozen, hashable, and the same for every backend."""
FilterLike = Mapping[str, Any] | Filter | None
"""A filter as users write it, or parsed; ``None`` and ``{}`` mean all documents."""


def parse_filter(filter: FilterLike) -> Filter | None:
    """Read a filter; ``None`` and ``{}`` mean all documents. Anything malformed raises FilterError."""
    if filter is None or isinstance(filter, Filter):
        return filter
    if not isinstance(filter, Mapping):
        raise FilterError(
            f"a filter must be a mapping such as {{'lang': 'en'}}, got {type(filter).__name__}: {shown(filter, 200)}"
        )
    return _parse(filter, 0) if filter else None


def unknown_name(name: str, hint: str) -> FilterError:
    """Make the error for a name that no document has: it is misspelt more often than meant."""
    return FilterError(
        f"the filter asks for {name!r}, but no document has metadata of that name.{hint} "
        f"To allow for it, test {{{name!r}: {{'$exists': …}}}}"
    )


def matches(filter: FilterLike, metadata: Metadata, id: str | None = None) -> bool:
    """Return whether a document with this metadata (and id) passes the filter: every backend must agree with it."""
    parsed = parse_filter(filter)
    return parsed is None or _matches(parsed, flatten(metadata), id)


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "contains": operator.contains,
    "icontains": lambda value, part: part.casefold() in value.casefold(),
}


def _matches(node: Filter, have: Mapping[str, set[Scalar]], id: str | None) -> bool:
    """Tell whether a filter passes flattened metadata: the reference that every storage must agree with."""
    match node:
        case And(parts):
            return all(_matches(part, have, id) for part in parts)
        case Or(parts):
            return any(_matches(part, have, id) for part in parts)
        case Not(part):
            return not _matches(part, have, id)
        case Ids(ids):
            return id in ids
        case Condition(name, "exists"):
            return name in have or any(key.startswith(name + ".") for key in have)
        case Condition(name, "in", values):
            return not have.get(name, set()).isdisjoint(values)
        case Condition(name, "all", values):
            return have.get(name, set()).issuperset(values)
    relation, value = _RELATIONS[node.op], node.values[0]
    return any(
        isinstance(stored, str) == isinstance(value, str) and relation(stored, value)
        for stored in have.get(node.name, ())
    )


def flatten(metadata: Metadata) -> dict[str, set[Scalar]]:
    """Collect the values of every name: nested mappings by dots, lists as several values, nothing for ``None``."""
    values: dict[str, set[Scalar]] = {}

    def collect(name: str, value: object) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                collect(f"{name}.{key}", inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                collect(name, inner)
        elif isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise InputError(f"metadata {name!r}: the integer {value} does not fit 64 bits; store it as text")
        elif isinstance(value, str | int | float):
            values.setdefault(name, set()).add(value)

    for name, value in metadata.items():
        collect(str(name), value)
    return values


def plain_number(value: Scalar) -> Scalar:
    """Write equal numbers in one form, for an engine that tells 1, 1.0 and true apart; a text stays."""
    if isinstance(value, float) and value.is_integer() and -_INT64 <= value < _INT64:
        return int(value)
    return int(value) if isinstance(value, bool) else value


def names_in(filter: Filter) -> Iterator[str]:
    """Yield the metadata names whose values the filter compares (not those it only tests for presence)."""
    match filter:
        case And(parts) | Or(parts):
            for part in parts:
                yield from names_in(part)
        case Not(part):
            yield from names_in(part)
        case Condition(name, op) if op != "exists":
            yield name


def pinned_value(filter: Filter, name: str) -> Scalar | None:
    """Return the only value of a name that passes a filter, if the filter is a conjunction that demands one."""
    match filter:
        case And(parts):
            return next((value for part in parts if (value := pinned_value(part, name)) is not None), None)
        case Condition(tested, "in" | "all", (value,)) if tested == name:
            return value
    return None


def _all_of(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _parse(conditions: Mapping[str, Any], depth: int) -> Filter:
    """Parse a mapping of conditions, all of which must hold."""
    if depth > _MAX_DEPTH:
        raise FilterError(f"a filter may be nested {_MAX_DEPTH} deep at most")
    parts: list[Filter] = []
    for name, value in conditions.items():
        if not isinstance(name, str):
            raise FilterError(f"filter names must be str, got {shown(name)}")
        _check_text(name)
        if name in ("$and", "$or", "$not"):
            parts.append(_logic(name, value, depth))
        elif name == "$id":
            parts.append(_ids(value))
        elif name.startswith("$"):
            where = f"at the top of a filter ({name!r}: …)"
            raise _unknown_operator(name, where, "$and", "$or", "$not", "$id")
        else:
            parts.append(_field(name, value, depth))
    return _all_of(parts)


def _logic(name: str, value: object, depth: int) -> Filter:
    """Parse the operand of ``$and``, ``$or`` or ``$not``."""
    if name == "$not":
        if not isinstance(value, Mapping) or not value:
            raise FilterError(f"$not takes one filter such as {{'lang': 'en'}}, got {shown(value, 200)}")
        return Not(_parse(value, depth + 1))
    if not isinstance(value, list | tuple) or not value:
        raise FilterError(f"{name} takes a non-empty list of filters, got {shown(value, 200)}")
    for part in value:
        if not isinstance(part, Filter | Mapping) or not part:
            raise FilterError(f"{name} takes filters such as {{'lang': 'en'}}, but one is {shown(part, 200)}")
    parts = tuple(part if isinstance(part, Filter) else _parse(part, depth + 1) for part in value)
    return And(parts) if name == "$and" else Or(parts)


def _ids(value: object) -> Filter:
    """Parse the operand of ``$id``."""
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in ("$eq", "$in", "$ne", "$nin"):
            raise FilterError(f"$id takes an id, a list of ids, or one of $eq, $in, $ne, $nin; got {shown(value, 200)}")
        [(op, inner)] = value.items()
        return Not(_ids(inner)) if op in ("$ne", "$nin") else _ids(inner)
    ids = [value] if isinstance(value, str) else value
    if not isinstance(ids, list | tuple | set | frozenset) or not all(isinstance(id, str) for id in ids):
        raise FilterError(f"$id takes a str or a list of str, got {shown(value, 200)}")
    return Ids(frozenset(ids))


def _field(name: str, value: object, depth: int) -> Filter:
    """Parse the conditions on one metadata key: a value, or a mapping of operators."""
    if not isinstance(value, Mapping):
        return _condition(name, "$eq", value)
    if not value:
        raise FilterError(
            f"the filter on {name!r} is an empty mapping; give a value or operators ({', '.join(OPERATORS)})"
        )
    parts: list[Filter] = []
    for op, operand in value.items():
        if op == "$not":
            if not isinstance(operand, Mapping):
                raise FilterError(
                    f"$not under {name!r} takes operators such as {{'$in': [...]}}, got {shown(operand, 200)}"
                )
            parts.append(Not(_parse({name: operand}, depth + 1)))
        elif op in OPERATORS:
            parts.append(_condition(name, op, operand))
        elif isinstance(op, str) and not op.startswith("$"):
            raise FilterError(
                f"nested metadata is reached by dots: {name + '.' + op!r}, not {{{name!r}: {{{shown(op)}: …}}}}"
            )
        else:
            raise _unknown_operator(op, f"under {name!r}", *OPERATORS, "$not")
    return _all_of(parts)


def _unknown_operator(op: object, where: str, *known: str) -> FilterError:
    near = get_close_matches(str(op), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return FilterError(f"unknown filter operator {shown(op)} {where}.{hint} Operators: {', '.join(known)}")


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"filter text {shown(text, 100)} cannot be written as UTF-8 ({error.reason})") from error
    return text


def _scalar(name: str, op: str, value: object) -> Scalar:
    """Convert a filter value to a plain str, int or float."""
    if isinstance(value, str):
        return _check_text(str.__str__(value))
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    hint = "; use its isoformat(), in metadata too" if hasattr(value, "isoformat") else ""
    hint = "; use $in, $any or $all for several values" if isinstance(value, list | tuple | set) else hint
    raise FilterError(f"{op} on {name!r} takes text, a finite number or a bool, got {shown(value, 200)}{hint}")


def _condition(name: str, op: str, value: object) -> Filter:
    """Build the filter of one operator on one key; in lists ``None`` stands for a missing key."""
    absent = Not(Condition(name, "exists"))
    if op == "$exists":
        if not isinstance(value, bool):
            raise FilterError(f"{op} on {name!r} takes True or False, got {shown(value, 200)}")
        return absent.part if value else absent
    if op in ("$contains", "$icontains") and not isinstance(value, str):
        raise FilterError(f"{op} on {name!r} takes text, got {shown(value, 200)}")
    if op[1:] in _RELATIONS:
        return Condition(name, op[1:], (_scalar(name, op, value),))
    values = [value] if op in ("$eq", "$ne") else value
    if not isinstance(values, list | tuple | set | frozenset):
        raise FilterError(f"{op} on {name!r} takes a list of values, got {shown(value, 200)}")
    if op == "$all":
        if not values:
            raise FilterError(f"$all on {name!r} needs at least one value")
        return Condition(name, "all", tuple(_scalar(name, op, each) for each in values))
    present = tuple(_scalar(name, op, each) for each in values if each is not None)
    condition: Filter = Condition(name, "in", present)
    if len(present) < len(values):
        condition = Or((condition, absent)) if present else absent
    return Not(condition) if op in ("$ne", "$nin") else condition
