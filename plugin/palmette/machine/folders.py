"""Folders as a whole: written beside their place and moved there, exchanged, and locked without a file.

A kill at any moment leaves what was there before or the new folder; what a killed process was writing goes with the
next try.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from palmette.errors import InputError, LockedError
from palmette.machine.files import fsync_folder

_DRAFT = ".new"
_ABANDONED = 86_400.0
"""Seconds after which a draft is a dead process's, where nothing else tells."""
_PATIENCE = 10.0
"""Seconds to wait for the lock of a folder."""
_POLL = 0.02
"""Seconds between two attempts to take it."""
_AT_FDCWD = -100
"""Argument of renameat2: relative paths start at the working directory."""
_RENAME_EXCHANGE = 2
"""Flag of renameat2: exchange two paths."""


def is_occupied(path: Path) -> bool:
    """Return whether a file or a folder with content exists there."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextmanager
def atomic_folder(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """Yield where to make a folder, which becomes ``path`` on a clean exit; what lies at ``path`` is never touched.

    ``flush`` brings its files to the disk first, for those whose writer does not.
    """
    if is_occupied(path):
        raise InputError(f"{path} exists and is not an empty folder: choose another")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"{path} cannot be made: {parent} is a file; choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_beside(path) as holder:
        draft = holder / path.name  # so that it has the modes that folders get here, and the holder its own
        yield draft
        for entry in [draft, *draft.rglob("*")] if flush else ():
            if entry.is_dir():
                fsync_folder(entry)
            else:
                with entry.open("rb+") as file:
                    os.fsync(file.fileno())
        if path.is_dir():
            shutil.copymode(path, draft)
            if sys.platform == "win32":  # where no folder takes the place of an empty one
                path.rmdir()
        draft.replace(path)
        fsync_folder(path.parent)


def exchange_folders(first: Path, second: Path) -> None:
    """Exchange two folders of one file system: in one step where it can, or else by three renames."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        paths = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second)
        if hasattr(libc, "renameat2") and libc.renameat2(*paths, _RENAME_EXCHANGE) == 0:
            fsync_folder(first.parent)
            return
    first.rename(between(first))
    second.rename(first)
    between(first).rename(second)
    fsync_folder(first.parent)


def between(folder: Path) -> Path:
    """Return where a folder is while another takes its place by renames: it is there if a kill came between."""
    return folder.with_name(f".{folder.name}.between")


@contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, removed at the end; those that killed processes left go first."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}{re.escape(_DRAFT)}")
    for entry in path.parent.iterdir():
        if ours.fullmatch(entry.name):
            with suppress(OSError), _locked(entry) as locked:  # a process that is at work holds its own
                if locked or time.time() - entry.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(entry, ignore_errors=True)
    with ExitStack() as lock:
        while True:
            folder = path.with_name(f".{path.name}.{uuid4().hex}{_DRAFT}")
            folder.mkdir()
            with suppress(BlockingIOError, FileNotFoundError):  # another process swept it before it was locked
                lock.enter_context(_locked(folder))
                if folder.is_dir():
                    break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock of a folder, that leaves no file; holds nothing where the system has no such locks."""
    until = time.monotonic() + patience
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(_locked(folder))
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    reason = f"another process uses {folder}: wait for its end, or choose another folder"
                    raise LockedError(reason) from None
                time.sleep(_POLL)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder until the end, a kill included, and tell whether the system has such locks.

    Raises BlockingIOError where another has locked it.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)
