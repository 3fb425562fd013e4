"""Callers of a service: tokens, their rights, filters and rates."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from palmette.config import Config, check_path, parse_json
from palmette.errors import ConfigError, NotFoundError, shown
from palmette.store.filters import parse_filter

SHORTEST_TOKEN = 16
"""Smallest number of characters of a token."""
REMEMBERED = 10_000
"""Number of callers whose rates are tracked."""


class Token(Config):
    """A bearer token and its rights."""

    name: Annotated[str, Field(min_length=1)]
    """Name in logs and metrics."""
    token: str = ""
    """The token itself; ``sha256`` can take its place."""
    sha256: str = ""
    """SHA-256 of the token in hexadecimal digits, so that the file holds no secret."""
    filter: dict[str, Any] | None = None
    """Filter of the documents that the holder may read and add; ``None`` for all."""
    indexes: tuple[str, ...] | None = None
    """Names of the indexes that the holder may use; ``None`` for all."""
    write: bool = False
    """Whether the holder may add, change and delete documents."""

    def check(self) -> None:
        """Check the secret and the filter."""
        if bool(self.token) == bool(self.sha256):
            raise ConfigError(f"token {self.name!r}: give either its token or its sha256")
        if self.token and len(self.token) < SHORTEST_TOKEN:
            raise ConfigError(f"token {self.name!r} has {len(self.token)} characters: use {SHORTEST_TOKEN} at least")
        if self.sha256 and (len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef")):
            raise ConfigError(f"token {self.name!r}: sha256 must be 64 digits 0-9 and a-f, got {shown(self.sha256)}")
        parse_filter(self.filter)


@dataclass(frozen=True)
class Caller:
    """A client of the service."""

    name: str
    filter: Mapping[str, Any] | None = None
    indexes: Sequence[str] | None = None
    write: bool = False
    local: bool = False
    """Whether the client uses the socket of this user, and so may see the paths of this machine."""

    @property
    def sees_all(self) -> bool:
        """True if this caller may read every document of every index."""
        return self.filter is None and self.indexes is None


def read_tokens(path: str | Path) -> list[Token]:
    """Read a JSON list of tokens from a file that only its owner can read."""
    file = check_path(path)
    if not file.is_file():
        raise NotFoundError(f"there is no file of tokens {str(file)!r}")
    if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(f"{file} can be read by others: run chmod 600 {file}")
    try:
        rows = parse_json(file.read_text("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{file} is not JSON ({error})") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f'{file} must hold a list such as [{{"name": "ada", "token": "…", "filter": {{…}}}}]')
    return [Token(**row) for row in rows]


class Callers:
    """Known tokens by digest, so that the time of a lookup says nothing about a token."""

    def __init__(self, tokens: Sequence[Token], *, write: bool) -> None:
        if len({token.name for token in tokens}) < len(tokens):  # views of tenants are kept by name
            raise ConfigError("two tokens have the same name: give each its own")
        self._known = {
            token.sha256 or _digest(token.token): Caller(token.name, token.filter, token.indexes, token.write)
            for token in tokens
        }
        if len(self._known) < len(tokens):  # one of them would open what the other may read
            raise ConfigError("two names have the same token: give each its own")
        self._write = write

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, authorization: str | None, address: str) -> Caller | None:
        """Return the caller with the token of a header; ``None`` if a token is needed, but missing or wrong."""
        if not self._known:
            return Caller(address, write=self._write)
        scheme, _, token = (authorization or "").partition(" ")
        return self._known.get(_digest(token.strip())) if scheme.lower() == "bearer" else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Rate:
    """Token bucket for the requests per minute of every caller; it holds a tenth of them."""

    def __init__(self, per_minute: float) -> None:
        self._speed, self._size = per_minute / 60, max(1.0, per_minute / 10)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name → (tokens, time)

    def wait(self, name: str) -> float:
        """Count a request of a caller; returns 0, or the seconds to wait if its bucket is empty."""
        now = time.monotonic()
        left, then = self._buckets.pop(name, (self._size, now))
        left = min(self._size, left + (now - then) * self._speed)
        self._buckets[name] = (left - 1, now) if left >= 1 else (left, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._speed
