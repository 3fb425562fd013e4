"""What a parsed filter is, and what it means: the definition that every backend's own evaluation must equal."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from palmette.errors import InputError
from palmette.types import Metadata

__all__ = [
    "INT64",
    "And",
    "Condition",
    "Filter",
    "Ids",
    "Narrowed",
    "Not",
    "Or",
    "Scalar",
    "flatten",
    "holds",
    "names",
]

Scalar = str | int | float
INT64 = 2**63


@dataclass(frozen=True)
class Condition:
    """Some value under ``name`` stands in relation ``op`` to ``values``.

    ``op`` is ``in`` (equality included) or ``all``, with any number of values; ``gt``, ``gte``, ``lt``,
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
    """The part does not hold."""

    part: Filter


@dataclass(frozen=True)
class And:
    """Every part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Narrowed(And):
    """A view's own filter, then perhaps its user's, who must not learn of anything outside the first."""


@dataclass(frozen=True)
class Or:
    """Some part holds."""

    parts: tuple[Filter, ...]


Filter = Condition | Ids | Not | And | Or
"""A parsed filter: frozen, hashable, and the same for every backend."""


def flatten(metadata: Metadata) -> dict[str, set[Scalar]]:
    """The values of every name: nested mappings by dots, lists as several values, nothing for ``None``."""
    found: dict[str, set[Scalar]] = {}
    _collect("", metadata, found)
    return found


def _collect(name: str, value: object, found: dict[str, set[Scalar]]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _collect(f"{name}.{key}" if name else str(key), inner, found)
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(name, inner, found)
    elif isinstance(value, int) and not -INT64 <= value < INT64:
        raise InputError(f"metadata {name!r}: the integer {value} does not fit 64 bits; store it as text")
    elif isinstance(value, str | int | float):
        found.setdefault(name, set()).add(value)


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "contains": operator.contains,
    "icontains": lambda value, part: part.casefold() in value.casefold(),
}


def holds(node: Filter, have: Mapping[str, set[Scalar]], id: str | None) -> bool:
    """Whether a parsed filter holds for a document with these values and this id."""
    match node:
        case And(parts):
            return all(holds(part, have, id) for part in parts)
        case Or(parts):
            return any(holds(part, have, id) for part in parts)
        case Not(part):
            return not holds(part, have, id)
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
        isinstance(one, str) == isinstance(value, str) and relation(one, value)
        for one in have.get(node.name, ())
    )


def names(filter: Filter) -> Iterator[str]:
    """The metadata names whose values the filter asks about (not those it only tests for presence)."""
    match filter:
        case And(parts) | Or(parts):
            for part in parts:
                yield from names(part)
        case Not(part):
            yield from names(part)
        case Condition(name, op) if op != "exists":
            yield name
