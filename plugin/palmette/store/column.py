"""One ``.npy`` file written piece by piece."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "Column", "Files", "sha256"]

CHUNK = 1 << 24
"""Bytes copied or hashed at a time."""

Files = dict[str, dict[str, Any]]
"""``{file name: {"size": bytes, "sha256": hex}}``."""


class Column:
    """One ``.npy`` file written row by row; its header is reserved, and filled in when the count is known."""

    _HEADER = 256

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.file = path.open("wb")
        self.file.write(bytes(self._HEADER))
        self.count = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows."""
        self.file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.count += len(rows)

    def finish(self, *, durable: bool) -> dict[str, Any]:
        """Fill in the header, flush to the disk, and say what was written."""
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        text = repr({**described, "shape": (self.count, *self.shape)}).encode("latin1")
        body = self._HEADER - 10
        header = b"\x93NUMPY\x01\x00" + body.to_bytes(2, "little") + text.ljust(body - 1) + b"\n"
        self.file.seek(0)
        self.file.write(header)
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        self.file.close()
        return {"size": self.path.stat().st_size, "sha256": sha256(self.path)}


def sha256(path: Path, advance: Callable[[int], object] = lambda _: None) -> str:
    """The file's digest; ``advance`` hears how many bytes were read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
