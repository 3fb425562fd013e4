"""One change of a local index: rows in an open transaction, arrays in a segment nobody sees before the commit.

    put, delete    rows into the transaction, arrays and words into a folder segments/<name>.tmp; keys of old versions
                   into the table dead
    commit         1. small segments at the end are merged into the new one
                   2. segments/<name>.tmp → segments/<name>; nothing names it yet
                   3. COMMIT: the rows, and the name in the table segments, are there at once
                   4. commit.json notes the commit

A kill before 3 leaves the index as it was, with a folder that the next writer removes; one after it, the new state.
Merging keeps few segments. Example, with living rows of each, where a write of 40 documents takes what has at most
twice its size so far:

    segments    1,000   150   60      new 40
    60 ≤ 2 · 40              → 100
    150 ≤ 2 · 100            → 250
    1,000 > 2 · 250          stays: 1,000   250
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import apsw
import numpy as np

from palmette.arrays import Ragged, Stored
from palmette.errors import DuplicateIdError, EncodingError, InputError, StoreError
from palmette.search.plan import ArraySpec
from palmette.store.local.database import (
    DatabaseRow,
    count_places,
    keys_of,
    parsed,
    read_number,
    row_of,
    rows_among,
    storage_errors,
    values_of,
    write_meta,
)
from palmette.store.local.folder import COMMIT, Commit
from palmette.store.local.segments import Files, Segment, SegmentWriter, progress
from palmette.store.local.view import Snapshots
from palmette.store.protocols import StoredDocument, as_stored
from palmette.types import Document

MERGE_RATIO = 2  # a write merges trailing segments up to this many times what it has written so far


class LocalWriter:
    """One change: an open write transaction and the segment being built beside it."""

    def __init__(self, connection: apsw.Connection, shared: Snapshots) -> None:
        self._db, self._shared, self._folder, self._opened = connection, shared, shared.folder, shared.opened
        self._arrays = tuple(shared.arrays.values())
        self._next = read_number(connection, "next_key")
        self._segment: SegmentWriter | None = None
        self._changed = self._everything = self._failed = False
        self._pid = os.getpid()
        self.is_open = True

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A change that stops half way spoils the whole write: it can then only be dropped."""
        if os.getpid() != self._pid:
            raise StoreError("this write is open in the process that was forked: start a new one here")
        if not self.is_open or self._failed:
            raise StoreError("this write is over or has failed; start a new one with `with backend.write() as writer:`")
        self._failed = True
        with storage_errors(self._folder):
            yield
        self._failed = False

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the content digests of those ids that exist."""
        with self._step():
            return dict(rows_among(self._db, "SELECT id, digest FROM documents WHERE id IN ({})", ids))

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists."""
        # 1. check everything before anything is written
        stored = as_stored(documents)
        rows = rows_of(self._arrays, stored, arrays)
        if not rows:
            return
        with self._step():
            # 2. old versions go
            self._remove([row.id for row in rows])
            # 3. keys: a document has that of its first passage, and its other passages follow
            counts = np.array([len(document.passages) for document in stored])
            heads = self._next + np.cumsum(counts) - counts
            keys = np.arange(self._next, self._next + int(counts.sum()))
            # 4. arrays and words into the segment, documents and what filters read into the transaction
            self._segment = self._segment or self._start_segment()
            self._segment.append(keys, keys - np.repeat(heads, counts), arrays, [t for d in stored for t in d.words()])
            keyed = list(zip(heads.tolist(), rows, strict=True))
            documented = ((key, *row[:-1]) for key, row in keyed)
            self._db.executemany(
                f"INSERT INTO documents VALUES (?{', ?' * (len(DatabaseRow._fields) - 1)})", documented
            )
            described = ((name, value, key) for key, row in keyed for name, value in row.values)
            self._db.executemany("INSERT INTO metadata VALUES (?, ?, ?)", described)
            self._next += len(keys)
            self._changed = True

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents; returns the ids that were there."""
        with self._step():
            removed = self._remove(ids)
            self._changed = self._changed or bool(removed)
            return removed

    def note(self, name: str, value: str) -> None:
        """Keep a short text with the documents."""
        with self._step():
            write_meta(self._db, **{f"note {name}": value})
            self._changed = True

    def _remove(self, ids: Sequence[str]) -> list[str]:
        """Delete documents by id: their rows go, and their passages count as dead. Returns the ids that existed."""
        unique = list(dict.fromkeys(ids))
        query = "SELECT key, id, metadata, passages FROM documents WHERE id IN ({})"
        rows = list(rows_among(self._db, query, unique))
        described = ((*pair, key) for key, _, text, _ in rows for pair in values_of(parsed(text)))
        self._db.executemany("DELETE FROM metadata WHERE name = ? AND value = ? AND key = ?", described)
        self._db.executemany("DELETE FROM documents WHERE key = ?", [(key,) for key, *_ in rows])
        dead = ((key + number,) for key, *_, places in rows for number in range(count_places(places)))
        self._db.executemany("INSERT INTO dead VALUES (?)", dead)
        removed = {id for _, id, *_ in rows}
        return [id for id in unique if id in removed]

    def compact(self) -> None:
        """Rewrite all living rows into one segment when this write commits."""
        with self._step():
            self._changed = self._everything = True

    def commit(self) -> None:
        """Commit: the segment first, then the one database commit."""
        with self._step():
            self.is_open = False
            if not self._changed:
                return
            # 1. settle the segments, and count the commit
            self._opened.check()
            self._merge_segments()
            generation = read_number(self._db, "generation") + 1
            write_meta(self._db, next_key=self._next, generation=generation)
            # 2. the segment's files get their name
            segment, self._segment = self._segment, None  # may soon be named: orphaned at worst, not dropped
            if segment is not None:
                segment.publish()
            # 3. the one commit, unless another index has come to lie here
            draft = Commit.of(self._db).draft(self._folder, durable=self._shared.durable)
            self._opened.check()
            self._db.execute("COMMIT")
            # 4. the note of it
            with suppress(OSError):  # a note that lags behind is no harm
                draft.replace(self._folder / COMMIT)

    def _start_segment(self) -> SegmentWriter:
        shared = self._shared
        return SegmentWriter(self._folder, self._arrays, shared.analyser, durable=shared.durable)

    def drop(self) -> None:
        """Drop the change."""
        self.is_open = False
        if self._segment is not None and os.getpid() == self._pid:
            self._segment.drop()

    def _merge_segments(self) -> None:
        """Settle which segments there will be, and write the new one.

        Trailing segments that are small beside the new rows are merged into it, so that their number stays
        logarithmic and a row is copied O(log N) times in all. A segment without living rows goes.
        """
        # 1. what this write has put, and how much of it is alive
        own, fresh, size = self._segment, None, 0
        if own is not None:
            fresh = Segment(self._folder, own.path.name, own.count, own.finish(), self._arrays)
            size = self._alive(fresh)
        # 2. from the last segment backwards: small ones, as long as none was large, and those without living rows
        trailing, merged = True, []
        for segment in reversed(self._shared.segments(self._db)):
            live = self._alive(segment)
            trailing = trailing and live <= MERGE_RATIO * size
            if live == 0 or trailing or self._everything:
                merged.append(segment)
                size += live
        # 3. the new segment as it is, or one of all that was merged
        if fresh and own and not merged and size:
            self._register(own, fresh.files)
        else:
            self._merge([*reversed(merged), *([fresh] if fresh else [])], size)

    def _alive(self, segment: Segment) -> int:
        query = "SELECT count(*) FROM dead WHERE key BETWEEN ? AND ?"
        [(deleted,)] = self._db.execute(query, _span(segment))
        return segment.count - int(deleted)

    def _merge(self, segments: Sequence[Segment], size: int) -> None:
        """Write the living rows of segments into one new segment, which takes their place."""
        merged = self._start_segment() if size else None
        replaced, self._segment = self._segment, merged
        with progress(size, "merging segments", unit="doc") as bar:
            for segment in segments:
                if merged:
                    query = "SELECT key FROM dead WHERE key BETWEEN ? AND ?"
                    deleted = keys_of(self._db.execute(query, _span(segment)))
                    living = np.flatnonzero(np.isin(segment.keys, deleted, invert=True))
                    merged.append_segment(segment, living, bar.update)
                self._db.execute("DELETE FROM dead WHERE key BETWEEN ? AND ?", _span(segment))
                self._db.execute("DELETE FROM segments WHERE name = ?", [segment.name])
        if replaced:
            replaced.drop()
        if merged:
            self._register(merged, merged.finish())

    def _register(self, segment: SegmentWriter, files: Files) -> None:
        row = [segment.name, segment.count, json.dumps(files)]
        self._db.execute("INSERT INTO segments(name, count, files) VALUES (?, ?, ?)", row)


def rows_of(
    specs: Sequence[ArraySpec], documents: Sequence[StoredDocument], arrays: Mapping[str, Stored]
) -> list[DatabaseRow]:
    """Rows of the documents to put; raises for what cannot be stored, such as two documents of one id."""
    rows, ids = [row_of(document) for document in documents], set[str]()
    if set(arrays) != {spec.name for spec in specs}:
        expected = ", ".join(spec.name for spec in specs)
        raise InputError(f"this index stores the arrays {expected}; got {', '.join(map(str, arrays)) or 'none'}")
    owners = [stored.document for stored in documents for _ in stored.passages]
    for spec in specs:
        _check_array(spec, owners, arrays[spec.name])
    for row in rows:
        if row.id in ids:
            raise DuplicateIdError(f"id {row.id!r} was given twice; give each document its own id")
        ids.add(row.id)
    return rows


def _check_array(spec: ArraySpec, documents: Sequence[Document], array: Stored) -> None:
    """Raise unless an array has the type and shape of its spec, a row for each passage, and finite numbers."""
    if isinstance(array, Ragged) != spec.ragged:
        kind = "Ragged" if spec.ragged else "a NumPy array"
        raise InputError(f"array {spec.name!r} must be {kind}, got {type(array).__name__}")
    values = array.values if isinstance(array, Ragged) else np.asarray(array)
    shape = (len(values) if isinstance(array, Ragged) else len(documents), *spec.shape)
    wrong = values.shape != shape or values.dtype != np.dtype(spec.dtype)
    if wrong or len(array) != len(documents):
        number = f" for {len(array)} passages" if isinstance(array, Ragged) else ""
        raise InputError(
            f"array {spec.name!r} must be {spec.dtype} {shape} for {len(documents)} passages, "
            f"got {values.dtype} {values.shape}{number}"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int(np.isfinite(values.reshape(len(values), -1)).all(axis=1).argmin())
        bad = int(np.searchsorted(array.starts, bad, side="right")) - 1 if isinstance(array, Ragged) else bad
        raise EncodingError(
            f"the encoder returned NaN or infinity for document {documents[bad].id!r} "
            f"(array {spec.name!r}); nothing was written. Check the text and the encoder"
        )


def _span(segment: Segment) -> list[int]:
    return [int(segment.keys[0]), int(segment.keys[-1])]
