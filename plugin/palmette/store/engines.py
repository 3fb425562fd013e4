"""Storage engines: distributions that keep indexes at URLs, found by the URL's scheme.

An engine is a class that fulfils :class:`palmette.store.protocols.StorageEngine`. Its distribution names it under each
of its schemes::

    [project.entry-points."palmette.engines"]
    qdrant = "palmette_qdrant.backend:QdrantBackend"

``scheme+variant://…`` belongs to the engine of ``scheme``.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import TypeGuard

from palmette.errors import ConfigError, shown
from palmette.store.protocols import StorageEngine

ENTRY_POINTS = "palmette.engines"
"""Entry point group of storage engines."""
_EXTRAS = {"postgres": "postgres", "postgresql": "postgres", "qdrant": "qdrant", "qdrants": "qdrant"}
"""Extra that brings the engine of a scheme; whoever publishes a package of another scheme's name is unknown."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9.-]+)(\+[A-Za-z0-9.-]+)?://")


def is_url(place: object) -> TypeGuard[str]:
    """Return whether a place is a URL; a path is not one, nor ``C:/folder``."""
    return isinstance(place, str) and _URL.match(place) is not None


def engine_of(url: str) -> type[StorageEngine]:
    """Find the storage engine of a URL, which it must accept.

    Raises:
        ConfigError: No installed distribution has an engine for the scheme.
    """
    match = _URL.match(url)
    scheme = match[1].lower() if match else ""
    engines = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if scheme not in engines:
        without_key = url.partition("?")[0].rpartition("@")[2]
        known = ", ".join(f"{name}://" for name in sorted(engines)) or "none"
        raise ConfigError(
            f"no storage engine for {shown(without_key)} is installed (there are: {known}). An index is a folder on "
            f"this machine, or at the URL of an engine"
            + (f": pip install 'palmette[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else "")
        )
    engine: type[StorageEngine] = engines[scheme].load()
    engine.check_url(url)
    return engine
