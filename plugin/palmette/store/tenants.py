"""Walls between the documents of several tenants: what a filtered backend shows, takes in, and calls by which id.

An index that was created with ``tenant="t"`` is parted by the values of ``t``. Every document has exactly one, and its
stored id begins with it: ``ada/1`` is the document ``1`` of the tenant ``ada``. A view of one tenant shows ids without
that prefix, so that two tenants may use the same id, and neither learns of the other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any

from palmette.arrays import Stored
from palmette.errors import DuplicateIdError, InputError, shown
from palmette.store.filters import (
    And,
    Condition,
    Filter,
    FilterLike,
    Ids,
    Not,
    Or,
    Scalar,
    Scoped,
    flatten,
    matches,
    names_in,
    parse_filter,
    pinned_value,
)
from palmette.store.protocols import Backend, BackendStats, StoredDocument, View, Writer, as_stored, by_documents
from palmette.types import Document, Metadata


def prefix_of(value: Scalar) -> str:
    """Return what the stored ids of a tenant begin with.

    Raises for what a filter takes for equal to another value: 1, 1.0 and True would share their documents.
    """
    if isinstance(value, str):
        return value.replace("%", "%25").replace("/", "%2F").replace("#", "%23") + "/"
    if type(value) is not int:
        raise InputError(
            f"a tenant is named by a text or a whole number, got {shown(value)}, which filters take for equal to "
            f"another: write it as the text {str(value)!r}, in metadata and in filters"
        )
    return f"#{value}/"


def single_value(name: str, metadata: Metadata, id: str) -> Scalar | None:
    """Return the only value that a document has under a name; raises if it has several, ``None`` if it has none."""
    values = flatten(metadata).get(name, set())
    if len(values) > 1:
        raise InputError(
            f"document {shown(id)} has {len(values)} values of {name!r}: nothing was added; a document belongs to one "
            "value of what keeps documents apart, so give it one, or add it to the whole index"
        )
    return next(iter(values), None)


def with_tenants(documents: Sequence[Document], tenant: str) -> list[Document]:
    """Give documents of a parted index their stored ids; those that begin with their tenant's prefix keep them."""
    named = []
    for document in documents:
        value = single_value(tenant, document.metadata, document.key)
        if value is None:
            raise InputError(
                f"document {shown(document.key)} has no {tenant!r} in its metadata: nothing was added; this index was "
                f"created with tenant={tenant!r}, and each of its documents belongs to a tenant"
            )
        prefix = prefix_of(value)
        named.append(document if document.key.startswith(prefix) else replace(document, id=prefix + document.key))
    return named


class FilteredBackend(Backend):
    """A backend behind a filter: what does not pass is not there, and cannot be put there.

    For tenants who share an index and must not see or touch each other's documents. A filter that demands one value of
    the index's ``tenant`` shows that tenant's documents under ids of its own.
    """

    backend: Backend
    within: Filter
    prefix: str
    """What the stored ids of the only tenant begin with; empty where ids are shown as they are stored."""

    def __init__(self, backend: Backend, within: Filter) -> None:
        self.prefix, self.tenant = "", backend.tenant
        if isinstance(backend, FilteredBackend):
            self.prefix = backend.prefix
            within, backend = Scoped((backend.within, _with_stored_ids(within, self.prefix))), backend.backend
        if self.tenant is not None and (value := pinned_value(within, self.tenant)) is not None:
            self.prefix, own = prefix_of(value), Condition(self.tenant, "in", (value,))
            if not (isinstance(within, Scoped) and within.levels()[0][1] == own):  # one from a pickle begins with it
                within = Scoped((own, within))  # what else it names is looked for in the tenant's own documents
            self.tenant = None
        self.backend, self.within = backend, within
        self.engine, self.arrays, self.language = backend.engine, backend.arrays, backend.language
        self.passages = backend.passages

    @contextmanager
    def read(self, filter: FilterLike = None) -> Iterator[View]:
        """Open a view through both filters."""
        parsed = parse_filter(filter)
        inner = () if parsed is None else (_with_stored_ids(parsed, self.prefix),)
        with self.backend.read(Scoped((self.within, *inner))) as view:
            yield _TenantView(view, self.prefix) if self.prefix else view

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """Begin a change that stays within the filter."""
        with self.backend.write() as writer:
            yield _FilteredWriter(self, writer)

    def stats(self) -> BackendStats:
        """Count the documents that pass; sizes are 0, since files hold the documents of all."""
        with self.read() as view:
            documents, passages = view.count_documents(), len(view)
        stats = self.backend.stats()
        return BackendStats(documents, passages, stats.location, bytes=0, segments=0, reclaimable=0, log=0)

    def compact(self) -> None:
        """Compact the files, which all documents share: what anyone deleted; no result changes."""
        self.backend.compact()

    def verify(self) -> None:
        """Compare the documents that pass with their digests. The files, which all share, are the owner's to check."""
        with self.read() as view:
            for keys in by_documents(view, view.keys()):
                view.documents(keys)

    def close(self) -> None:
        """Do nothing: others read the whole backend, and only its owner closes it."""


class _FilteredWriter:
    """Refuses documents that the filter hides, and ids of hidden documents."""

    def __init__(self, owner: FilteredBackend, writer: Writer) -> None:
        self.owner, self.writer = owner, writer

    def _stored(self, ids: Sequence[str]) -> list[str]:
        return [self.owner.prefix + id for id in ids]

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        cut = len(self.owner.prefix)
        digests = {id[cut:]: digest for id, digest in self.writer.digests(self._stored(ids)).items()}
        for id, document in zip(digests, self.owner.get(list(digests)), strict=True):
            if document is None:
                raise DuplicateIdError(
                    f"id {id!r} is taken by a document outside this view: nothing was added; give another id"
                )
        return digests

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        within, prefix, stored_documents = self.owner.within, self.owner.prefix, as_stored(documents)
        for document in (stored_document.document for stored_document in stored_documents):
            if not matches(within, document.metadata, prefix + document.key):
                raise InputError(
                    f"document {document.key!r} does not pass this view's filter, and would be outside of what its "
                    "caller may read: nothing was added; give it metadata that passes, or add it to the whole index"
                )
            for name in dict.fromkeys(names_in(within)):
                value = single_value(name, document.metadata, document.key)
                if prefix and name == self.owner.backend.tenant and value is not None:
                    prefix_of(value)  # raises for a value that only equals the tenant's
        self.digests([stored_document.document.key for stored_document in stored_documents])
        if prefix:
            stored_documents = [
                replace(
                    stored_document,
                    document=replace(stored_document.document, id=prefix + stored_document.document.key),
                    source=stored_document.source and prefix + stored_document.source,
                )
                for stored_document in stored_documents
            ]
        self.writer.put(stored_documents, arrays)

    def delete(self, ids: Sequence[str]) -> list[str]:
        own = [document.key for document in self.owner.get(ids) if document]
        return [id[len(self.owner.prefix) :] for id in self.writer.delete(self._stored(own))]

    def note(self, name: str, value: str) -> None:
        self.writer.note(name, value)


def _with_stored_ids(node: Filter, prefix: str) -> Filter:
    """Rewrite the ids of a filter from those that a tenant's view shows to stored ones."""
    if not prefix:
        return node
    match node:
        case Ids(ids):
            return Ids(frozenset(prefix + id for id in ids))
        case Not(part):
            return Not(_with_stored_ids(part, prefix))
        case And(parts) | Or(parts):
            return type(node)(tuple(_with_stored_ids(part, prefix) for part in parts))
    return node


def _passed_on(name: str) -> Any:
    """Method of the view inside a :class:`_TenantView`: keys are the same in both."""
    return property(attrgetter(f"view.{name}"))


class _TenantView(View):
    """A view of one tenant's documents, under ids without the tenant's prefix."""

    expect, candidates, note = _passed_on("expect"), _passed_on("candidates"), _passed_on("note")
    release = _passed_on("release")
    words, word_parts, list_sizes = _passed_on("words"), _passed_on("word_parts"), _passed_on("list_sizes")
    rows, ragged, document_keys = _passed_on("rows"), _passed_on("ragged"), _passed_on("document_keys")
    keys, scope_keys, count_documents = _passed_on("keys"), _passed_on("scope_keys"), _passed_on("count_documents")

    def __init__(self, view: View, prefix: str) -> None:
        self.view, self.prefix = view, prefix

    def __len__(self) -> int:
        return len(self.view)

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        return list(map(self._shown, self.view.stored(keys)))

    def scan(self, keys: Sequence[int]) -> Iterator[tuple[int, StoredDocument, int]]:
        return ((key, self._shown(stored), others) for key, stored, others in self.view.scan(keys))

    def _shown(self, stored: StoredDocument) -> StoredDocument:
        cut = len(self.prefix)
        document = replace(stored.document, id=stored.document.key[cut:])
        return replace(stored, document=document, source=stored.source[cut:])

    def ids_of_source(self, source: str) -> dict[str, str]:
        cut = len(self.prefix)
        return {id[cut:]: digest for id, digest in self.view.ids_of_source(self.prefix + source).items()}

    def ids(self, keys: Sequence[int]) -> list[str]:
        return [id[len(self.prefix) :] for id in self.view.ids(keys)]

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        keys = self.view.keys_of([self.prefix + id for id in ids])
        return {id[len(self.prefix) :]: key for id, key in keys.items()}
