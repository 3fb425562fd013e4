from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from palmette.hub import Checkpoint, render_card, save_checkpoint
from support.local_hub import TOKEN, LocalHub

CONFIG = {"method": "tree", "config": {"depth": 3}, "encoder": {"name": "org/encoder", "fingerprint": "e1"}}


def card_of(**changes: object) -> str:
    facts: dict[str, object] = {
        "method": "tree",
        "class_name": "TreeModel",
        "config": CONFIG["config"],
        "encoder": CONFIG["encoder"],
        "record": {"data": "SQuAD", "pairs": 7},
    }
    return render_card(**{**facts, **changes})  # type: ignore[arg-type]


def save(
    path: Path, value: float = 1.0, *, config: Mapping[str, object] = CONFIG, **files: Mapping[str, object]
) -> Checkpoint:
    """A small checkpoint whose weights all are ``value``; keyword arguments become JSON files."""
    tensors = {"split.weight": torch.full((4, 8), value), "scale": torch.tensor(2, dtype=torch.int64)}
    extra = {f"{name}.json": json.dumps(content).encode() for name, content in files.items()}
    return save_checkpoint(path, config, tensors, card_of(), files=extra)


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
