"""The seam between an Index and the storage of its documents and arrays.

An ``Index`` turns texts into arrays with a model, and talks to a backend only in document ids, opaque integer
keys, named arrays, search plans and filters. A local folder (``local/``) is one backend, a
collection of a storage engine (``engines.py``) another. A backend knows nothing of methods, encoders or frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Ragged, Rows, Stored
from palmette.errors import REPAIR, CorruptIndexError, InputError, ModelMismatchError, shown
from palmette.search.plan import ArraySpec, Candidates, SearchPlan, WordMatches
from palmette.store.filters import FilterLike
from palmette.types import LINE_END, Document, Passage, table_heads
from palmette.types.values import written

PAGE = 1000
"""Documents read at a time."""
READ_LIMIT: ContextVar[int | None] = ContextVar("read_limit", default=None)
"""Most characters of passages that are read together, where a service answers strangers."""
READ_TOGETHER = 16
"""Number of documents that are read at a time."""


@dataclass(frozen=True)
class StoredDocument:
    """A document as an index stores it: whole, with the places of its passages."""

    document: Document
    passages: tuple[Passage, ...]
    source: str = ""
    """Name of the source that keeps the document up to date; empty for one that was added by itself."""
    questions: tuple[str, ...] = ()
    """Questions that each passage answers, whose words count as its own; empty where no passage has any."""

    @classmethod
    def whole(cls, document: Document, headings: tuple[str, ...] = (), source: str = "") -> StoredDocument:
        """A document that is one passage."""
        text = document.content
        lines = 1 + sum(match.end() < len(text) for match in LINE_END.finditer(text))
        return cls(document, (Passage(0, len(text), headings, 1, lines),), source)

    def part(self, number: int) -> Document:
        """A passage as a document, its text under the id and metadata of the whole; an only passage is the whole."""
        if len(self.passages) == 1:
            return self.document
        return self._slice(self.document.content, self.passages[number])

    def parts(self) -> list[Document]:
        """All passages as documents, in order."""
        if len(self.passages) == 1:
            return [self.document]
        content = self.document.content
        return [self._slice(content, place) for place in self.passages]

    def _slice(self, content: str, place: Passage) -> Document:
        return replace(self.document, text=content[place.start : place.end])

    def words(self) -> list[str]:
        """Texts in which the words of each passage are looked for; fields are part of the first.

        A passage that goes on with a table has the words of its columns and headings, as its first passage has.
        """
        texts = self._own_words()
        if not self.questions:
            return texts
        return [f"{text}\n{asked}" if asked else text for text, asked in zip(texts, self.questions, strict=True)]

    def _own_words(self) -> list[str]:
        """Texts of the passages without questions."""
        if len(self.passages) == 1:
            return [self.document.all_text]
        fields = "\n".join(filter(None, map(written, self.document.fields.values())))
        texts = [part.text for part in self.parts()]
        heads = table_heads(self.document.content, [place.start for place in self.passages])
        for number, (place, head) in enumerate(zip(self.passages, heads, strict=True)):
            if head:
                texts[number] = "\n".join((*place.headings, head, texts[number]))
        return [f"{texts[0]}\n{fields}".rstrip("\n"), *texts[1:]]


def as_stored(documents: Iterable[Document | StoredDocument]) -> list[StoredDocument]:
    """Wrap documents without passages as documents of one passage."""
    return [d if isinstance(d, StoredDocument) else StoredDocument.whole(d) for d in documents]


class View(Protocol):
    """One consistent state of the documents that pass a filter; no write shows while it is open.

    Keys are of passages: a passage has one row in each array, and a document one or more passages, whose keys follow
    each other. What is said of documents below (candidates, words, rows) holds for passages, unless whole ones are
    named. Keys that are not here, or fail the filter, raise NotFoundError.
    """

    def __len__(self) -> int:
        """Number of passages of the documents that pass the filter."""

    def expect(self, plan: SearchPlan | None, k: int, texts: Sequence[str], arrays: Sequence[str]) -> None:
        """Prefetch hint: a remote storage can fetch in one request what a search is about to read.

        The search will read the ``k`` best of a plan and by the words of each text, and these arrays of all of them.
        """
        return

    def release(self) -> None:
        """Stop reading documents, while arrays stay readable: a view that outlasts writes then costs the storage less.

        :meth:`rows` and :meth:`ragged` may be called after it, and nothing else.
        """
        return

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best documents of every row of the plan (all of them when fewer exist)."""

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best documents by BM25 shares (:mod:`palmette.lexical.bm25`), or score ``only`` these.

        Document frequencies count all living documents, in a tenant's scope
        (:class:`palmette.store.filters.Scoped`) those of the tenant; other filters change no score. Equal scores are
        ordered by key. Documents without a quoted phrase of the text are not found, and score 0 among ``only``.
        """

    def word_parts(self, text: str, key: int) -> Floats:
        """Return each word's and pair's addition [T] to the score of a document that contains the quoted phrases."""

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array, in the order of ``keys``: [n, *shape]."""

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array, in the order of ``keys``: of n documents."""

    def note(self, name: str) -> str | None:
        """Return a note that a writer stored with the documents, ``None`` without one and in a tenant's scope."""
        return None

    def list_sizes(self, array: str) -> Rows:
        """Number of documents in each list of a stored array of list numbers: [L]."""

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Whole documents that passages belong to, in the order of ``keys``."""

    def parts(self, keys: Sequence[int]) -> list[tuple[Document, Passage]]:
        """Passages as documents, each with its place; in the order of ``keys``."""
        owners = self.document_keys(keys).tolist()
        found: dict[int, tuple[Document, Passage]] = {}
        of_document: dict[int, list[int]] = {}
        order = np.asarray(keys, np.int64).reshape(-1).tolist()
        for key, owner in zip(order, owners, strict=True):
            of_document.setdefault(owner, []).append(key)
        most, size = READ_LIMIT.get(), 0
        for owner, stored, others in self.scan(list(of_document)):
            size += others
            for key in dict.fromkeys(of_document[owner]):
                number = key - owner
                if not 0 <= number < len(stored.passages):
                    why = f"it has no place for its passage {number}"
                    raise CorruptIndexError(f"document {shown(stored.document.key)} is damaged: {why}; {REPAIR}")
                found[key] = stored.part(number), stored.passages[number]
                size += len(found[key][0].content)
            if most is not None and size > most:
                raise InputError(f"these passages have more than {most:,} characters together: ask for fewer")
        return list(map(found.__getitem__, order))

    def scan(self, keys: Sequence[int]) -> Iterator[tuple[int, StoredDocument, int]]:
        """Read documents by the keys of their first passages, each when the one before it is done with.

        Yields key, document and the number of characters beside its text, where they are known.
        """
        return ((key, stored, 0) for key, stored in zip(keys, self.stored(keys), strict=True))

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """Passages as documents, in the order of ``keys``: each has the id and the metadata of its document."""
        return [document for document, _ in self.parts(keys)]

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Return the key of the first passage of each passage's document, which stands for the document."""
        return np.asarray(keys, np.int64)

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids of passages' documents in the order of ``keys``; storage need not read the documents."""
        return [document.key for document in self.documents(keys)]

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Keys of all passages of some documents, in order, never used again; ids that are not there are left out."""

    def count_documents(self) -> int:
        """Number of documents that have passages here."""
        return len(np.unique(self.document_keys(self.keys())))

    def ids_of_source(self, source: str) -> dict[str, str]:
        """Ids of the documents that a source keeps up to date, and their digests."""
        return {}

    def keys(self) -> Keys:
        """All keys, ascending."""

    def scope_keys(self) -> Keys | None:
        """Return the ascending keys of all documents of the view's tenant; ``None`` without a scope."""
        return None


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


class StorageEngine(Backend, Protocol):
    """Storage of indexes at URLs, in a distribution of its own (:mod:`palmette.store.engines`)."""

    url: str
    """URL that opens the index again; it holds no key."""

    @staticmethod
    def check_url(url: str) -> None:
        """Raise ConfigError for a URL that names no index, StoreError for one that holds a key."""

    @staticmethod
    def exists(url: str) -> bool:
        """Return whether there is an index at a URL."""

    @classmethod
    def create(
        cls,
        url: str,
        arrays: Sequence[ArraySpec],
        *,
        fingerprint: str,
        language: str | None,
        tenant: str | None = None,
        passages: Mapping[str, Any] | None = None,
        model: Path | None = None,
        draft: bool = False,
    ) -> None:
        """Create an empty index, with the checkpoint of a folder; a ``draft`` is none before :meth:`publish`."""

    @classmethod
    def open(cls, url: str, *, fingerprint: str | None = None, lock_timeout: float = 10.0, draft: bool = False) -> Self:
        """Open an index, made by the model of this fingerprint if one is given."""

    def publish(self) -> None:
        """Make an index of a draft."""

    def discard(self) -> None:
        """Delete a draft."""

    def save_model(self, folder: Path) -> None:
        """Write the checkpoint that the index holds to a folder."""


def check_built_by(place: object, built_by: str, given: str | None) -> None:
    """Raise unless an index was built by the model that is given, by their fingerprints."""
    if given not in (None, built_by):
        raise ModelMismatchError(
            f"{place} was built by the model {built_by}, but the model given is {given}; "
            "open it with the model that built it, or build a new index with this one"
        )


def find_array(arrays: Mapping[str, ArraySpec], name: str, *, ragged: bool = False) -> ArraySpec:
    """Find a stored array by name; raises unless it has one row per document, or any number where ``ragged``."""
    if name not in arrays:
        raise InputError(f"this index stores no array {name!r} but {', '.join(arrays)}")
    if arrays[name].ragged != ragged:
        kind, method = ("one row", "rows") if ragged else ("any number of rows", "ragged")
        raise InputError(f"array {name!r} has {kind} per document: read it with view.{method}")
    return arrays[name]


def read_array(view: View, spec: ArraySpec, keys: Sequence[int]) -> Any:
    """Read a stored array of either kind, in the order of ``keys``."""
    return view.ragged(spec.name, keys) if spec.ragged else view.rows(spec.name, keys)


def by_documents(view: View, keys: Keys) -> Iterator[list[int]]:
    """Yield rising keys of passages in lists of few documents each: a document may have 8 MB, and is read whole."""
    owners = view.document_keys(keys)
    first = np.flatnonzero(owners[1:] != owners[:-1]) + 1
    for part in np.split(keys, first[READ_TOGETHER - 1 :: READ_TOGETHER]):
        if len(part):
            yield part.tolist()
