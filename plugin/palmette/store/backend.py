"""The seam between an Index and the storage of its documents and arrays.

An ``Index`` turns texts into arrays with a model, and talks to a backend only in document ids, opaque integer
keys, named arrays, search plans and filters. A local folder (``local/``) is one backend, a
collection (``qdrant/``) another. A backend knows nothing of methods, encoders or frameworks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from palmette.arrays import Stored
from palmette.search.plan import ArraySpec, View, by_documents
from palmette.search.stored import StoredDocument
from palmette.store.filters import FilterLike
from palmette.types import Document

PAGE = 1000
"""Documents read at a time."""


@dataclass(frozen=True)
class BackendStats:
    """Contents, location and size of a backend."""

    documents: int
    """Whole documents."""
    passages: int
    """Passages of all documents: rows of each array."""
    location: str
    bytes: int
    """Size on disk; 0 of a collection, whose engine does not say."""
    segments: int
    reclaimable: int
    """Passages deleted or replaced whose space ``compact`` would give back."""
    log: int
    """Bytes, of those on disk, that the log of recent writes takes.

    It is emptied from some megabytes on, except while a view of an older state is open: the log then grows with every
    write.
    """


class Writer(Protocol):
    """A change in the making: nothing of it is visible, or survives a crash, until it commits."""

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the content digests of those ids that exist (deletions of this change not counted)."""

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists with all their passages.

        ``arrays`` have a row for each passage, in the documents' order; a plain document is one passage.
        """

    def note(self, name: str, value: str) -> None:
        """Keep a short text with the documents, in place of an earlier one of this name."""

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents; returns the ids that were there."""


class Backend(Protocol):
    """Stores documents and their arrays; many readers, one writer at a time."""

    engine: str
    """Search engine of the arrays: ``exact``, ``faiss``, ``ivf`` …, or a vector database's name."""
    arrays: tuple[ArraySpec, ...]
    """Arrays stored per document."""
    language: str | None
    """Stemmer that words are compared with; ``None`` for none."""
    tenant: str | None = None
    """Metadata name that parts the documents: each has exactly one value of it, which its id begins with."""
    passages: Mapping[str, Any] | None = None
    """How documents are cut into passages, as it is recorded; ``None``: each is one passage."""

    def read(self, filter: FilterLike = None) -> AbstractContextManager[View]:
        """Open a consistent view under a filter that is applied before any ranking."""

    def write(self) -> AbstractContextManager[Writer]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return whole documents by id, ``None`` where there is none."""
        with self.read() as view:
            keys = {id: passage_keys[0] for id, passage_keys in view.keys_of(ids).items()}
            stored = dict(zip(keys, view.stored(list(keys.values())), strict=True))
        return [stored[id].document if id in stored else None for id in ids]

    def scan(self, filter: FilterLike = None) -> Iterator[Document]:
        """Yield all documents that pass the filter, in the order they were added."""
        for stored in self.scan_stored(filter):
            yield stored.document

    def scan_stored(self, filter: FilterLike = None) -> Iterator[StoredDocument]:
        """Yield all documents that pass the filter, with the places of their passages."""
        with self.read(filter) as view:
            for keys in by_documents(view, np.unique(view.document_keys(view.keys()))):
                yield from view.stored(keys)

    def stats(self) -> BackendStats:
        """Return counts and sizes."""

    def compact(self) -> None:
        """Give back the space of deleted documents; results do not change."""

    def verify(self) -> None:
        """Check every file against its checksum, and every document; raises CorruptIndexError."""

    def close(self) -> None:
        """Release files and locks; further calls raise StoreError. Does nothing on a filtered backend."""
