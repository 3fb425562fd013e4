"""Reads which other files an ONNX graph names, without the ``onnx`` package: its message format is protobuf.

A message is a list of fields, each a key (number · 8 + type) and a value. The tensors of a graph may keep their numbers
in other files of the folder, which a stranger's graph could make any file of the machine.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from palmette.errors import CheckpointError

_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Messages on the way to the entries of a tensor that name its file, by number of the field that holds them."""
_DEEPEST = 64
"""Messages inside each other that are read."""
_VARINT = 0
"""Wire type of an integer of any length."""
_FIXED64 = 1
"""Wire type of eight bytes."""
_WIRE_BYTES = 2
"""Wire type of a length and so many bytes."""
_FIXED32 = 5
"""Wire type of four bytes."""


class _Field(NamedTuple):
    """A field of bytes: its number, and where its value lies."""

    number: int
    start: int
    stop: int


def external_files(path: Path, folder: Path, name: str) -> list[Path]:
    """List the files beside a graph that hold its numbers; one outside the folder raises CheckpointError."""
    locations: set[str] = set()
    try:
        with path.open("rb") as graph, mmap.mmap(graph.fileno(), 0, access=mmap.ACCESS_READ) as content:
            locations.update(_locations(content, "model", 0, len(content), 0))
    except (ValueError, IndexError) as error:  # an empty file cannot be mapped
        raise CheckpointError(f"encoder {name!r}: {path} is no ONNX graph ({error}); export it again") from error
    files = []
    for location in sorted(locations):
        file = path.parent / location
        if Path(location).is_absolute() or not lies_within(file, folder):
            raise CheckpointError(f"encoder {name!r}: {path} keeps weights outside its folder: {location!r}")
        if not file.is_file():
            raise CheckpointError(f"encoder {name!r}: {path} needs {location!r} beside it; copy the whole folder")
        files.append(file)
    return files


def lies_within(file: Path, folder: Path) -> bool:
    """Return whether a file is one of the folder, or of the Hub's cache, which links to its files from folders."""
    if not Path(os.path.normpath(file.absolute())).is_relative_to(os.path.normpath(folder.absolute())):
        return False
    cache = [folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else []
    return any(file.resolve().is_relative_to(root.resolve()) for root in (folder, *cache))


def _locations(content: mmap.mmap, kind: str, start: int, stop: int, depth: int) -> Iterator[str]:
    """Yield the names of files in a message and in those inside it."""
    if depth > _DEEPEST:
        raise ValueError("its messages are too deep")
    if kind == "entry":
        parts = {field.number: content[field.start : field.stop] for field in _fields(content, start, stop)}
        if parts.get(1) == b"location":
            yield parts.get(2, b"").decode("utf-8")
        return
    inside = _FIELDS[kind]
    for field in _fields(content, start, stop):
        if field.number in inside:
            yield from _locations(content, inside[field.number], field.start, field.stop, depth + 1)


def _fields(content: mmap.mmap, start: int, stop: int) -> Iterator[_Field]:
    """Yield the fields of a message that hold bytes, and pass over numbers."""
    at = start
    while at < stop:
        key, at = _varint(content, at)
        length, kind = 0, key & 7
        if kind == _VARINT:
            _, at = _varint(content, at)
        elif kind == _WIRE_BYTES:
            length, at = _varint(content, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"it has a value of type {kind}")
        if at + length > stop:
            raise ValueError("it is cut off")
        if kind == _WIRE_BYTES:
            yield _Field(key >> 3, at, at + length)
        at += length


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte, and return it with the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has more than ten bytes")
