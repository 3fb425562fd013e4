"""Strict, frozen option records that round-trip through JSON: the base of every config in palmette."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from palmette.errors import ConfigError

__all__ = ["FILLED_IN", "Config", "check_keys", "check_range", "given"]

FILLED_IN = "filled in by fit"
"""Marks a field that training completes and users do not set: ``width: Annotated[int, FILLED_IN] = 0``."""


def check_keys(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise when ``given`` has a key outside ``known``, naming it, a near match and all known keys."""
    known = sorted(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{owner} has no option {key!r}.{hint} Options: {', '.join(known) or 'none'}")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options other than ``None``."""
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
    """Raise unless an argument is a number in ``[low, high]``, and an integer where ``whole`` (``None`` passes)."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigError(f"{owner}: {name} must be a number, got {type(value).__name__} {value!r:.80}")
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ConfigError(f"{owner}: {name} must be {bound}, got {value!r}")
    if whole and not isinstance(value, int | np.integer):
        raise ConfigError(f"{owner}: {name} must be a whole number, got {value!r}")


class Config(BaseModel):
    """Frozen options, validated when built; an unknown option raises with the nearest known name.

    A subclass declares fields with ranges (``Annotated[int, Field(ge=1)]``) and a docstring under each, and
    conditions between fields in :meth:`check`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    retired: ClassVar[Mapping[str, object]] = {}
    """Options of earlier versions → the value that is constant now."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of options for ``fit(preset=…)``, of the config and of the training loop."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**{name: _plain(value) for name, value in options.items()})
        except ValidationError as error:
            raise ConfigError(self._explain(error.errors(include_url=False), options)) from None
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
        return type(self)(**{name: getattr(self, name) for name in self.names()} | changes)

    def to_dict(self) -> dict[str, Any]:
        """Options as JSON values."""
        values = {name: getattr(self, name) for name in self.names()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> str:
        """Options as a JSON object."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Config from :meth:`to_dict`'s output; options retired since are dropped at their constant value."""
        for name in cls.retired.keys() & data.keys():
            if _plain(data[name]) != cls.retired[name]:
                raise ConfigError(
                    f"{cls.__name__}: {name}={data[name]!r} is no longer supported (it is {cls.retired[name]!r} now): "
                    "train the model again"
                )
        return cls(**{name: value for name, value in data.items() if name not in cls.retired})

    @classmethod
    def _explain(cls, errors: list[ErrorDetails], options: Mapping[str, Any]) -> str:
        """One sentence for the first invalid option."""
        check_keys(cls.__name__, options, cls.names())
        name = str(errors[0]["loc"][0])
        about = [error for error in errors if error["loc"][0] == name]
        if about[0]["type"] == "missing":
            return f"{cls.__name__}: {name!r} is missing"
        if about[0]["type"] == "value_error":
            return f"{cls.__name__}: {about[0]['ctx']['error']}"
        wanted = " or ".join(dict.fromkeys(error["msg"].removeprefix("Input should be ") for error in about))
        for long, short in _SHORTER.items():
            wanted = wanted.replace(long, short)
        value = options[name]
        return f"{cls.__name__}: {name} must be {wanted}, got {value!r} ({type(value).__name__})"


_SHORTER = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
}


def _plain(value: object) -> object:
    """Python numbers and tuples for NumPy's numbers and for lists."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple | range) else value
