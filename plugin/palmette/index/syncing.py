"""The part of an index that follows named sources of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.config import check_count
from palmette.data.listing import Listing, list_source, source_name
from palmette.errors import InputError, shown
from palmette.index.sync import NOTE, SyncReport, sync_source
from palmette.model import Model
from palmette.sources.cutting import Cutter
from palmette.sources.walk import MOST_BYTES
from palmette.store.backend import Backend
from palmette.store.tenants import FilteredBackend, with_tenants
from palmette.types import Document


class Syncing:
    """Synchronizes an index with its sources."""

    model: Model
    backend: Backend
    _cutter: Cutter

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
        """Bring one named source up to date: changed documents are replaced, vanished ones are deleted.

        Documents of other sources, and documents added by :meth:`add`, are never changed. Equal passages are not
        encoded again, wherever they moved, and a renamed file costs nothing. Documents become visible in several
        transactions; a killed sync leaves no document half replaced, and the next sync continues from there.

        Args:
            data: A folder, whose files have the ids ``source/path``; a file; a loader of LangChain or a reader of
                LlamaIndex; or an iterable of documents, which keep their ids.
            source: Name of the source; by default the name of the folder or file, which must be the same path as in
                earlier syncs of that name.
            include: Patterns of files to read, as in ``.gitignore``; other files are skipped.
            exclude: Patterns of files and folders to skip.
            max_bytes: Size of the largest file that is read.
            metadata: Metadata added to all documents of the source.
            titles: Prepend the separate titles of records to their texts.
            batch_size: Documents encoded at a time.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        size, name = check_count("batch_size", batch_size), source_name(data) if source is None else source
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a source needs a name, index.sync(…, source='handbook'); got {shown(source)}")
        file_options: dict[str, Any] = {"include": include, "exclude": exclude, "max_bytes": max_bytes}
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
        listing = list_source(data, name, titles=titles, metadata=metadata, progress=progress, **file_options)
        return self.sync_listing(name, listing, batch_size=size, origin=origin, progress=progress)

    def sync_listing(self, source: str, listing: Listing, **options: Any) -> SyncReport:
        """Bring a source up to date with a listing of it; options are those of :func:`sync_source`."""
        if self.backend.tenant is not None:
            listing = self._with_tenants(listing, self.backend.tenant)
        return sync_source(self.model, self.backend, self._cutter, source, listing, **options)

    def _with_tenants(self, listing: Listing, tenant: str) -> Listing:
        """Give the documents of a listing their stored ids; those that belong to no tenant are skipped.

        If none belongs to one, that raises: it is the caller who forgot them.
        """
        stored, prefixes, skipped = dict[str, Document](), set[str](), listing.skipped
        for id, document in listing.documents.items():
            try:
                (named,) = with_tenants([document], tenant)
            except InputError as error:
                skipped = [*skipped, (id, str(error))]
                if len(skipped) - len(listing.skipped) == len(listing.documents):
                    raise
                continue
            stored[named.key] = named
            prefixes.add(named.key.removesuffix(id))
        unread = {f"{prefix}{name}" for prefix in prefixes for name in listing.unread}
        return replace(listing, documents=stored, unread=unread, skipped=skipped)
