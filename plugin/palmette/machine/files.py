"""Files that strangers may have made: read without waiting on a pipe, written without following a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from palmette.errors import PalmetteError

RATIO = 200
"""Times its size that a compressed file may unpack to; texts reach 10."""
SMALL = 2**22
"""Bytes that any compressed file may unpack to."""
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
"""How a file is opened that may be a pipe."""

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def reading(where: object, kind: type[PalmetteError]) -> Iterator[None]:
    """Raise what the system refuses to read as an error of this kind."""
    try:
        yield
    except OSError as error:
        what = f" ({error.filename})" if error.filename and str(error.filename) != str(where) else ""
        raise kind(
            f"{where} cannot be read{what}: {error.strerror or error}; change its permissions, or copy it"
        ) from error


def flaw_of(path: Path, *, written: bool = False) -> str:
    """Say why a path is no regular file of its own; empty where it is one, or where nothing is there.

    A file that will be ``written`` in place must have one name only: another name of it may be somebody else's file.
    """
    try:
        state = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(state.st_mode):
        return f"is {_KINDS.get(stat.S_IFMT(state.st_mode), 'no regular file')}, not a regular file"
    if written and state.st_nlink > 1:
        return f"has {state.st_nlink} names (hard links), and writing to it would change what the others name"
    return ""


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes; anything else raises ValueError, and is not waited for."""
    if flaw := flaw_of(path):
        raise ValueError(f"it {flaw}")
    descriptor = os.open(path, _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return content


def open_source(path: Path, root: Path | None = None) -> BinaryIO:
    """Open a regular file of a stranger; what has become a pipe is not waited for, and raises OSError.

    With a ``root``, what was opened is the file that the name leads to inside it: a link that was put in its place
    meanwhile, also in that of a folder above it, reads nothing outside.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"it is {_KINDS.get(stat.S_IFMT(state.st_mode), 'no regular file')} now")
        if root is not None:
            target = path.resolve(strict=True)
            if not target.is_relative_to(root.resolve()) or not os.path.samestat(target.lstat(), state):
                raise OSError("it was replaced while it was read")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def write_anew(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a new file in place of one of that name, whose other names (hard links) keep their content."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut; nothing to do where folders cannot be opened (Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
