"""Checks of what users pass to an index: paths, counts, ids and documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from palmette.config import check_path, check_range
from palmette.data import iter_documents, to_document
from palmette.errors import DuplicateIdError, InputError, shown
from palmette.search.faiss_engine import engine_named
from palmette.store.checks import check_storable
from palmette.store.engines import engine_of, is_url
from palmette.types import Document

LONGEST_NAME = 1024
"""Largest number of characters of a text that may be the name of a file."""
MOST_SECONDS = 1e6
"""Longest wait for another writer."""


def check_opening(engine: Any, lock_timeout: Any) -> None:
    """Raise for an unknown engine or an impossible time before there is a folder."""
    engine_named(engine)
    check_range("Index", "lock_timeout", np.nan if lock_timeout is None else lock_timeout, 0, MOST_SECONDS)


def absolute(path: object) -> Path | str:
    """Make a path absolute, so that a later change of the working directory does not matter; check a URL."""
    if is_url(path):
        engine_of(path)
        return path
    return local_path(path)


def local_path(path: object) -> Path:
    """Make the path of a folder absolute; a URL raises, since it would otherwise become the name of a folder."""
    text = str(path) if isinstance(path, str | Path) else ""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):  # two letters at least: C:/ is a drive
        without_key = text.partition("?")[0].rpartition("@")[2]
        raise InputError(
            f"{shown(without_key)} is a URL, but a folder on this machine is needed; of URLs, Index.create, Index.open "
            "and index.copy_to take those of collections, such as qdrant://host:6333/name"
        )
    return check_path(path).absolute()


def check_ids(ids: Iterable[str]) -> list[str]:
    """Check that ids are several str, not one str."""
    if isinstance(ids, str):
        raise InputError(f"ids must be a list, got the str {shown(ids)}: write [{shown(ids)}]")
    if not isinstance(ids, Iterable):
        raise InputError(f"ids must be a list of str, got {type(ids).__name__}")
    listed: list[object] = list(ids)
    if bad := [id for id in listed if not isinstance(id, str)]:
        raise InputError(f"ids are str, got {shown(bad[0])}")
    return [str(id) for id in listed]


def check_documents(documents: object) -> list[Document]:
    """Convert documents of any kind that :func:`palmette.data.to_document` knows, or read them from a path."""
    if isinstance(documents, str | Path):
        return list(iter_documents(documents, passages=False))
    if isinstance(documents, Document | Mapping | bytes) or not isinstance(documents, Iterable):
        raise InputError(
            "documents must be a list (or a path to read them from), "
            f"got one {type(documents).__name__}: write [document]"
        )
    converted = []
    for position, item in enumerate(documents):
        try:
            if names_a_file(item):
                raise InputError(
                    f"{shown(str(item))} is the name of a file or folder, not a text: give the path itself, "
                    f"Index.build({shown(str(item))}), or bring the index up to date with index.sync"
                )
            converted.append(to_document(item))
        except InputError as error:
            raise type(error)(f"document {position}: {error}") from error
    return converted


def names_a_file(value: object) -> bool:
    """Return True for a ``Path``, and for a text that is the path of an existing file or folder."""
    if isinstance(value, Path):
        return True
    if not isinstance(value, str) or len(value) > LONGEST_NAME or "\n" in value or not re.search(r"[./\\]\S", value):
        return False
    with suppress(OSError, ValueError):
        return Path(value).expanduser().exists()
    return False


def unique(documents: Sequence[Document]) -> dict[str, Document]:
    """Map ids to documents; equal documents count once, and an id with two contents raises."""
    unique: dict[str, Document] = {}
    for document in documents:
        digest = check_storable(document)  # raises before anything is written
        if unique.setdefault(document.key, document).digest != digest:
            raise DuplicateIdError(f"id {document.key!r} is given twice with different content: nothing was added")
    return unique
