"""The seam between an Index and whatever holds its documents and arrays.

An ``Index`` turns texts into arrays with a model, and speaks to a backend in the terms below only: document
ids, opaque integer keys, named arrays, probes and filters. The local folder (``local.py``) is one backend; a
vector database is another. A backend knows nothing of methods, encoders or frameworks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from palmette.search.plan import ArraySpec, Candidates, SearchPlan
from palmette.search.probe import Found, Keys, Parts, Probe, Shared
from palmette.store.filters import Filter
from palmette.types import Document

__all__ = ["Backend", "BackendStats", "View", "WordView", "Writer"]


@dataclass(frozen=True)
class BackendStats:
    """What a backend holds and where."""

    documents: int
    bytes: int
    segments: int
    reclaimable: int
    """Documents deleted or replaced whose space ``compact`` would give back."""
    location: str
    engine: str
    """What searches: ``exact``, ``faiss``, ``ivf`` …, or a backend's own."""


class View(Protocol):
    """One consistent state of the documents that pass a filter: no write shows while it is open."""

    def __len__(self) -> int:
        """How many documents pass the filter."""
        ...

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """The ``k`` best documents of every row of a plan."""
        ...

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array, in the order of ``keys``: [n, *shape]."""
        ...

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        """Number of documents in each list of a stored array of list numbers: [L]."""
        ...

    def within(self, keys: Keys) -> Self:
        """The same state, of these documents alone (rising keys)."""
        ...

    def nearest(self, probe: Probe, k: int) -> Found:
        """The ``k`` best documents of every query row (all of them when fewer exist)."""
        ...

    def nearest_part(self, parts: Parts, k: int) -> Found:
        """The ``k`` best documents of every query by the best of their vectors; evidence ``part`` says which."""
        ...

    def rescored(self, keys: Keys, parts: Parts, k: int) -> Found:
        """The ``k`` best of some documents of every query [Q, n] (−1 for none), in the same way."""
        ...

    def sizes(self, name: str) -> NDArray[np.int64]:
        """How many documents each list holds, by a stored array of list numbers: [L] (see ``Probe.lists``)."""
        ...

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """The documents under these keys, in this order."""
        ...

    def ids(self, keys: Sequence[int]) -> list[str]:
        """The ids of the documents under these keys, in this order, without reading the documents."""
        ...

    def array(self, name: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array for these keys, in this order: [len(keys), *shape]."""
        ...

    def key_of(self, id: str) -> int | None:
        """The key under which a document's current version lies; never reused after a change."""
        ...

    def keys(self) -> Keys:
        """All keys that pass the filter, ascending."""
        ...


class WordView(View, Protocol):
    """A view that can be searched by words too."""

    def matching(self, texts: Sequence[str], k: int, floor: float = 0.0) -> Found:
        """The ``k`` best documents of every text by the words they share; only such documents.

        A score is the share of a text's weight in words that the document answers, 0 … 1; equal ones go by key.
        Documents that score less than ``floor`` may be left out.
        """
        ...

    def shared(self, text: str, keys: Sequence[int]) -> Shared:
        """The words of a text, and what each adds to the :meth:`matching` score of these documents."""
        ...


class Writer(Protocol):
    """A change in the making: nothing of it is visible, or survives a crash, until it commits."""

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """The content digests of those ids that exist (deletions of this change not counted)."""
        ...

    def put(self, documents: Sequence[Document], arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Insert documents, replacing those whose id exists; ``arrays`` hold one row per document."""
        ...

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents; returns the ids that were there."""
        ...


class Backend(Protocol):
    """Holds documents and their arrays; many readers, one writer at a time."""

    @property
    def engine(self) -> str:
        """What searches the arrays: ``exact``, ``faiss``, ``ivf`` …, or a vector database's name."""
        ...

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays stored per document, in an index made by an earlier version not quite those of its model."""
        ...

    @property
    def language(self) -> str | None:
        """Whose word endings are cut off before words are compared; ``None`` for nobody's."""
        ...

    def read(self, filter: Filter | None = None) -> AbstractContextManager[WordView]:
        """A consistent view, narrowed by a filter that is applied before any ranking."""
        ...

    def write(self) -> AbstractContextManager[Writer]:
        """A change: committed as a whole on a clean exit, dropped as a whole on an exception."""
        ...

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Documents by id, ``None`` where there is none."""
        ...

    def scan(self, filter: Filter | None = None) -> Iterator[Document]:
        """All documents that pass the filter, in the order they were added."""
        ...

    def stats(self) -> BackendStats:
        """Counts and sizes."""
        ...

    def compact(self) -> None:
        """Give back the space of deleted documents; results do not change."""
        ...

    def verify(self) -> None:
        """Check every file against its checksum, and every document; raises CorruptIndexError."""
        ...

    def close(self) -> None:
        """Release files and locks; further calls raise StoreError. Does nothing on a narrowed backend."""
        ...
