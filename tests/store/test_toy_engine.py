"""The contract that strangers import, over an engine written from CONTRIBUTING's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palmette.testing import EngineContract
from support.places import places


class TestToy(EngineContract):
    @pytest.fixture(autouse=True)
    def urls(self) -> Iterator[None]:
        with places("toy") as self._new:
            yield

    def new_url(self) -> str:
        return str(self._new())
