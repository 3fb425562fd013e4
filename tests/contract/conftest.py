"""The contract of Index holds for every method (each row of support.tiny.METHODS) in every kind of storage.

``PALMETTE_QDRANT_URL=qdrant://localhost:6333`` adds a server, where collections are made and removed.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from palmette import Index, Model
from palmette.store.qdrant.client import Collection
from support.stores import fast_place
from support.tiny import METHODS, documents

PLACES = {"folder": "", "local": "qdrant+local://", "edge": "qdrant+edge://"}
URL = os.environ.get("PALMETTE_QDRANT_URL")
KINDS = ["folder", "local", *(["server"] if URL else []), pytest.param("edge", marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="session", params=sorted(METHODS))
def model(request: pytest.FixtureRequest) -> Model:
    return METHODS[request.param]()


@pytest.fixture(scope="session")
def space() -> Model:
    """A model for what is the same with every method."""
    return METHODS["space"]()


def server() -> Iterator[Callable[[], str]]:
    """Names of new collections of a server."""
    made = list[str]()

    def name() -> str:
        made.append(f"{URL}/palmette-{uuid4().hex}")
        return made[-1]

    yield name
    for one in made:
        Collection(one)("delete_collection")


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | Path]]:
    """Names of new places of a kind of storage."""
    if request.param != "folder":
        pytest.importorskip("qdrant_client")
    if request.param == "edge":
        pytest.importorskip("qdrant_edge")
        import support.edge  # noqa: F401  adds the scheme
    if request.param == "server":
        yield from server()
        return
    numbers = count()
    with TemporaryDirectory(dir=fast_place()) as folder:
        yield lambda: f"{PLACES[request.param]}{folder}/{next(numbers)}/index"


@pytest.fixture(scope="session")
def shared(model: Model, place: Callable[[], str | Path]) -> Iterator[Index]:
    """An index for tests that change nothing."""
    with Index.create(place(), model) as made:
        made.add(documents())
        yield made


@pytest.fixture
def stored(space: Model, place: Callable[[], str | Path]) -> Iterator[Index]:
    """An index for tests that change it in ways that are the same with every method."""
    with Index.create(place(), space) as made:
        made.add(documents())
        yield made


@pytest.fixture
def index(model: Model, place: Callable[[], str | Path]) -> Iterator[Index]:
    """An index for tests that change it."""
    with Index.create(place(), model) as made:
        made.add(documents())
        yield made
