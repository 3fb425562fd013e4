from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_hub import TOKEN, LocalHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A Hub of one's own, where the user is logged in."""
    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of one's own for the Hub's client."""
    return tmp_path / "cache"
