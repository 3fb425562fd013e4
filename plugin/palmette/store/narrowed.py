"""A backend seen through a filter: what does not pass is not there, and cannot be put there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import DuplicateIdError, InputError
from palmette.search.plan import ArraySpec
from palmette.store.backend import Backend, BackendStats, WordView, Writer
from palmette.store.conditions import Narrowed
from palmette.store.filters import Filter, both, matches, parse_filter
from palmette.types import Document

__all__ = ["NarrowedBackend"]


class NarrowedBackend:
    """Any backend, narrowed: for tenants who share an index and must not see or touch each other's documents."""

    def __init__(self, backend: Backend, within: Filter) -> None:
        self.backend = backend
        self.within: Filter = within
        if isinstance(backend, NarrowedBackend):
            self.backend = backend.backend
            self.within = both(backend.within, within) or within

    @property
    def engine(self) -> str:
        """That of the whole backend."""
        return self.backend.engine

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays of the whole backend."""
        return self.backend.arrays

    @property
    def language(self) -> str | None:
        """That of the whole backend."""
        return self.backend.language

    def _joined(self, filter: Mapping[str, Any] | Filter | None) -> Filter:
        asked = parse_filter(filter)
        return Narrowed((self.within,) if asked is None else (self.within, asked))

    def shows(self, document: Document) -> bool:
        """Whether a document passes the filter."""
        return matches(self.within, document.metadata, document.key)

    def read(self, filter: Filter | None = None) -> AbstractContextManager[WordView]:
        """A view through both filters."""
        return self.backend.read(self._joined(filter))

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """A change that stays within the filter."""
        with self.backend.write() as writer:
            yield _NarrowedWriter(self, writer)

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Documents by id, where they pass."""
        return [found if found and self.shows(found) else None for found in self.backend.get(ids)]

    def scan(self, filter: Filter | None = None) -> Iterator[Document]:
        """All documents that pass both filters."""
        return self.backend.scan(self._joined(filter))

    def stats(self) -> BackendStats:
        """How many documents pass; sizes are 0, since files hold the documents of all."""
        with self.read() as view:
            documents = len(view)
        whole = self.backend.stats()
        return BackendStats(documents, 0, 0, 0, whole.location, whole.engine)

    def compact(self) -> None:
        """Compact the files, which all documents share: what anyone deleted; no result changes."""
        self.backend.compact()

    def verify(self) -> None:
        """Check the files, which all documents share: damage anywhere raises, and names files only."""
        self.backend.verify()

    def close(self) -> None:
        """Nothing: others read the whole backend, and only its owner closes it."""


class _NarrowedWriter:
    """Refuses documents the filter hides, and ids that hidden documents hold."""

    def __init__(self, owner: NarrowedBackend, writer: Writer) -> None:
        self.owner, self.writer = owner, writer

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        held = self.writer.digests(ids)
        for id, document in zip(held, self.owner.get(list(held)), strict=True):
            if document is None:
                raise DuplicateIdError(
                    f"id {id!r} is taken by a document outside this view: nothing was added; give another id"
                )
        return held

    def put(self, documents: Sequence[Document], arrays: Mapping[str, NDArray[np.generic]]) -> None:
        for document in documents:
            if not self.owner.shows(document):
                raise InputError(
                    f"document {document.key!r} does not pass this view's filter {self.owner.within}: nothing "
                    "was added; give it metadata that passes, or add it to the whole index"
                )
        self.digests([document.key for document in documents])
        self.writer.put(documents, arrays)

    def delete(self, ids: Sequence[str]) -> list[str]:
        return self.writer.delete([document.key for document in self.owner.get(ids) if document])
