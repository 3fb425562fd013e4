"""One source of an index brought up to date: what is new, changed, moved or gone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from palmette.data.listing import Listing
from palmette.errors import LockedError, shown
from palmette.index.encoding import PassageArrays
from palmette.index.folder import unique
from palmette.index.write import note_units
from palmette.model import Model
from palmette.progress import progress_bar
from palmette.ranking.arrays import stores_sentences
from palmette.search.plan import View
from palmette.sources.cutting import Cutter
from palmette.store.backend import PAGE, Backend
from palmette.telemetry import writing
from palmette.types import Document

NOTE = "source "
"""Beginning of the names of notes that say which path a source is."""
AT_ONCE = 1024
"""Documents that become visible together."""


@dataclass(frozen=True)
class SyncReport:
    """What a source's documents became; ids, but for paths that were skipped."""

    source: str
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    """Former and new id of documents whose text is the same under another name."""
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """What was not read, and why."""
    encoded: int = 0
    """Passages that were encoded."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        counts = {name: len(getattr(self, name)) for name in ("added", "changed", "moved", "removed", "skipped")}
        told = [f"{count:,} {name}" for name, count in {**counts, "unchanged": self.unchanged}.items() if count]
        return f"{self.source}: {', '.join(told) or 'no documents'}; {self.encoded:,} passages encoded"


@dataclass(frozen=True)
class Plan:
    """What is to be done to bring a source up to date."""

    fresh: list[Document]
    """Documents to be put in, new ones and changed ones."""
    changed: list[str]
    moved: dict[str, str]
    """New id → the former one, of documents that are the same under another name."""
    removed: list[str]
    unchanged: int
    skipped: list[tuple[str, str]]


def plan_sync(view: View, source: str, listing: Listing) -> Plan:
    """Compare what a source holds with what an index has of it; documents of others are never touched."""
    own = view.ids_of_source(source)
    others = _held(view, [id for id in listing.documents if id not in own])
    reason = "an index has a document of this id that was added by itself, or by another source"
    skipped = [*listing.skipped, *((id, reason) for id in others)]
    given = {id: document for id, document in listing.documents.items() if id not in others}
    fresh = [document for id, document in given.items() if own.get(id) != document.digest]
    gone = [id for id in own if id not in given and not listing.keeps(id)]
    former = {_text_digest(document): id for id, document in _documents(view, gone)} if fresh else {}
    moved = dict[str, str]()
    for document in fresh:
        if document.key not in own and (id := former.pop(_text_digest(document), None)) is not None:
            moved[document.key] = id
    removed = [id for id in gone if id not in set(moved.values())]
    changed = [document.key for document in fresh if document.key in own]
    return Plan(fresh, changed, moved, removed, len(given) - len(fresh), skipped)


def _text_digest(document: Document) -> str:
    return hashlib.sha256(document.content.encode("utf-8", "surrogatepass")).hexdigest()


def _held(view: View, ids: Sequence[str]) -> set[str]:
    return {id for start in range(0, len(ids), PAGE) for id in view.keys_of(ids[start : start + PAGE])}


def _documents(view: View, ids: Sequence[str]) -> list[tuple[str, Document]]:
    found = []
    for start in range(0, len(ids), PAGE):
        keys = view.keys_of(ids[start : start + PAGE])
        stored = view.stored([some[0] for some in keys.values()])
        found += [(id, one.document) for id, one in zip(keys, stored, strict=True)]
    return found


def sync_source(
    model: Model,
    backend: Backend,
    cutter: Cutter,
    source: str,
    listing: Listing,
    *,
    batch_size: int,
    at_once: int | None = None,
    origin: str | None = None,
    progress: bool | None = None,
    tell: Callable[[int, int], bool] = lambda done, total: True,
) -> SyncReport:
    """Bring a source up to date, in transactions of some documents each.

    A document is replaced whole, within one transaction; a document that moved leaves its former name in the same one,
    and those that vanished go in the last. ``tell`` hears after each how many are done, and returns whether to go on.
    ``origin`` is noted as the path of the source.
    """
    size, note = at_once or AT_ONCE, f"{NOTE}{source}"
    unique(list(listing.documents.values()))
    with writing(lambda: str(backend.stats().location)) as counted, backend.read() as view:
        plan = plan_sync(view, source, listing)
        arrays = PassageArrays(model, view, stores_sentences(backend), cutter, source)
        arrays.look_up({one.key: one for one in plan.fresh}, [*plan.moved.values(), *plan.removed])
        done, total = 0, len(plan.fresh)
        noting = origin is not None and view.note(note) != origin
        with progress_bar(progress, total=total, desc=f"Indexing {source}", unit="doc", delay=2) as bar:
            for start in range(0, max(1, total), size):
                some = plan.fresh[start : start + size]
                last = start + size >= total
                gone = [plan.moved[one.key] for one in some if one.key in plan.moved] + (plan.removed if last else [])
                if not some and not gone and not noting:
                    break
                for first in range(0, len(some), batch_size):
                    arrays.prepare(some[first : first + batch_size])
                    bar.update(len(some[first : first + batch_size]))
                with backend.write() as writer:
                    _check_owned(writer.digests([one.key for one in some]), arrays.held)
                    writer.delete(gone)
                    if origin is not None and noting:
                        writer.note(note, origin)
                    if some:
                        writer.put(*arrays.of(some))
                arrays.forget()
                done += len(some)
                if not tell(done, total):
                    break
        added = [one.key for one in plan.fresh if one.key not in plan.moved and one.key not in set(plan.changed)]
        moved = [(former, id) for id, former in plan.moved.items()]
        report = SyncReport(
            source, added, plan.changed, moved, plan.removed, plan.unchanged, plan.skipped, arrays.encoded
        )
        counts = {"added": len(added), "updated": len(plan.changed), "moved": len(moved)}
        counted({**counts, "deleted": len(plan.removed), "unchanged": plan.unchanged})
    if plan.fresh or plan.removed:
        note_units(model, backend)
    return report


def _check_owned(held: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raise where another writer has put a document under one of the ids meanwhile."""
    if others := [id for id in held if held[id] != known.get(id)]:
        raise LockedError(f"document {shown(others[0])} was changed by another writer meanwhile: sync again")
