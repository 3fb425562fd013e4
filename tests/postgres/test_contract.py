"""The contract that strangers import, over PostgreSQL and Qdrant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palmette.testing import EngineContract
from support import postgres
from support.places import places


class TestPostgres(EngineContract):
    def new_url(self) -> str:
        postgres.server()
        return postgres.new_url()


class TestQdrant(EngineContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> Iterator[None]:
        with places("local") as name:
            self.name = name
            yield

    def new_url(self) -> str:
        return str(self.name())
