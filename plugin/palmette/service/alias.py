"""Aliases of indexes: a symbolic link that every reader follows, changed by one rename, and reverted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palmette.config import check_path
from palmette.errors import InputError, LockedError, NotFoundError
from palmette.hub.checkpoint import open_folder
from palmette.index import MODEL
from palmette.machine.files import fsync_folder
from palmette.machine.folders import draft_beside, folder_lock
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import storage_errors

LONGEST_CHAIN = 40
"""Most links from a name to its index, as in Linux."""


@dataclass(frozen=True)
class Alias:
    """An alias, its index, and the former one."""

    name: Path
    target: Path
    former: Path | None


def read_alias(name: str | Path) -> Alias:
    """Read an alias."""
    link = check_path(name).absolute()
    if not link.is_symlink():
        raise NotFoundError(f"{link} is no name of an index: make it one with `palmette alias {link.name} INDEX`")
    former = _former(link)
    return Alias(link, _target(link), _target(former) if former.is_symlink() else None)


def set_alias(name: str | Path, index: str | Path) -> Alias:
    """Point an alias at an index, if it can be opened; open readers stay with the former one.

    The alias is a symbolic link, so ``Index.open(name)`` and every command take it; the exchange is one rename.
    """
    link, target = check_path(name).absolute(), _end(check_path(index).absolute())
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link} is a folder, not a name: move it to {link.name}-v1, then name that {link.name}")
    if target == link:
        raise InputError(f"{link} cannot lead to itself: name the folder of an index")
    _check_opens(target)
    with _moving(link):
        return _move(link, target)


def restore_alias(name: str | Path) -> Alias:
    """Point an alias back at its former index; a second call reverts that."""
    alias = read_alias(name)
    if alias.former is None:
        raise NotFoundError(f"{alias.name} has led to {alias.target} only: there is no index before it")
    target = _end(alias.former)
    _check_opens(target)
    with _moving(alias.name):
        if read_alias(alias.name) != alias:
            raise LockedError(f"another process has moved {alias.name} meanwhile: see where it leads, and repeat it")
        return _move(alias.name, target)


def _check_opens(folder: Path) -> None:
    """Raise unless a folder holds an index with its model."""
    backend = LocalBackend.open(folder)
    try:
        fingerprint = open_folder(folder / MODEL).fingerprint
        if fingerprint != backend.fingerprint:
            raise InputError(f"{folder} was built by model {backend.fingerprint[:12]}, but holds {fingerprint[:12]}")
    finally:
        backend.close()


@contextmanager
def _moving(link: Path) -> Iterator[None]:
    """Let one process at a time move the names in a folder."""
    if not link.parent.is_dir():
        raise NotFoundError(f"there is no folder {link.parent} for the name {link.name}: make it first")
    with storage_errors(link), folder_lock(link.parent):
        yield


def _move(link: Path, target: Path) -> Alias:
    """Point an alias at a folder, and keep where it has led."""
    if link.is_symlink() and (current := _target(link)) != target:
        _link(_former(link), current)
    _link(link, target)
    return read_alias(link)


def _end(path: Path) -> Path:
    """Follow names of names to the folder at their end: a link to a name would become a circle when that is moved."""
    for _ in range(LONGEST_CHAIN):
        if not path.is_symlink():
            return path
        path = _target(path)
    raise InputError(f"{path} leads to itself or too far: name the folder of an index")


def _former(link: Path) -> Path:
    return link.with_name(f".{link.name}.former")


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))


def _link(link: Path, target: Path) -> None:
    """Create or replace a link by one rename; it is relative within a folder, so that the folder can be moved."""
    with draft_beside(link) as holder:
        draft = holder / link.name
        draft.symlink_to(target.name if target.parent == link.parent else target)
        draft.replace(link)
    fsync_folder(link.parent)
