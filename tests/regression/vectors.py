"""Vectors of the fixture ``fields``, so that its record begins from numbers which are the same on every processor.

A processor rounds a transformer's sums in its own way, by 1e-6 or so; then a stored int8 code may flip, and a score may
move a thousand times as far. The record compares what palmette decides from these vectors; a test of its own compares
the vectors with the encoder's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from palmette.arrays import Floats
from palmette.methods.fields.module import FieldEncoder, TextKind

FILE = Path(__file__).parent / "fixtures" / "fields" / "vectors.safetensors"
NAMES = ("fields", "weights", "aggregate")
"""Results of :meth:`FieldEncoder.encode`, in its order."""

Row = tuple[Floats, ...]
"""Vectors of a text's fields [F, d], their weights [F] and the aggregate [d]."""


def key_of(kind: TextKind, ids: Any) -> str:
    """Name of a text: its kind and its token ids."""
    return json.dumps([kind, ids], separators=(",", ":"))


class RecordedVectors:
    """Stands in for :meth:`FieldEncoder.encode`: looks the vectors of a text up by its token ids."""

    recording = False
    """Whether texts that are not in the file are encoded, for ``make.py``; else they raise."""

    def __init__(self, rows: dict[str, Row], module: FieldEncoder) -> None:
        self.rows, self.module = rows, module

    def __call__(self, kind: TextKind, texts: Sequence[Any]) -> tuple[Floats, ...]:
        """Return vectors [N, F, d], weights [N, F] and aggregates [N, d] of texts, given as token ids."""
        keys = [key_of(kind, ids) for ids in texts]
        missing = [row for row, key in enumerate(keys) if key not in self.rows]
        if missing and not self.recording:
            raise KeyError(f"no recorded vectors of {keys[missing[0]]}: run tests/regression/make.py fields")
        if missing:
            made = FieldEncoder.encode(self.module, kind, [texts[row] for row in missing])
            self.rows |= {keys[row]: tuple(array[at] for array in made) for at, row in enumerate(missing)}
        return tuple(np.stack(column) for column in zip(*(self.rows[key] for key in keys), strict=True))


def load() -> dict[str, Row]:
    """Read the recorded vectors by :func:`key_of`; none where there is no file yet."""
    if not FILE.exists():
        return {}
    with safe_open(FILE, "numpy") as file:
        keys, columns = json.loads(file.metadata()["keys"]), [file.get_tensor(name) for name in NAMES]
    return dict(zip(keys, zip(*columns, strict=True), strict=True))


def save(rows: dict[str, Row]) -> None:
    """Write the vectors, ordered by their keys."""
    keys = sorted(rows)
    columns = zip(*(rows[key] for key in keys), strict=True)
    arrays = {name: np.stack(column) for name, column in zip(NAMES, columns, strict=True)}
    save_file(arrays, FILE, metadata={"keys": json.dumps(keys)})
