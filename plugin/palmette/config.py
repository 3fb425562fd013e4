"""Strict, frozen, JSON-able option records: the base of every config in palmette."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Self

import numpy as np

from palmette.errors import ConfigError

__all__ = ["Config", "check_keys", "check_range", "given"]


def check_keys(owner: str, given: Mapping[str, object] | set[str], known: typing.Iterable[str]) -> None:
    """Raise when ``given`` has a key outside ``known``, naming it, a near match and all known keys."""
    known = sorted(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{owner} has no option {key!r}.{hint} Options: {', '.join(known) or 'none'}")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set; the others keep their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def check_range(
    owner: str,
    name: str,
    value: float | None,
    low: float,
    high: float = float("inf"),
    *,
    whole: bool = False,
) -> None:
    """Raise unless ``low <= value <= high``, and an integer where ``whole`` (``None`` passes)."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigError(f"{owner}: {name} must be a number, got {type(value).__name__} {value!r:.80}")
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ConfigError(f"{owner}: {name} must be {bound}, got {value!r}")
    if whole and not isinstance(value, int | np.integer):
        raise ConfigError(f"{owner}: {name} must be a whole number, got {value!r}")


def _fits(value: object, hint: object) -> bool:
    """Whether ``value`` is of type ``hint`` (the small part of typing that configs use)."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        inner = args[0] if args else Any
        return isinstance(value, tuple) and all(_fits(item, inner) for item in value)
    if origin is not None:
        return isinstance(value, origin)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


_SEVERAL = {int: "whole numbers in a list, such as [1, 2]", str: "str in a list, such as ['a', 'b']"}


def _plain(value: object) -> object:
    """As Python has it: JSON has no tuples, and NumPy's numbers are numbers too."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple | range) else value


def _spell(hint: object) -> str:
    several = next((h for h in (hint, *typing.get_args(hint)) if typing.get_origin(h) is tuple), None)
    if several is not None and (said := _SEVERAL.get(typing.get_args(several)[0])):
        return said
    return (
        hint.__name__
        if isinstance(hint, type)
        else str(hint).replace("typing.", "").replace("NoneType", "None")
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """Frozen options that validate on construction and round-trip through JSON.

    Subclasses are frozen dataclasses; :meth:`check` adds their own conditions.
    """

    def __post_init__(self) -> None:
        hints = self._hints()
        for item in dataclasses.fields(self):
            given = getattr(self, item.name)
            value = _plain(given)
            if value is not given:
                object.__setattr__(self, item.name, value)
            if not _fits(value, hints[item.name]):
                raise ConfigError(
                    f"{type(self).__name__}: {item.name} must be {_spell(hints[item.name])}, "
                    f"got {given!r} ({type(given).__name__})"
                )
        self.check()

    @classmethod
    @functools.cache
    def _hints(cls) -> dict[str, Any]:
        """The types of the options, looked up once: every search builds a config."""
        return typing.get_type_hints(cls)

    def check(self) -> None:
        """Raise ConfigError when values do not fit together."""

    @classmethod
    def names(cls) -> list[str]:
        """The option names, in order."""
        return [item.name for item in dataclasses.fields(cls)]

    @classmethod
    def choices(cls) -> list[str]:
        """The options a user chooses: all but those marked ``metadata={"filled_in": True}``."""
        return [item.name for item in dataclasses.fields(cls) if not item.metadata.get("filled_in")]

    @classmethod
    def help(cls) -> dict[str, str]:
        """What each option does: the Attributes of the class's docstring, and of those it extends."""
        parts = [
            re.split(r"\n\s*Attributes:\n", base.__doc__ or "", maxsplit=1)[-1]
            for base in reversed(cls.__mro__)
        ]
        found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", "\n".join(parts), flags=re.MULTILINE)
        return {name: re.sub(r"\s+", " ", words) for name, words in found if name in cls.names()}

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Build from keyword options; an unknown one raises with the list of known ones."""
        check_keys(cls.__name__, options, cls.names())
        return cls(**options)

    def replace(self, **changes: Any) -> Self:
        """A copy with some options changed; unknown ones raise."""
        check_keys(type(self).__name__, changes, self.names())
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON values."""
        values = {name: getattr(self, name) for name in self.names()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def to_json(self) -> str:
        """The options as a JSON object."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_dict` wrote; unknown and missing keys raise."""
        check_keys(cls.__name__, data, cls.names())
        required = [
            f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
        ]
        if missing := [name for name in required if name not in data]:
            raise ConfigError(f"{cls.__name__}: {missing[0]!r} is missing")
        return cls(**data)
