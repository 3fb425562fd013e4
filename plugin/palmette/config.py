"""Strict, frozen option records that round-trip through JSON: the base of every config in palmette."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from palmette.errors import ConfigError, InputError, shown

FILLED_IN = "filled in by fit"
"""Marks a field that training completes and users do not set: ``width: Annotated[int, FILLED_IN] = 0``."""


def check_keys(owner: str, keys: Iterable[str], known: Iterable[str]) -> None:
    """Raise if one of ``keys`` is not among ``known``; the error names it, a near match and all known keys."""
    known = sorted(known)
    for key in keys:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{owner} has no option {shown(key)}.{hint} Options: {', '.join(known) or 'none'}")


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options other than ``None``."""
    return {name: value for name, value in options.items() if value is not None}


def check_range(
    owner: str, name: str, value: float | None, low: float, high: float = np.inf, *, whole: bool = False
) -> None:
    """Raise unless an argument is a number in ``[low, high]``, and an integer where ``whole`` (``None`` passes)."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigError(f"{owner}: {name} must be a number, got {type(value).__name__} {shown(value)}")
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == np.inf else f"between {low:g} and {high:g}"
        raise ConfigError(f"{owner}: {name} must be {bound}, got {shown(value)}")
    if whole and not isinstance(value, int | np.integer):
        raise ConfigError(f"{owner}: {name} must be a whole number, got {shown(value)}")


def check_count(name: str, value: object) -> int:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    return int(value)


def check_kind(what: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raise InputError unless a value is of these types."""
    if not isinstance(value, kinds):
        raise InputError(f"{what} must be {expected}, got {type(value).__name__} {shown(value)}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless a value is one of these names."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}")


MOST_JSON_VALUES = 2**20
"""Most values of JSON from a stranger: each takes up to 64 bytes of memory, and three of the text."""


def parse_untrusted_json(text: str | bytes) -> Any:
    """Parse strict JSON of bounded memory: also NaN, and more commas and brackets than there may be values, raise."""

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is not a JSON value; use null")

    signs: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, signs)) > MOST_JSON_VALUES:
        raise ValueError(f"it has more than {MOST_JSON_VALUES:,} commas and brackets")
    return parse_json(text, parse_constant=refuse)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON; what is nested too deeply for Python raises ValueError, as what is malformed does."""
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_path(value: object) -> Path:
    """Convert a name of a file or folder to a path, "~" expanded; what no file system takes as a name raises."""
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise InputError(f"a path must be a str or a Path and not be empty ('.' names this folder), got {shown(value)}")
    try:
        path = Path(value).expanduser()
        if b"\0" in os.fsencode(path):
            raise ValueError("it holds a null character")
        path.exists()
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # too long, "~nobody", bytes
        raise InputError(
            f"{shown(str(value))} cannot be a path ({error!s:.80}); name a file or folder, or put texts in a list"
        ) from error
    return path


class Config(BaseModel):
    """Frozen options, validated when built; an unknown option raises with the nearest known name.

    A subclass declares fields with ranges (``Annotated[int, Field(ge=1)]``) and a docstring under each, and
    conditions between fields in :meth:`check`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of options for ``fit(preset=…)``, of the config and of the training loop."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**{name: _plain(value) for name, value in options.items()})
        except ValidationError as error:
            raise in_our_words(error, type(self).__name__, options, self.names()) from None
        self.check()

    def check(self) -> None:
        """Raise ConfigError when values do not fit together."""

    @classmethod
    def names(cls) -> list[str]:
        """All option names, in order."""
        return list(cls.model_fields)

    @classmethod
    def choices(cls) -> list[str]:
        """Options that a user sets."""
        return [name for name, field in cls.model_fields.items() if FILLED_IN not in field.metadata]

    @classmethod
    def help(cls) -> dict[str, str]:
        """Description of each option."""
        return {name: " ".join((field.description or "").split()) for name, field in cls.model_fields.items()}

    @classmethod
    def preset(cls, name: str | None) -> dict[str, Any]:
        """Options of a preset; none for ``None``."""
        if name is not None and name not in cls.presets:
            known = ", ".join(map(repr, cls.presets)) or "none"
            raise ConfigError(f"{cls.__name__} has no preset {name!r}: there is {known}")
        return dict(cls.presets[name]) if name else {}

    def replace(self, **changes: Any) -> Self:
        """Copy with some options changed."""
        return type(self)(**dict(self) | changes)

    def to_dict(self) -> dict[str, Any]:
        """Options as JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Config from :meth:`to_dict`'s output."""
        if strange := sorted(data.keys() - set(cls.names())):
            raise ConfigError(
                f"{cls.__name__}: this version knows no {strange[0]!r}: read it with the version of palmette that "
                "wrote it, or train the model again"
            )
        return cls(**data)


def in_our_words(error: ValidationError, owner: str, options: Mapping[str, Any], known: Iterable[str]) -> ConfigError:
    """Return pydantic's error as one sentence: the first unknown option with the known ones, else the first value."""
    try:
        check_keys(owner, options, known)
    except ConfigError as unknown:
        return unknown
    return ConfigError(f"{owner}: {_reason(error, options)}")


def _reason(error: ValidationError, options: Mapping[str, Any]) -> str:
    """One sentence for the first invalid option."""
    errors = error.errors(include_url=False)
    name = str(errors[0]["loc"][0])
    about = [each for each in errors if each["loc"][0] == name]
    if about[0]["type"] == "missing":
        inner = " ".join(map(str, about[0]["loc"][1:]))
        return f"{name}: item {inner} is missing in {shown(options[name])}" if inner else f"{name!r} is missing"
    if about[0]["type"] == "value_error":
        return str(about[0]["ctx"]["error"])
    expected = " or ".join(dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in about))
    for long, short in (("greater than or equal to", "at least"), ("less than or equal to", "at most")):
        expected = expected.replace(long, short)
    expected = expected.replace("greater than", "above")
    for detail in (", unable to parse string as an integer", ", got a number with a fractional part"):
        expected = expected.replace(detail, "")  # the value is said
    return f"{name} must be {expected}, got {shown(options[name])} ({type(options[name]).__name__})"


def _plain(value: object) -> object:
    """Python numbers and tuples for NumPy's numbers and for lists."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple | range) else value
