"""Short lessons ahead of the tree: a few dozen texts need no more."""

from collections.abc import Iterator

import pytest

from palmette.methods.tree import init


@pytest.fixture(scope="session", autouse=True)
def short_start() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(init, "ADAPTER", init.ADAPTER.replace(steps=100, evaluate_every=50))
        patch.setattr(init, "COARSE", init.COARSE.replace(steps=100, evaluate_every=50))
        yield
