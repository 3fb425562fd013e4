"""Bring one source of an index up to date: find new, changed and vanished documents, and write the change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from palmette.data.listing import Listing
from palmette.errors import InputError, LockedError, shown
from palmette.index.encoding import PassageArrays, existing_documents
from palmette.index.languages import warn_of_language
from palmette.index.write import ENCODED_AT_ONCE, note_score_scales
from palmette.machine.progress import progress_bar
from palmette.machine.telemetry import writing
from palmette.methods.base import Model
from palmette.ranking.arrays import stores_sentences
from palmette.sources.cutting import Cutter
from palmette.store.checks import check_storable
from palmette.store.protocols import Backend, StoredDocument, View
from palmette.types import Document

NOTE = "source "
"""Prefix of the names of notes that hold the path of a source."""
DOCUMENTS_PER_COMMIT = 1024
"""Number of documents that become visible together."""


@dataclass(frozen=True)
class SyncReport:
    """Outcome of a sync, by document id."""

    source: str
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Paths, or ids, of documents that were not read, and the reason."""
    encoded: int = 0
    """Number of passages that were encoded."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        counts = {name: len(getattr(self, name)) for name in ("added", "changed", "removed", "skipped")}
        counts["unchanged"] = self.unchanged
        summary = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        return f"{self.source}: {summary or 'no documents'}; {self.encoded:,} passages encoded"


def source_notes(view: View, documents: Iterable[StoredDocument]) -> dict[str, str]:
    """Return the noted paths of the sources of some documents, by the names of the notes."""
    names = {f"{NOTE}{stored.source}" for stored in documents if stored.source}
    notes = {name: view.note(name) for name in sorted(names)}
    return {name: path for name, path in notes.items() if path is not None}


def _storable(listing: Listing) -> tuple[Listing, dict[str, str]]:
    """Skip the documents that no index stores, whose former versions stay; returns the digests of the others, by id."""
    digests, refused = dict[str, str](), dict[str, str]()
    for id, document in listing.documents.items():
        try:
            digests[id] = check_storable(document)
        except InputError as error:
            refused[id] = str(error)
    if not refused:
        return listing, digests
    documents = {id: document for id, document in listing.documents.items() if id in digests}
    skipped, unread = [*refused.items(), *listing.skipped], {*refused, *listing.unread}
    return replace(listing, documents=documents, skipped=skipped, unread=unread), digests


def plan_sync(
    view: View, source: str, listing: Listing, digests: Mapping[str, str]
) -> tuple[list[Document], SyncReport]:
    """Compare the current documents of a source with those in the index; documents of other sources are skipped.

    Returns the new and changed documents, and the report of a sync that writes all of them.
    """
    indexed = view.ids_of_source(source)  # id → digest
    not_ours = [id for id in listing.documents if id not in indexed]
    others = {id for id, _, _ in existing_documents(view, not_ours)}
    reason = "an index has a document of this id that was added by itself, or by another source"
    skipped = [*listing.skipped, *((id, reason) for id in not_ours if id in others)]
    current = {id: document for id, document in listing.documents.items() if id not in others}
    fresh = [document for id, document in current.items() if indexed.get(id) != digests[id]]
    return fresh, SyncReport(
        source,
        added=[document.key for document in fresh if document.key not in indexed],
        changed=[document.key for document in fresh if document.key in indexed],
        removed=[id for id in indexed if id not in current and not listing.keeps(id)],
        unchanged=len(current) - len(fresh),
        skipped=skipped,
    )


def sync_source(
    model: Model,
    backend: Backend,
    cutter: Cutter,
    source: str,
    listing: Listing,
    *,
    batch_size: int = ENCODED_AT_ONCE,
    per_commit: int | None = None,
    origin: str | None = None,
    progress: bool | None = None,
    on_commit: Callable[[int, int], bool] = lambda done, total: True,
) -> SyncReport:
    """Bring a source up to date, in several transactions.

    A document is replaced within one transaction; vanished documents are deleted in the last one.

    Args:
        model: The index's model.
        backend: Storage of the index.
        cutter: Cuts documents into passages.
        source: Name of the source.
        listing: Current documents of the source.
        batch_size: Documents encoded at a time.
        per_commit: Documents per transaction; ``DOCUMENTS_PER_COMMIT`` by default.
        origin: Path of the source, noted in the index.
        progress: A progress bar; ``None`` shows it on a terminal.
        on_commit: A function ``(done, total) -> go on?``, called after each transaction.
    """
    size = per_commit or DOCUMENTS_PER_COMMIT
    listing, digests = _storable(listing)
    with writing(lambda: str(backend.stats().location)) as record, backend.read() as view:
        (fresh, planned), is_new = plan_sync(view, source, listing, digests), not len(view)
        arrays = PassageArrays(model, view, stores_sentences(backend), cutter, source)
        arrays.look_up({document.key: document for document in fresh}, planned.removed)
        if is_new:  # before the long work
            warn_of_language(model, backend, fresh)
        done, total = 0, len(fresh)
        notes = {f"{NOTE}{source}": origin} if origin is not None else {}
        notes = {name: path for name, path in notes.items() if view.note(name) != path}
        view.release()  # neither encoding nor the commits keep the storage's log from being cut
        with progress_bar(progress, total=total, desc=f"Indexing {source}", unit="doc", delay=2) as bar:
            for start in range(0, max(1, total), size):
                documents = fresh[start : start + size]
                for first in range(0, len(documents), batch_size):
                    batch = documents[first : first + batch_size]
                    arrays.prepare(batch)
                    bar.update(len(batch))
                done += len(documents)
                gone = planned.removed if start + size >= total else []
                if documents or gone or notes:
                    _commit(backend, arrays, documents, gone, notes)
                elif not total:
                    break
                if not on_commit(done, total):
                    break
        report = replace(planned, encoded=arrays.encoded)
        counts = {"added": len(report.added), "updated": len(report.changed)}
        record({**counts, "deleted": len(report.removed), "unchanged": report.unchanged})
    if report.added or report.changed or report.removed:
        note_score_scales(model, backend)
    return report


def _commit(
    backend: Backend,
    arrays: PassageArrays,
    documents: Sequence[Document],
    gone: Sequence[str],
    notes: Mapping[str, str],
) -> None:
    """Write prepared documents, deletions and notes in one transaction."""
    with backend.write() as writer:
        for id, digest in writer.digests([*(document.key for document in documents), *gone]).items():
            if digest != arrays.digests.get(id):
                raise LockedError(f"document {shown(id)} was changed by another writer meanwhile: sync again")
        writer.delete(gone)
        for name, value in notes.items():
            writer.note(name, value)
        if documents:
            writer.put(*arrays.arrays_of(documents))
    arrays.forget()
