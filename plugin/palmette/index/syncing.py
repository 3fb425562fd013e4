"""The part of an index that keeps named sources in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.data.listing import Listing, list_source, source_name
from palmette.errors import InputError, shown
from palmette.index.folder import check_count
from palmette.index.sync import NOTE, SyncReport, sync_source
from palmette.model import Model
from palmette.sources.cutting import Cutter
from palmette.sources.walk import MOST_BYTES
from palmette.store.backend import Backend
from palmette.store.tenants import FilteredBackend, with_tenants


class Syncing:
    """Sources of documents that an index follows."""

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
