"""Boosts: log-odds that a search adds for a document's metadata.

    index.search(question, boost={"date": recency("90d")})             a document of today gets 1, one of 90 days ago ½
    index.search(question, boost={"kind": {"guide": 0.5, "log": -1}})  by the value

0.7 doubles the odds that a document is relevant, and −0.7 halves them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from palmette.errors import ConfigError, shown
from palmette.store.filters import Scalar, flatten
from palmette.types import Metadata, Part

DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0, "m": 30.44, "y": 365.25}
"""Days of a unit of time."""
MOST = 20.0
"""Largest boost: log-odds of 20 are a probability of 1 to nine digits."""
TIMESTAMP = 1e8
"""Smallest number that is a date, in seconds since 1970; smaller ones are years, versions or counts."""
_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([hdwmy])\s*")
_EXAMPLE = '{"date": recency(half_life="90d")} or {"kind": {"guide": 0.5}}'


@dataclass(frozen=True)
class Recency:
    """A boost that halves with age: ``weight`` · 2^(−age / half-life). Made by :func:`recency`."""

    half_life: timedelta
    weight: float
    now: datetime | None = None
    """The time that ages are counted to; ``None`` for the time of each search."""

    def __call__(self, values: Iterable[Scalar]) -> tuple[float, str] | None:
        """Return the boost of the newest date among metadata values, and the date; nothing where none is a date."""
        dates = [date for date in map(read_date, values) if date is not None]
        if not dates:
            return None
        age = max(0.0, ((self.now or datetime.now(UTC)) - max(dates)) / self.half_life)
        return self.weight * 0.5**age, max(dates).date().isoformat()

    def to_dict(self) -> dict[str, Any]:
        """Options of :func:`recency` as JSON values."""
        days = self.half_life / timedelta(days=1)
        options = {"half_life": f"{days:.10g}d", "weight": self.weight}
        return options if self.now is None else {**options, "now": self.now.isoformat()}


@dataclass(frozen=True)
class Values:
    """A boost by a metadata value; the boosts of a list's values add up."""

    boosts: Mapping[Scalar, float]

    def __call__(self, values: Iterable[Scalar]) -> tuple[float, str] | None:
        """Return the sum of the boosts of metadata values, and these values; nothing where none has a boost."""
        held = [value for value in values if value in self.boosts]
        return (sum(self.boosts[value] for value in held), ", ".join(sorted(map(str, held)))) if held else None


@dataclass(frozen=True)
class Boosts:
    """The boosts of a search, by the metadata name whose values they read."""

    rules: Mapping[str, Recency | Values] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def parts(self, metadata: Metadata) -> list[Part]:
        """Return what each rule adds to the log-odds of a document."""
        values = flatten(metadata)
        found = [(name, rule(values.get(name, ()))) for name, rule in self.rules.items()]
        return [Part(f"boost {name!r}", made[0], {"boost": name, "value": made[1]}) for name, made in found if made]

    def total(self, metadata: Metadata) -> float:
        """Return the log-odds that are added for a document."""
        return sum(part.value for part in self.parts(metadata))


NO_BOOSTS = Boosts()
"""Boosts of a search that gives none."""


def recency(half_life: str | timedelta = "90d", weight: float = 1.0, now: datetime | str | None = None) -> Recency:
    """Boost newer documents.

    Args:
        half_life: Age at which the boost is half: hours, days, weeks, months or years (``"36h"``, ``"90d"``,
            ``"2y"``), or a timedelta.
        weight: Boost of a document of today, in log-odds.
        now: The time that ages are counted to; ``None`` for the time of each search.

    Dates in metadata are ISO 8601 (``2025-11-03``, ``2025-11-03T12:00:00Z``) or seconds since 1970. Documents without
    one get no boost.
    """
    if isinstance(half_life, str) and (match := _AGE.fullmatch(half_life)):
        days = float(match[1]) * DAYS[match[2]]
        half_life = timedelta(days=days) if 0 < days < 1e8 else timedelta(0)
    if not isinstance(half_life, timedelta) or half_life <= timedelta(0):
        raise ConfigError(f"half_life must be a time such as '36h', '90d' or '2y', got {shown(half_life)}")
    at = now if isinstance(now, datetime) else read_date(now)
    if now is not None and at is None:
        raise ConfigError(f"now must be a date such as '2025-11-03', got {shown(now)}")
    return Recency(half_life, _number("weight", weight), at if at is None or at.tzinfo else at.replace(tzinfo=UTC))


def read_date(value: object) -> datetime | None:
    """Read a date of metadata; ``None`` for what is no date. Without a time zone it is UTC."""
    try:
        if isinstance(value, str):
            date = datetime.fromisoformat(value.strip())
            return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= TIMESTAMP:
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def parse_boost(given: object) -> Boosts:
    """Check the ``boost`` of a search: metadata names, each with a recency (or its options as JSON) or with values.

    Ages are counted to one time from here on, so that a hit that is explained later has the same boost.
    """
    if isinstance(given, Boosts):
        return given
    now, rules = datetime.now(UTC), _rules(given)
    return Boosts(
        {n: replace(rule, now=rule.now or now) if isinstance(rule, Recency) else rule for n, rule in rules.items()}
    )


def boost_to_dict(given: object) -> dict[str, Any] | None:
    """Write a ``boost`` as JSON values that :func:`parse_boost` reads."""
    if given is None:
        return None
    rules = _rules(given).items()
    return {name: rule.to_dict() if isinstance(rule, Recency) else {**rule.boosts} for name, rule in rules}


def _rules(given: object) -> dict[str, Recency | Values]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"boost must map metadata names to boosts, such as {_EXAMPLE}; got {shown(given)}")
    return {name: _rule(name, rule) for name, rule in given.items()}


def _rule(name: str, rule: object) -> Recency | Values:
    if isinstance(rule, Recency):
        return rule
    if not isinstance(rule, Mapping) or not rule:
        raise ConfigError(f"boost of {name!r} must be recency(…) or a mapping of values, got {shown(rule)}")
    if isinstance(rule.get("half_life"), str):  # a boost of the value "half_life" is a number
        if unknown := sorted(map(str, rule.keys() - {"half_life", "weight", "now"})):
            raise ConfigError(f"recency has no option {unknown[0]!r}: half_life, weight and now")
        return recency(**rule)
    return Values({value: _number(f"boost of {name!r} for {shown(value)}", number) for value, number in rule.items()})


def _number(name: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or abs(value) > MOST:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} must be log-odds from {-MOST:g} to {MOST:g} (0.7 doubles the odds), got {shown(value)}"
        )
    return float(value)  # type: ignore[arg-type]
