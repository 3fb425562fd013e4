"""Finds what is intact in a damaged index: documents by digests, segments by those of their files. It only reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from palmette.arrays import Stored, take_documents
from palmette.errors import CorruptIndexError, PalmetteError
from palmette.machine.folders import draft_beside
from palmette.search.plan import ArraySpec
from palmette.store.local.database import (
    DATABASE,
    DOCUMENT_COLUMNS,
    bounded,
    check_stored,
    connect,
    keys_of,
    storage_errors,
    stored_of,
)
from palmette.store.local.folder import SEGMENTS, Manifest, check_own
from palmette.store.local.segments import KEYS, NUMBERS, Segment
from palmette.store.protocols import StoredDocument

_BATCH = 256
_GONE = 64  # segments without files that are named
_STEPS = 16  # of queries for each byte of the database
_BAD = (apsw.Error, UnicodeDecodeError, CorruptIndexError)


@dataclass(frozen=True)
class Repair:
    """Outcome of a repair."""

    documents: int
    """Documents in the new index."""
    encoded: int
    """Documents among them whose arrays were damaged, and encoded again."""
    lost: list[str]
    """Documents that could not be read: their ids, or their keys where even the id is gone."""
    damaged: list[str]
    """Sentences about the files that are damaged."""


@dataclass
class Salvage:
    """Whole documents by key, whole segments, and what is not whole."""

    manifest: Manifest | None = None
    rows: dict[int, StoredDocument] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """What writers noted of all documents, by name."""
    lost: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def batches(
        self, arrays: Sequence[ArraySpec]
    ) -> Iterator[tuple[list[StoredDocument], Mapping[str, Stored] | None]]:
        """Yield the documents by age, with their arrays where these are whole."""
        homes = {key: segment for segment in self.segments for key in segment.keys.tolist()}

        def home(key: int) -> Segment | None:
            """Segment that holds all passages of a document."""
            places = range(key, key + len(self.rows[key].passages))
            segment = homes.get(key)
            numbers = [] if segment is None else segment.numbers[segment.rows(np.array(places))].tolist()
            return segment if numbers == list(range(len(places))) else None

        for segment, group in groupby(sorted(self.rows), home):
            keys = list(group)
            for start in range(0, len(keys), _BATCH):
                batch, arrays_of_batch = keys[start : start + _BATCH], dict[str, Stored]()
                if segment is not None:
                    passages = [key + number for key in batch for number in range(len(self.rows[key].passages))]
                    rows = segment.rows(np.array(passages))
                    arrays_of_batch = {spec.name: take_documents(segment.arrays[spec.name], rows) for spec in arrays}
                yield [self.rows[key] for key in batch], arrays_of_batch or None


@contextmanager
def salvage(folder: Path, beside: Path) -> Iterator[Salvage]:
    """Read all that is whole in an index folder, through a copy of its database next to ``beside``."""
    result = Salvage()
    with storage_errors(folder), draft_beside(beside) as scratch:
        for end in ("", "-wal"):
            path = folder / f"{DATABASE}{end}"
            check_own(path)
            if path.is_file():
                shutil.copyfile(path, scratch / path.name)
        try:
            result.manifest = Manifest.read(folder)
        except PalmetteError as error:
            result.damaged.append(str(error))
        with _attempt(result, folder / DATABASE), closing(connect(scratch / DATABASE, "mode=rw")) as connection:
            # a page with a flipped bit holds whole documents as well: their digests tell
            connection.execute("PRAGMA checksum_verification=OFF; PRAGMA query_only=ON").fetchall()
            with bounded(connection, scratch / DATABASE, _STEPS):
                check_stored(connection, folder / DATABASE)
                _read_documents(connection, result, _read_segments(connection, folder, result))
                with suppress(*_BAD):  # notes, as far as they can be read
                    for name, value in connection.execute("SELECT name, value FROM meta WHERE name GLOB 'note *'"):
                        if isinstance(name, str) and isinstance(value, str):
                            result.notes[name.removeprefix("note ")] = value
        yield result


@contextmanager
def _attempt(salvage: Salvage, path: Path) -> Iterator[None]:
    try:
        yield
    except _BAD as error:
        salvage.damaged.append(f"{path} is damaged ({error})")


def _read_segments(connection: apsw.Connection, folder: Path, salvage: Salvage) -> set[int]:
    """Open the segments whose files are whole; returns the keys that there should be, as far as they are known."""
    expected: set[int] = set()
    rows: list[tuple[Any, ...]] = []
    with _attempt(salvage, folder / DATABASE):
        known = sum(1 for _ in (folder / SEGMENTS).iterdir()) if (folder / SEGMENTS).is_dir() else 0
        query = "SELECT name, count, files FROM segments ORDER BY position LIMIT ?"  # pages in a knot have more rows
        rows = connection.execute(query, [known + _GONE]).fetchall()
    for name, count, files in rows:
        try:
            listed = json.loads(files)
            keys = Segment(folder, name, count, listed, ())
            keys.verify(int, [f"{KEYS}.npy", f"{NUMBERS}.npy"])  # of a damaged file nothing can be expected
            expected.update(keys.keys[keys.numbers == 0].tolist())
            segment = Segment(folder, name, count, listed, salvage.manifest.arrays if salvage.manifest else ())
            segment.verify(int)
            salvage.segments.append(segment)
        except (PalmetteError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            salvage.damaged.append(str(error))
    with _attempt(salvage, folder / DATABASE):
        expected.difference_update(keys_of(connection.execute("SELECT key FROM dead")).tolist())
    return expected


def _read_documents(connection: apsw.Connection, salvage: Salvage, expected: set[int]) -> None:
    """Read every document that agrees with its digest."""
    names, keys = dict[int, str](), set(expected)
    for query in ("SELECT key, id FROM documents ORDER BY id", "SELECT key, id FROM documents ORDER BY key"):
        with suppress(*_BAD):  # the index of ids may be whole where the table is not
            for key, id in connection.execute(query):
                keys.add(key)
                names.setdefault(key, id)
    ids: set[str] = set()
    for key, *row in _rows(connection, sorted(keys)):
        with suppress(CorruptIndexError, TypeError):
            stored = stored_of(*row)
            if stored.document.key not in ids:
                ids.add(stored.document.key)
                salvage.rows[key] = stored
    lost = sorted(keys - salvage.rows.keys())
    salvage.lost += [str(names.get(key, f"document number {key}")) for key in lost if names.get(key) not in ids]


def _rows(connection: apsw.Connection, keys: list[int]) -> Iterator[tuple[Any, ...]]:
    """Rows of some keys, each by itself where several cannot be read at once."""
    query = f"SELECT key, {DOCUMENT_COLUMNS} FROM documents WHERE key IN (SELECT value FROM json_each(?))"
    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        try:
            yield from connection.execute(query, [json.dumps(batch)]).fetchall()
        except _BAD:
            for key in batch:
                with suppress(*_BAD):
                    yield from connection.execute(query, [f"[{key}]"]).fetchall()
