"""Boosts: a search adds log-odds to documents by their metadata.

    index.search(question, boost={"date": recency("90d")})             today 1, 90 days ago ½
    index.search(question, boost={"kind": {"guide": 0.5, "log": -1}})  by metadata value

0.7 doubles the odds that a document is relevant, and −0.7 halves them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from palmette.errors import ConfigError, shown
from palmette.store.filters import Scalar, flatten
from palmette.types import Metadata, Part

DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0, "m": 30.44, "y": 365.25}
"""Number of days in a unit of time."""
MAX_BOOST = 20.0
"""Largest boost: log-odds of 20 are a probability of 1 to nine digits."""
TIMESTAMP = 1e8
"""Smallest number read as seconds since 1970; smaller numbers are years, versions or counts."""
_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([hdwmy])\s*")
_EXAMPLE = '{"date": recency(half_life="90d")} or {"kind": {"guide": 0.5}}'


@dataclass(frozen=True)
class Recency:
    """A boost that halves with age: ``weight`` · 2^(−age / half-life). :func:`recency` creates it."""

    half_life: timedelta
    weight: float
    now: datetime | None = None
    """Reference time for ages; ``None`` for the time of each search."""

    def __call__(self, values: Iterable[Scalar]) -> tuple[float, str] | None:
        """Return the boost of the newest date among metadata values, and the date; ``None`` if no value is a date."""
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
    """A boost by metadata value; a document with several boosted values gets their sum."""

    boosts: Mapping[Scalar, float]

    def __call__(self, values: Iterable[Scalar]) -> tuple[float, str] | None:
        """Return the sum of the boosts of metadata values, and these values; ``None`` if no value has a boost."""
        boosted = [value for value in values if value in self.boosts]
        return (sum(self.boosts[value] for value in boosted), ", ".join(sorted(map(str, boosted)))) if boosted else None


@dataclass(frozen=True)
class Boosts:
    """Boosts of a search, by metadata key."""

    rules: Mapping[str, Recency | Values]

    def parts(self, metadata: Metadata) -> list[Part]:
        """Return the log-odds that each rule adds to a document."""
        values = flatten(metadata)
        results = [(name, rule(values.get(name, ()))) for name, rule in self.rules.items()]
        return [
            Part(f"boost {name!r}", result[0], {"boost": name, "value": result[1]})
            for name, result in results
            if result
        ]

    def total(self, metadata: Metadata) -> float:
        """Return the sum of all boosts of a document, in log-odds."""
        return sum(part.value for part in self.parts(metadata))


def recency(half_life: str = "90d", weight: float = 1.0, now: datetime | str | None = None) -> Recency:
    """Boost newer documents.

    Args:
        half_life: Age at which the boost is half: hours, days, weeks, months or years (``"36h"``, ``"90d"``, ``"2y"``).
        weight: Boost of a document of today, in log-odds.
        now: Reference time for ages; ``None`` for the time of each search.

    Dates in metadata are ISO 8601 (``2025-11-03``, ``2025-11-03T12:00:00Z``) or seconds since 1970. Documents without
    one get no boost.
    """
    match = _AGE.fullmatch(str(half_life))
    days = float(match[1]) * DAYS[match[2]] if match else 0.0
    if not 0 < days < 1e8:
        raise ConfigError(f"half_life must be a time such as '36h', '90d' or '2y', got {shown(half_life)}")
    at = now if isinstance(now, datetime) else read_date(now)
    if now is not None and at is None:
        raise ConfigError(f"now must be a date such as '2025-11-03', got {shown(now)}")
    at = at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at
    return Recency(timedelta(days=days), _number("weight", weight), at)


def read_date(value: object) -> datetime | None:
    """Read a metadata value as a date (UTC unless it names a time zone); ``None`` if it is none."""
    try:
        if isinstance(value, str):
            date = datetime.fromisoformat(value.strip())
            return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= TIMESTAMP:
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def parse_boost(boost: object) -> Boosts | None:
    """Validate the ``boost`` argument of a search: a recency (or its options as JSON) or a mapping of values per key.

    ``None`` for no boost. The reference time for ages is fixed here, so that a hit that is explained later has the same
    boost.
    """
    if isinstance(boost, Boosts):
        return boost
    now, rules = datetime.now(UTC), _rules(boost)
    if not rules:
        return None
    return Boosts(
        {n: replace(rule, now=rule.now or now) if isinstance(rule, Recency) else rule for n, rule in rules.items()}
    )


def boost_to_dict(boost: object) -> dict[str, Any] | None:
    """Write a ``boost`` as JSON values that :func:`parse_boost` reads."""
    if boost is None:
        return None
    rules = _rules(boost).items()
    return {name: rule.to_dict() if isinstance(rule, Recency) else {**rule.boosts} for name, rule in rules}


def _rules(boost: object) -> dict[str, Recency | Values]:
    if boost is None:
        return {}
    if not isinstance(boost, Mapping) or not all(isinstance(name, str) for name in boost):
        raise ConfigError(f"boost must map metadata names to boosts, such as {_EXAMPLE}; got {shown(boost)}")
    return {name: _rule(name, rule) for name, rule in boost.items()}


def _rule(name: str, rule: object) -> Recency | Values:
    """Read the boost of one metadata key: recency, or log-odds by value."""
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
    if not number or not math.isfinite(value) or abs(value) > MAX_BOOST:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} must be log-odds from {-MAX_BOOST:g} to {MAX_BOOST:g} (0.7 doubles the odds), got {shown(value)}"
        )
    return float(value)  # type: ignore[arg-type]
