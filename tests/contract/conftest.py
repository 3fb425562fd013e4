"""The contract of Index holds for every method: each row of support.tiny.METHODS makes a trained model."""

import pytest

from palmette import Index, Model
from support.tiny import METHODS, documents


@pytest.fixture(params=sorted(METHODS))
def model(request: pytest.FixtureRequest) -> Model:
    return METHODS[request.param]()


@pytest.fixture(params=["memory", "folder"])
def index(request: pytest.FixtureRequest, model: Model, tmp_path) -> Index:
    made = Index.in_memory(model) if request.param == "memory" else Index.create(tmp_path / "index", model)
    made.add(documents())
    return made
