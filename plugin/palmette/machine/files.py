"""Files that strangers may have made: read without waiting on a pipe, written without following a link."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from palmette.errors import LockedError, PalmetteError

RATIO = 200
"""Times its size that a compressed file may unpack to; texts reach 10."""
SMALL = 2**22
"""Bytes that any compressed file may unpack to."""
_DRAFT = ".new"
_ABANDONED = 86_400.0
"""Seconds after which a draft is a dead process's, where nothing else tells."""
_PATIENCE = 10.0
"""Seconds to wait for the lock of a folder."""
_POLL = 0.02
"""Seconds between two attempts to take it."""

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
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if flaw := flaw_of(path):
        raise ValueError(f"it {flaw}")
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
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
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
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


@contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, removed at the end; those that killed processes left go first."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}{re.escape(_DRAFT)}")
    for entry in path.parent.iterdir():
        if ours.fullmatch(entry.name):
            with suppress(OSError):
                _remove_abandoned(entry)
    folder, lock = _make_draft(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def folder_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock of a folder, that leaves no file; holds nothing where the system has no such locks."""
    until = time.monotonic() + patience
    while True:
        free, lock = _lock_folder(folder)
        if free:
            break
        if time.monotonic() >= until:
            raise LockedError(f"another process uses {folder}: wait for its end, or choose another folder")
        time.sleep(_POLL)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _make_draft(path: Path) -> tuple[Path, int | None]:
    while True:
        folder = path.with_name(f".{path.name}.{uuid4().hex}{_DRAFT}")
        folder.mkdir()
        try:
            free, lock = _lock_folder(folder)
        except FileNotFoundError:  # swept before it was locked
            continue
        if free and folder.is_dir():  # else a process that sweeps was between the two steps
            return folder, lock
        if lock is not None:
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    free, lock = _lock_folder(folder)
    try:
        if free and (lock is not None or time.time() - folder.stat().st_mtime > _ABANDONED):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _lock_folder(folder: Path) -> tuple[bool, int | None]:
    """Lock a folder until the descriptor is closed or its process ends: whether it was free, and the descriptor.

    There is no descriptor where the system has no such locks.
    """
    if sys.platform == "win32":
        return True, None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return not isinstance(error, BlockingIOError), None
    return True, descriptor
