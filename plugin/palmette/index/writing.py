"""The writing half of an index: documents in and out, one by one or a source at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.data.listing import Listing, list_source, source_name
from palmette.errors import InputError, shown
from palmette.index.folder import check_count, check_documents, check_ids
from palmette.index.results import FilterLike
from palmette.index.sync import NOTE, SyncReport, sync_source
from palmette.index.write import Changes, apply_changes
from palmette.model import Model
from palmette.sources.cutting import Cutter
from palmette.sources.walk import MOST_BYTES
from palmette.store.backend import Backend
from palmette.store.filters import parse_filter
from palmette.store.tenants import FilteredBackend, with_tenants
from palmette.telemetry import writing
from palmette.types import Document

Documents = Iterable[Any] | str | Path
"""Documents of any kind :func:`palmette.data.to_document` knows, or a path."""


class Writing:
    """The part of an index that takes documents in, replaces and deletes them."""

    model: Model
    backend: Backend
    _cutter: Cutter

    if TYPE_CHECKING:

        def documents(self, filter: FilterLike = None) -> Iterator[Document]:
            """Iterate over all documents that pass a filter."""

    def add(
        self, documents: Documents, *, embeddings: Any = None, batch_size: int = 256, progress: bool | None = None
    ) -> list[str]:
        """Add documents, all or none; one that is there already changes nothing. Returns the ids.

        An id that holds another text raises DuplicateIdError: use :meth:`upsert` to replace it. ``embeddings``: the
        vectors [N, d] by the model's encoder, an array or a tensor, for methods that need no more (layers).
        """
        given = self._named(documents)
        how = embeddings, batch_size, progress
        apply_changes(self.model, self.backend, given, *how, replace=False, cutter=self._cutter)
        return [document.key for document in given]

    def upsert(
        self,
        documents: Documents,
        *,
        delete: Iterable[str] = (),
        embeddings: Any = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> Changes:
        """Add documents, replacing those whose id exists with other content; unchanged ones are not encoded again.

        Documents to ``delete``, by id, go in the same transaction; ``embeddings`` as for :meth:`add`.
        """
        given, gone = self._named(documents), check_ids(delete)
        how = embeddings, batch_size, progress
        return apply_changes(self.model, self.backend, given, *how, replace=True, cutter=self._cutter, delete=gone)

    def sync(
        self,
        data: Any,
        source: str | None = None,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        max_bytes: int = MOST_BYTES,
        metadata: Mapping[str, Any] | None = None,
        titles: bool = True,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> SyncReport:
        """Bring one named source up to date: changed documents are replaced whole, vanished ones are deleted.

        Documents of other sources, and those that came by :meth:`add`, are never touched. Passages that are the same
        are not encoded again, wherever they moved; a file that was renamed costs nothing. Documents become visible
        in transactions: one that is killed leaves no document half replaced, and the next sync goes on from there.

        Args:
            data: A folder, whose files have the ids ``source/path``; a file; a loader of LangChain or a reader of
                LlamaIndex; or an iterable of documents, which keep their ids.
            source: Name of the source; by default that of the folder or file, which then must be the one that has
                had this name here before.
            include: Patterns of files to read, as in ``.gitignore``; others are left out.
            exclude: Patterns of files and folders to leave out.
            max_bytes: Size of the largest file that is read.
            metadata: Metadata that all documents of the source get.
            titles: Put titles that records give apart from the text before it.
            batch_size: Documents encoded at a time.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        size, name = check_count("batch_size", batch_size), source_name(data) if source is None else source
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a source needs a name, index.sync(…, source='handbook'); got {shown(source)}")
        how: dict[str, Any] = {"include": include, "exclude": exclude, "max_bytes": max_bytes, "titles": titles}
        origin = None
        if isinstance(data, str | Path) and not isinstance(self.backend, FilteredBackend):
            origin = str(Path(data).expanduser().absolute())
            with self.backend.read() as view:
                known = view.note(f"{NOTE}{name}")
            if source is None and known not in (None, origin):
                raise InputError(
                    f"the source {shown(name)} of this index is {known}, not {origin}: give this one a name of its "
                    f"own, source='…' or --source, or source={shown(name)} if it was moved"
                )
        listing = list_source(data, name, metadata=metadata, progress=progress, **how)
        return self.sync_listing(name, listing, batch_size=size, origin=origin, progress=progress)

    def sync_listing(self, source: str, listing: Listing, **how: Any) -> SyncReport:
        """Bring a source up to date with what was listed of it."""
        if self.backend.tenant is not None:
            given = list(listing.documents.values())
            named = {document.key: document for document in with_tenants(given, self.backend.tenant)}
            tenants = {id.removesuffix(one.key) for id, one in zip(named, given, strict=True)}
            unread = {f"{tenant}{name}" for tenant in tenants for name in listing.unread}
            listing = replace(listing, documents=named, unread=unread)
        return sync_source(self.model, self.backend, self._cutter, source, listing, **how)

    def _named(self, documents: Documents) -> list[Document]:
        """Read documents, and give them the ids that they have in an index of several tenants."""
        given, tenant = check_documents(documents), self.backend.tenant
        return given if tenant is None else with_tenants(given, tenant)

    def delete(self, ids: Iterable[str] | None = None, *, filter: FilterLike = None) -> list[str]:
        """Delete documents by id or by filter; ids that are not there are passed over. Returns those deleted."""
        if (ids is None) == (filter is None):
            raise InputError("delete takes ids or a filter: give one of the two")
        if ids is None and parse_filter(filter) is None:
            raise InputError("an empty filter would delete every document: name them by id if that is meant")
        with writing(lambda: str(self.backend.stats().location)) as tell, self.backend.write() as writer:
            deleted = writer.delete([d.key for d in self.documents(filter)] if ids is None else check_ids(ids))
            tell({"deleted": len(deleted)})
        return deleted
