"""The seam between an Index and the storage of its documents and arrays.

An ``Index`` turns texts into arrays with a model, and talks to a backend only in document ids, opaque integer
keys, named arrays, search plans and filters. The local folder (``local.py``) is one backend; a vector database
can be another. A backend knows nothing of methods, encoders or frameworks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from palmette.arrays import Stored
from palmette.errors import DuplicateIdError, InputError
from palmette.search.plan import ArraySpec, View
from palmette.store.filters import And, Filter, Within, matches, parse_filter
from palmette.types import Document

PAGE = 1000
"""Documents read at a time."""


@dataclass(frozen=True)
class BackendStats:
    """What a backend stores and where."""

    documents: int
    bytes: int
    """Size on disk; 0 of a collection, whose engine does not say."""
    segments: int
    reclaimable: int
    """Documents deleted or replaced whose space ``compact`` would give back."""
    location: str
    engine: str
    """Search engine: ``exact``, ``faiss``, ``ivf`` …, or a backend's own."""


class Writer(Protocol):
    """A change in the making: nothing of it is visible, or survives a crash, until it commits."""

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the content digests of those ids that exist (deletions of this change not counted)."""

    def put(self, documents: Sequence[Document], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists; ``arrays`` are in the documents' order."""

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

    def read(self, filter: Filter | None = None) -> AbstractContextManager[View]:
        """Open a consistent view under a filter that is applied before any ranking."""

    def write(self) -> AbstractContextManager[Writer]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return documents by id, ``None`` where there is none."""

    def scan(self, filter: Filter | None = None) -> Iterator[Document]:
        """Yield all documents that pass the filter, in the order they were added."""
        with self.read(filter) as view:
            keys = view.keys().tolist()
            for start in range(0, len(keys), PAGE):
                yield from view.documents(keys[start : start + PAGE])

    def stats(self) -> BackendStats:
        """Return counts and sizes."""

    def compact(self) -> None:
        """Give back the space of deleted documents; results do not change."""

    def verify(self) -> None:
        """Check every file against its checksum, and every document; raises CorruptIndexError."""

    def close(self) -> None:
        """Release files and locks; further calls raise StoreError. Does nothing on a filtered backend."""


class FilteredBackend(Backend):
    """A backend behind a filter: what does not pass is not there, and cannot be put there.

    For tenants who share an index and must not see or touch each other's documents.
    """

    backend: Backend
    within: Filter

    def __init__(self, backend: Backend, within: Filter) -> None:
        if isinstance(backend, FilteredBackend):
            within, backend = And((backend.within, within)), backend.backend
        self.backend, self.within = backend, within
        self.engine, self.arrays, self.language = backend.engine, backend.arrays, backend.language

    def passes(self, document: Document) -> bool:
        """Whether a document passes the filter."""
        return matches(self.within, document.metadata, document.key)

    def read(self, filter: Filter | None = None) -> AbstractContextManager[View]:
        """Open a view through both filters."""
        asked = parse_filter(filter)
        return self.backend.read(Within((self.within,) if asked is None else (self.within, asked)))

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """Begin a change that stays within the filter."""
        with self.backend.write() as writer:
            yield _FilteredWriter(self, writer)

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return documents by id, where they pass."""
        return [found if found and self.passes(found) else None for found in self.backend.get(ids)]

    def stats(self) -> BackendStats:
        """Count the documents that pass; sizes are 0, since files hold the documents of all."""
        with self.read() as view:
            documents = len(view)
        return replace(self.backend.stats(), documents=documents, bytes=0, segments=0, reclaimable=0)

    def compact(self) -> None:
        """Compact the files, which all documents share: what anyone deleted; no result changes."""
        self.backend.compact()

    def verify(self) -> None:
        """Check the files, which all documents share: damage anywhere raises, and names files only."""
        self.backend.verify()

    def close(self) -> None:
        """Do nothing: others read the whole backend, and only its owner closes it."""


class _FilteredWriter:
    """Refuses documents that the filter hides, and ids of hidden documents."""

    def __init__(self, owner: FilteredBackend, writer: Writer) -> None:
        self.owner, self.writer = owner, writer

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        held = self.writer.digests(ids)
        for id, document in zip(held, self.owner.get(list(held)), strict=True):
            if document is None:
                raise DuplicateIdError(
                    f"id {id!r} is taken by a document outside this view: nothing was added; give another id"
                )
        return held

    def put(self, documents: Sequence[Document], arrays: Mapping[str, Stored]) -> None:
        for document in documents:
            if not self.owner.passes(document):
                raise InputError(
                    f"document {document.key!r} does not pass this view's filter {self.owner.within}: nothing "
                    "was added; give it metadata that passes, or add it to the whole index"
                )
        self.digests([document.key for document in documents])
        self.writer.put(documents, arrays)

    def delete(self, ids: Sequence[str]) -> list[str]:
        return self.writer.delete([document.key for document in self.owner.get(ids) if document])

    def note(self, name: str, value: str) -> None:
        self.writer.note(name, value)
