"""Kinds of storage that the contract suite runs over.

``PALMETTE_QDRANT_URL=qdrant://localhost:6333`` adds a server, where collections are made and removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from palmette.store import engines
from palmette_qdrant.client import Collection
from support import postgres
from support.stores import fast_place
from support.toy_engine import STORES

PREFIXES = {"folder": "", "local": "qdrant+local://", "edge": "qdrant+edge://"}
URL = os.environ.get("PALMETTE_QDRANT_URL")
KINDS = [
    "folder", "local", "postgres", *(["server"] if URL else []), pytest.param("edge", marks=pytest.mark.exhaustive),
]  # fmt: skip


@contextmanager
def places(kind: str) -> Iterator[Callable[[], str | Path]]:
    """Make names of new places of a kind of storage."""
    if kind == "postgres":
        postgres.server()  # or skip
        yield postgres.new_url
        return
    if kind == "toy":
        with _toys() as name:
            yield name
        return
    if kind != "folder":
        pytest.importorskip("qdrant_client")
    if kind == "edge":
        pytest.importorskip("qdrant_edge")
        import support.edge  # noqa: F401  adds the scheme
    if kind == "server":
        with _collections() as name:
            yield name
        return
    numbers = count()
    with TemporaryDirectory(dir=fast_place()) as folder:
        yield lambda: f"{PREFIXES[kind]}{folder}/{next(numbers)}/index"


@contextmanager
def _toys() -> Iterator[Callable[[], str]]:
    """Let the engine in a dict be found as one of an installed distribution; make URLs of new indexes."""
    numbers, toy = count(), EntryPoint("toy", "support.toy_engine:ToyEngine", engines.ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "entry_points", lambda group: [*entry_points(group=group), toy])
        yield lambda: f"toy://{next(numbers)}"
    STORES.clear()


@contextmanager
def _collections() -> Iterator[Callable[[], str]]:
    """Make names of new collections of a server, which are deleted at the end."""
    made = list[str]()

    def name() -> str:
        made.append(f"{URL}/palmette-{uuid4().hex}")
        return made[-1]

    yield name
    for one in made:
        Collection(one)("delete_collection")
