"""Small checkpoints to save, push and break."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from palmette.hub import Checkpoint, render_card, save_checkpoint

CONFIG = {"method": "tree", "config": {"depth": 3}, "encoder": {"name": "org/encoder", "fingerprint": "e1"}}


def card_of(**changes: Any) -> str:
    facts: dict[str, Any] = {**CONFIG, "class_name": "TreeModel", "record": {"data": "SQuAD", "pairs": 7}}
    return render_card(**{**facts, **changes})


def save(
    path: Path, value: float = 1.0, *, config: Mapping[str, Any] = CONFIG, **files: Mapping[str, Any]
) -> Checkpoint:
    """A checkpoint whose weights all are ``value``; keyword arguments become JSON files."""
    tensors = {"split.weight": torch.full((4, 8), value), "scale": torch.tensor(2)}
    extra = {f"{name}.json": json.dumps(content).encode() for name, content in files.items()}
    return save_checkpoint(path, config, tensors, card_of(), files=extra)


def weight_of(checkpoint: Checkpoint) -> float:
    """The value it was saved with."""
    return float(checkpoint.tensors()["split.weight"][0, 0])
