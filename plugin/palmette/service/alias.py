"""Aliases of indexes: a symbolic link that every reader follows, changed by one rename, and reverted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from palmette.config import check_path
from palmette.errors import InputError, NotFoundError
from palmette.files import fsync_folder
from palmette.hub.checkpoint import open_folder
from palmette.index import MODEL
from palmette.store.local.backend import LocalBackend


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
    link, target = check_path(name).absolute(), check_path(index).absolute()
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link} is a folder, not a name: move it to {link.name}-v1, then name that {link.name}")
    if target.is_symlink():
        target = _target(target)
    if target == link:
        raise InputError(f"{link} cannot lead to itself: name the folder of an index")
    backend = LocalBackend.open(target)
    try:
        fingerprint = open_folder(target / MODEL).fingerprint
        if fingerprint != backend.fingerprint:
            raise InputError(f"{target} was built by model {backend.fingerprint[:12]}, but holds {fingerprint[:12]}")
    finally:
        backend.close()
    if link.is_symlink() and _target(link) != target:
        _link(_former(link), _target(link))
    _link(link, target)
    return read_alias(link)


def restore_alias(name: str | Path) -> Alias:
    """Point an alias back at its former index; a second call reverts that."""
    alias = read_alias(name)
    if alias.former is None:
        raise NotFoundError(f"{alias.name} has led to {alias.target} only: there is no index before it")
    return set_alias(alias.name, alias.former)


def _former(link: Path) -> Path:
    return link.with_name(f".{link.name}.former")


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))


def _link(link: Path, target: Path) -> None:
    """Create or replace a link by one rename; it is relative within a folder, so that the folder can be moved."""
    draft = link.with_name(f".{link.name}.{uuid4().hex}.new")
    draft.symlink_to(target.name if target.parent == link.parent else target)
    try:
        draft.replace(link)
    finally:
        draft.unlink(missing_ok=True)
    fsync_folder(link.parent)
