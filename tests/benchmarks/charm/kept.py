"""What a frozen encoder has read, kept on disk between runs of the benchmark."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np

from palmette.methods.fields.memory import Memory


class Kept:
    """One :class:`Memory` for each arrangement of fields; in files where there is a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.memories: dict[str, Memory] = {}
        self.sizes: dict[str, int] = {}

    def of(self, layout: str) -> Memory:
        """The memory of an arrangement."""
        if layout not in self.memories:
            self.memories[layout] = memory = Memory()
            path = self._path(layout)
            if path is not None and path.exists():
                with np.load(path) as found:
                    keys, states, there = (found[name] for name in ("keys", "states", "there"))
                memory.rows = {key.tobytes(): row for key, *row in zip(keys, states, there, strict=True)}
            self.sizes[layout] = len(memory.rows)
        return self.memories[layout]

    def save(self) -> None:
        """Write what has grown."""
        for layout, memory in self.memories.items():
            path = self._path(layout)
            if path is None or len(memory.rows) == self.sizes[layout]:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            states, there = (np.stack(column) for column in zip(*memory.rows.values(), strict=True))
            keys = np.frombuffer(b"".join(memory.rows), np.uint8).reshape(-1, 16)
            np.savez(path, keys=keys, states=states, there=there)
            self.sizes[layout] = len(memory.rows)

    def _path(self, layout: str) -> Path | None:
        name = sha256(layout.encode()).hexdigest()[:16]
        return None if self.folder is None else self.folder / f"{name}.npz"
