from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from palmette.machine import endpoint
from support.model_server import EmbeddingServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[EmbeddingServer]:
    """A server, which ``openai:…`` finds in the environment; nothing waits long, and the cache is empty."""
    embeddings = EmbeddingServer()
    monkeypatch.setenv("OPENAI_BASE_URL", embeddings.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)
    yield embeddings
    embeddings.close()
