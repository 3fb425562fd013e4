"""The contract of Index holds for every method (each row of support.tiny.METHODS) in every kind of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palmette import Index, Model
from palmette.machine.devices import has_torch
from support.places import KINDS, places
from support.tiny import METHODS, documents

collect_ignore = [] if has_torch() else ["test_agreement.py", "test_methods.py", "test_new_method.py"]
"""Files about trained methods."""


@pytest.fixture(scope="session", params=sorted(METHODS))
def model(request: pytest.FixtureRequest) -> Model:
    return METHODS[request.param]()


@pytest.fixture(scope="session")
def space() -> Model:
    """A model for what is the same with every method."""
    return METHODS["space"]()


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | Path]]:
    """Names of new places of a kind of storage."""
    with places(request.param) as name:
        yield name


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
