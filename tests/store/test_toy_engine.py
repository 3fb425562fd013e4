"""The contract that strangers import, over an engine written from CONTRIBUTING's page."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from itertools import count

import pytest

from palmette.store import engines
from palmette.testing import EngineContract
from support.toy_engine import STORES

NUMBERS = count()


class TestToy(EngineContract):
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch):
        entry = EntryPoint("toy", "support.toy_engine:ToyEngine", engines.ENTRY_POINTS)
        monkeypatch.setattr(engines, "entry_points", lambda group: [entry])
        yield
        STORES.clear()

    def new_url(self):
        return f"toy://{next(NUMBERS)}"
