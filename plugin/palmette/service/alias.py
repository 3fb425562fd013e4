"""Aliases of indexes: a symbolic link that every reader follows, changed by one rename, and reverted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palmette.config import check_path
from palmette.errors import InputError, NotFoundError
from palmette.hub.checkpoint import open_folder
from palmette.index import MODEL
from palmette.machine.files import fsync_folder
from palmette.machine.folders import draft_beside, folder_lock
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import storage_errors


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
    return Alias(link, _end(link), _end(former) if former.is_symlink() else None)


def set_alias(name: str | Path, index: str | Path) -> Alias:
    """Point an alias at an index, if it can be opened; open readers stay with the former one.

    The alias is a symbolic link, so ``Index.open(name)`` and every command take it; the exchange is one rename.
    """
    link, target = check_path(name).absolute(), _end(check_path(index).absolute())
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link} is a folder, not a name: move it to {link.name}-v1, then name that {link.name}")
    with _moving(link):
        return _move(link, target)


def restore_alias(name: str | Path) -> Alias:
    """Point an alias back at its former index; a second call reverts that."""
    link = check_path(name).absolute()
    with _moving(link):
        alias = read_alias(link)
        if alias.former is None:
            raise NotFoundError(f"{link} has led to {alias.target} only: there is no index before it")
        return _move(link, alias.former)


@contextmanager
def _moving(link: Path) -> Iterator[None]:
    """Let one process at a time move the names in a folder."""
    if not link.parent.is_dir():
        raise NotFoundError(f"there is no folder {link.parent} for the name {link.name}: make it first")
    with storage_errors(link), folder_lock(link.parent):
        yield


def _move(link: Path, target: Path) -> Alias:
    """Point an alias at the folder of an index, if that can be opened, and keep where it has led."""
    backend = LocalBackend.open(target)
    try:
        fingerprint = open_folder(target / MODEL).fingerprint
        if fingerprint != backend.fingerprint:
            raise InputError(f"{target} was built by model {backend.fingerprint[:12]}, but holds {fingerprint[:12]}")
    finally:
        backend.close()
    places = [(link, target)]
    if link.is_symlink() and (current := _end(link)) != target:
        places.insert(0, (_former(link), current))
    for place, folder in places:  # each is replaced by one rename; relative, so that the folder of all can be moved
        with draft_beside(place) as holder:
            draft = holder / place.name
            draft.symlink_to(folder.name if folder.parent == _end(place.parent) else folder)
            draft.replace(place)
    fsync_folder(link.parent)
    return read_alias(link)


def _end(path: Path) -> Path:
    """Follow names of names to the folder at their end: a link to a name would become a circle when that is moved."""
    return Path(os.path.realpath(path))  # unlike resolve, it raises for no circle


def _former(link: Path) -> Path:
    return link.with_name(f".{link.name}.former")
