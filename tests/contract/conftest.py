"""The contract of Index holds for every method: each row of support.tiny.METHODS makes a trained model."""

import pytest

from palmette import Index, Model
from support.tiny import METHODS, documents


@pytest.fixture(scope="session", params=sorted(METHODS))
def model(request: pytest.FixtureRequest) -> Model:
    return METHODS[request.param]()


@pytest.fixture(scope="session")
def shared(model: Model) -> Index:
    """An index in memory, for tests that change nothing."""
    made = Index.in_memory(model)
    made.add(documents())
    return made


@pytest.fixture
def index(model: Model, tmp_path) -> Index:
    """An index in a folder, for tests that change it."""
    made = Index.create(tmp_path / "index", model)
    made.add(documents())
    return made
