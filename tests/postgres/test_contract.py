"""The contract that strangers import."""

from __future__ import annotations

from palmette.testing import EngineContract
from support import postgres


class TestPostgres(EngineContract):
    def new_url(self) -> str:
        postgres.server()
        return postgres.new_url()
