"""An index folder in the making: it appears as a whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from palmette.errors import InputError
from palmette.store.database import storage_errors

__all__ = ["drafted", "is_used"]


def is_used(path: Path) -> bool:
    """Whether something lies there already."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A folder to fill, moved to ``path`` on a clean exit; whatever lies at ``path`` is never touched."""
    if is_used(path):
        raise InputError(f"{path} exists and is not an empty folder: choose another, or Index.open it")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"{path} cannot be made: {parent} is a file; choose another folder")
    draft = path.with_name(f".{path.name}.{uuid4().hex}.new")
    try:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            if path.is_dir():
                path.rmdir()  # empty: a move onto a folder is not allowed everywhere
            draft.replace(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
