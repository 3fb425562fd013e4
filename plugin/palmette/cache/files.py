"""How the encoding cache lies on disk: shards, written once, found by the hashes of their texts.

    ROOT/encodings/DRAWER/about.json          which encoder and output these are, for people
                         /SHARD/index.safetensors   keys [n, 16], offsets [n + 1], checksums
                               /data.bin            the rows of all texts, one after the other

A shard is written under a name that starts with a dot and renamed when it is whole, so any number of
processes may read and fill a drawer together.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

__all__ = ["KEY_BYTES", "Drawer", "Shard", "ShardWriter", "folder_size"]

KEY_BYTES = 16
_INDEX, _DATA, _TEMPORARY = "index.safetensors", "data.bin", ".tmp-"
_BLOCK = 1 << 26
_STALE = 24 * 3600.0  # a temporary folder of this age has lost its process

Array = NDArray[Any]
_verified: set[tuple[str, int, int]] = set()


@dataclass(frozen=True)
class Shard:
    """The rows of ``keys``: text i has ``data[offsets[i] : offsets[i + 1]]``."""

    path: Path
    keys: list[bytes]
    offsets: NDArray[np.int64]
    data: np.memmap[Any, np.dtype[Any]] | Array

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Read the index, map the data, and check both; a damaged shard raises ValueError."""
        try:
            with safe_open(str(path / _INDEX), framework="numpy") as file:
                about, keys, offsets = file.metadata(), file.get_tensor("keys"), file.get_tensor("offsets")
        except SafetensorError as error:
            raise ValueError(f"{_INDEX}: {error}") from error
        if int(about["index"]) != zlib.crc32(offsets.tobytes(), zlib.crc32(keys.tobytes())):
            raise ValueError(f"{_INDEX} has been altered")
        shape = (int(offsets[-1]), *json.loads(about["shape"]))
        dtype = np.dtype(about["dtype"])
        stat = (path / _DATA).stat()
        if stat.st_size != math.prod(shape) * dtype.itemsize:
            raise ValueError(
                f"{_DATA} has {stat.st_size} bytes, expected {math.prod(shape) * dtype.itemsize}"
            )
        empty = stat.st_size == 0  # which cannot be mapped
        data = np.zeros(shape, dtype) if empty else np.memmap(path / _DATA, dtype, mode="r", shape=shape)
        stamp = (str(path), stat.st_size, stat.st_mtime_ns)
        if not empty and stamp not in _verified:
            if _checksum(data) != int(about["data"]):
                raise ValueError(f"{_DATA} has been altered")
            _verified.add(stamp)
        raw = keys.tobytes()
        return cls(path, [raw[i : i + KEY_BYTES] for i in range(0, len(raw), KEY_BYTES)], offsets, data)


def _checksum(data: Array) -> int:
    flat, crc = data.reshape(-1).view(np.uint8), 0
    for start in range(0, len(flat), _BLOCK):
        crc = zlib.crc32(flat[start : start + _BLOCK].data, crc)
    return crc


class ShardWriter:
    """Takes rows text by text and, on a clean exit, makes them one shard."""

    def __init__(self, drawer: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._name, self._drawer = uuid.uuid4().hex, drawer
        self._temporary = drawer / f"{_TEMPORARY}{self._name}"
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._keys: list[bytes] = []
        self._lengths: list[int] = []
        self._crc = 0

    @property
    def path(self) -> Path:
        """Where the shard is once it is whole."""
        return self._drawer / self._name

    def __enter__(self) -> Self:
        self._temporary.mkdir(parents=True)
        self._file = (self._temporary / _DATA).open("wb")
        return self

    def append(self, keys: Sequence[bytes], lengths: Sequence[int], rows: Array) -> None:
        """Rows [Σ lengths, *shape] of the texts ``keys``."""
        block = np.ascontiguousarray(rows, self._dtype).reshape(sum(lengths), *self._shape).data.cast("B")
        self._file.write(block)
        self._crc = zlib.crc32(block, self._crc)
        self._keys += keys
        self._lengths += lengths

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None:
                self._commit()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _commit(self) -> None:
        keys = np.frombuffer(b"".join(self._keys), np.uint8).reshape(-1, KEY_BYTES)
        offsets = np.cumsum([0, *self._lengths], dtype=np.int64)
        about = {
            "shape": json.dumps(self._shape),
            "dtype": self._dtype.name,
            "data": str(self._crc),
            "index": str(zlib.crc32(offsets.tobytes(), zlib.crc32(keys.tobytes()))),
        }
        save_file({"keys": keys, "offsets": offsets}, str(self._temporary / _INDEX), metadata=about)
        self._temporary.rename(self.path)


class Drawer:
    """All shards of one encoder and output."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self._about = about

    def open(self) -> None:
        """Make the folder, and remove what killed processes have left in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        about = self.path / "about.json"
        if not about.is_file():
            temporary = self.path / f"{_TEMPORARY}{uuid.uuid4().hex}.json"
            temporary.write_text(json.dumps(self._about, indent=2), "utf-8")
            temporary.replace(about)
        for path in self.path.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(FileNotFoundError):  # its writer is alive, and done
                if time.time() - path.stat().st_mtime > _STALE:
                    shutil.rmtree(path, ignore_errors=True)

    def shards(self) -> Iterator[Shard]:
        """The readable shards, largest first; a damaged one is dropped with a warning, and encoded again."""
        for path in sorted(self._found(), key=_weight, reverse=True):
            try:
                yield Shard.open(path)
            except (FileNotFoundError, NotADirectoryError):
                if (path / _INDEX).exists() or (path / _DATA).exists():  # else merged away just now
                    self._drop(path, "a file is missing")
            except (ValueError, KeyError) as error:
                self._drop(path, str(error))

    def remove(self, shards: Sequence[Shard]) -> None:
        """Take shards away: readers that have them mapped keep them."""
        for shard in shards:
            gone = self.path / f"{_TEMPORARY}{uuid.uuid4().hex}"
            try:
                shard.path.rename(gone)
            except OSError:  # another process was faster, or has it open on Windows
                continue
            shutil.rmtree(gone, ignore_errors=True)

    def merge(self, *, more_than: int = 32, smaller_than: int = 4096) -> None:
        """Make one shard of many small ones, unless another process is at it."""
        from filelock import FileLock, Timeout

        if sum(1 for _ in self._found()) <= more_than:
            return
        try:
            with FileLock(self.path / ".merge.lock", timeout=0):
                small = [shard for shard in self.shards() if len(shard.keys) < smaller_than]
                if len(small) <= more_than:
                    return
                with ShardWriter(self.path, small[0].data.shape[1:], small[0].data.dtype.name) as writer:
                    for shard in small:
                        writer.append(shard.keys, np.diff(shard.offsets).tolist(), shard.data)
                self.remove(small)
        except Timeout:
            return

    def _found(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from (path for path in self.path.iterdir() if path.suffix == "" and path.name[0] != ".")

    def _drop(self, path: Path, why: str) -> None:
        warnings.warn(
            f"cached encodings {path} are damaged ({why}); they are dropped and made again", stacklevel=2
        )
        shutil.rmtree(path, ignore_errors=True)


def _weight(path: Path) -> tuple[int, str]:
    try:
        return (path / _DATA).stat().st_size, path.name
    except OSError:
        return 0, path.name


def folder_size(path: Path) -> int:
    """Bytes of all files below ``path``; what vanishes meanwhile counts nothing."""
    size = 0
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size if file.is_file() else 0
    return size
