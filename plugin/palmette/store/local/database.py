"""The SQLite side of a local index: which one is open, schema, checked pages, document rows, what failures mean.

SQLite holds everything but the arrays and is the one commit point: a segment of arrays exists for readers
when, and only when, a committed row names it. WAL gives every reader a snapshot and never makes it wait.
Every page carries a checksum that is compared when the page is read (SQLite's ``cksumvfs``, which apsw brings).
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import apsw.sqlite_extra
import numpy as np

from palmette.arrays import Keys
from palmette.config import parse_json
from palmette.errors import REPAIR, CorruptIndexError, LockedError, ReadOnlyError, StorageFullError, StoreError, shown
from palmette.store.checks import check_characters
from palmette.store.filters import Scalar, flatten
from palmette.store.protocols import StoredDocument
from palmette.types import Document, Metadata, Passage, content_digest

DATABASE = "index.sqlite3"

TABLES = {
    "meta": "(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "documents": "(key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT NOT NULL,"
    " fields TEXT NOT NULL, payload TEXT NOT NULL, digest TEXT NOT NULL, passages TEXT NOT NULL, source TEXT NOT NULL)",
    "metadata": "(name TEXT NOT NULL, value NOT NULL, key INTEGER NOT NULL, PRIMARY KEY(name, value, key))"
    " WITHOUT ROWID",
    "segments": "(position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, count INTEGER NOT NULL,"
    " files TEXT NOT NULL)",
    "dead": "(key INTEGER PRIMARY KEY)",
}
"""The whole schema: a database that holds anything else, or less, is refused before it is queried.

The text is part of the format, white space included: SQLite keeps it, and it is compared.

``dead`` lists the keys of deleted documents whose arrays still lie in a segment.
"""
SCHEMA = "".join(f"CREATE TABLE {name}{definition};" for name, definition in TABLES.items())
SCHEMA += "CREATE INDEX by_source ON documents(source) WHERE source <> '';"
DOCUMENT_COLUMNS = "id, text, metadata, fields, payload, digest, passages, source"
MOST_KEY = 2**53
"""Largest key of a document, and number of a commit."""
KEYS_PER_STATEMENT = 500  # parameters of one statement
LONG_LOG = 6 << 20
"""Bytes of the log from which it is emptied; SQLite begins it anew from 4 MB on, where no reader is in the way."""

no_fork = threading.RLock()
"""Held by whoever uses SQLite outside a pool, or forks."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
_READ_ONLY = {apsw.SQLITE_READONLY, apsw.SQLITE_CANTOPEN, apsw.SQLITE_PERM}
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
# SQLite reports EFBIG and EDQUOT as plain write errors
_NO_ROOM = {apsw.SQLITE_FULL, apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_TRUNCATE}
DAMAGED = {apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_SHORT_READ}
_CHECKSUM_BYTES = 8  # at the end of each page
_VFS = "cksmvfs"
_READ_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
_STEPS_PER_INTERRUPT_CHECK = 5_000_000
"""Steps of a query (a second, about) after which an interrupt is looked for."""
_STEPS_PER_COUNT = 10_000
"""Steps that are counted at once while a database is opened."""
_FREE_STEPS = 1_000_000
"""Steps that opening a database of any size may take."""
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class OpenedFolder:
    """An index's folder as it was opened, and whether its path still leads there.

    Another index may come to lie at the path: restored after a deletion, moved there, or behind a link that was
    switched. Device and inode of the folder and of its database tell them apart; the folder is kept open, so that its
    inode is given to no other meanwhile.
    """

    outlasts = False
    """Whether reading goes on, by what is open, while nothing lies at the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = str(path), str(path / DATABASE)
        self._pin = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if hasattr(os, "O_DIRECTORY") else None
        self._identity = self._look()

    @property
    def database(self) -> tuple[int, int]:
        """Device and inode of the database."""
        return self._identity[1]

    def _look(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return device and inode of what the path leads to now: the folder, and its database."""
        folder, database = map(os.stat, self._names)
        return (folder.st_dev, folder.st_ino), (database.st_dev, database.st_ino)

    def is_there(self) -> bool:
        """Return whether the path leads to the folder that was opened."""
        try:
            return self._look() == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def check(self, *, reading: bool = False) -> bool:
        """Return True if the path leads to the folder, and False where reading outlasts it; else raise StoreError."""
        if self.is_there():
            return True
        if (self.path / DATABASE).exists():
            raise StoreError(f"{self.path} holds another index than the one that was opened: open it again")
        if reading and self.outlasts:
            return False
        raise StoreError(
            f"the index {self.path} is no longer there: it was moved or deleted; open it where it is now, or restore a "
            "backup and open it again"
        )

    def close(self) -> None:
        """Let go of the folder."""
        pin, self._pin = self._pin, None
        if pin is not None:
            os.close(pin)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise what a failing disk or database means for the user, as palmette's own errors."""
    try:
        yield
    except (OSError, apsw.Error, UnicodeDecodeError) as error:
        raise _explain(error, path) from error


def _explain(error: OSError | apsw.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """Turn an error of the system or of SQLite into a StoreError that names cause and fix."""
    number, code = getattr(error, "errno", None), getattr(error, "extendedresult", 0)
    file = getattr(error, "filename", None)
    why = f"{getattr(error, 'strerror', error)}" + (f": {file}" if file else "")
    if number in _FULL or code in _NO_ROOM:
        return StorageFullError(f"no room to write {path} ({why}); the index is as it was. Free some space and retry")
    if number in _DENIED or code & 0xFF in _READ_ONLY:
        return ReadOnlyError(
            f"{path} cannot be written, or even read ({why}); change its permissions, or copy it where it can be"
        )
    if number == errno.ENOENT:
        return CorruptIndexError(f"{file} is missing from the index {path}; {REPAIR}")
    if number in (errno.EEXIST, errno.ENOTEMPTY):
        return StoreError(f"{path} was made by another process meanwhile ({why}): open it, or choose another folder")
    if code & 0xFF in (apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED):
        return LockedError(f"{path}: its database is busy ({why}); retry, or look for a program that holds {DATABASE}")
    if code in DAMAGED or code & 0xFF in DAMAGED or isinstance(error, UnicodeDecodeError):
        return CorruptIndexError(f"{path / DATABASE} is damaged ({why}); {REPAIR}")
    return StoreError(f"{path if number else path / DATABASE}: {error}")


def read_meta(connection: apsw.Connection, name: str) -> str | int:
    """Read a value of the meta table."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", [name]).fetchone()
    if row is None:
        raise damaged_database(connection.filename, f"its table meta has no {name!r}")
    if not isinstance(row[0], str | int):
        raise damaged_database(connection.filename, f"{name!r} of its table meta is {shown(row[0])}")
    return row[0]


def read_number(connection: apsw.Connection, name: str) -> int:
    """Read a number of the meta table that counts commits or keys."""
    value = read_meta(connection, name)
    if isinstance(value, int) and 0 <= value <= MOST_KEY:
        return value
    raise damaged_database(connection.filename, f"{name!r} of its table meta is {shown(value)}, not a count")


def write_meta(connection: apsw.Connection, **values: str | int) -> None:
    """Set values of the meta table."""
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def rows_among(connection: apsw.Connection, query: str, values: Sequence[Scalar]) -> Iterator[tuple[Any, ...]]:
    """Run ``query`` with the values in place of its ``{}``, some hundreds at a time.

    Half surrogate pairs are no text, so nothing stored equals a value that holds one.
    """
    values = [value for value in values if not isinstance(value, str) or _SURROGATE.search(value) is None]
    for start in range(0, len(values), KEYS_PER_STATEMENT):
        chunk = values[start : start + KEYS_PER_STATEMENT]
        yield from connection.execute(query.format(", ".join("?" * len(chunk))), chunk)


class DatabaseRow(NamedTuple):
    """A document as it is stored."""

    id: str
    text: str
    metadata: str
    fields: str
    payload: str
    digest: str
    passages: str
    """Places of its passages, and questions about them; empty for one passage under no heading that has none."""
    source: str
    values: list[tuple[str, Scalar]]


def row_of(stored_document: StoredDocument) -> DatabaseRow:
    """Convert a document into a row; raises for what cannot be stored."""
    document = stored_document.document
    digest = document.digest  # raises for what is not JSON
    stored = {"id": document.key, "text": document.text, "source": stored_document.source}
    stored["passages"] = write_places(stored_document)
    for name in ("metadata", "fields", "payload"):
        stored[name] = _to_json(dict(getattr(document, name)))
    check_characters(document.key, stored)
    return DatabaseRow(**stored, digest=digest, values=values_of(document.metadata))


def values_of(metadata: Metadata) -> list[tuple[str, Scalar]]:
    """List the (name, value) pairs by which a document can be filtered."""
    pairs = [(name, value) for name, values in flatten(metadata).items() for value in values]
    return [(name, int(value) if isinstance(value, bool) else value) for name, value in pairs]


def keys_of(rows: Iterable[tuple[int]]) -> Keys:
    """Collect a query's only column."""
    try:
        return np.fromiter((key for (key,) in rows), np.int64)
    except (TypeError, ValueError, OverflowError) as error:  # NULL, text or bytes
        raise damaged_database(DATABASE, f"a key is no whole number: {error}") from error


def parsed(text: object) -> Any:
    """Parse an object of JSON in the database; what is none was not written so."""
    try:
        if not isinstance(text, str):
            raise ValueError(f"{shown(text)} is no text")
        value = parse_json(text)
        if not isinstance(value, dict):
            raise ValueError(f"{shown(text)} is no object")
        return value
    except ValueError as error:
        raise damaged_database(DATABASE, str(error)) from error


def write_places(stored: StoredDocument) -> str:
    """Write the places of a document's passages as JSON; nothing for one passage under no heading without questions."""
    passages, questions = stored.passages, stored.questions or ("",) * len(stored.passages)
    if len(passages) == 1 and not passages[0].headings and not questions[0]:
        return ""
    places = [
        [one.start, one.end, one.first_line, one.last_line, list(one.headings), *([asked] if asked else [])]
        for one, asked in zip(passages, questions, strict=True)
    ]
    return json.dumps(places, ensure_ascii=False, separators=(",", ":"))


def parse_passages(text: str, document: Document) -> StoredDocument:
    """Read the places of a document's passages; raises ValueError where they are none."""
    if not text:
        return StoredDocument.whole(document)
    content, rows, places, questions = document.content, parse_json(text), list[Passage](), list[str]()
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"its passages are {shown(text)}")
    for number, row in enumerate(rows):
        match row:
            case [int(start), int(end), int(first), int(last), list(headings), *asked] if (
                0 <= start < end <= len(content) and len(asked) <= 1
            ):
                if all(isinstance(name, str) for name in [*headings, *asked]) and content[start:end].strip():
                    questions.append("".join(asked))
                    places.append(Passage(start, end, tuple(headings), first, last, number, len(rows)))
                    continue
        raise ValueError(f"its passage {number} is {shown(row)}")
    return StoredDocument(document, tuple(places), questions=tuple(questions) if any(questions) else ())


def count_places(text: object) -> int:
    """Number of a document's passages."""
    try:
        return len(parse_json(text)) if isinstance(text, str) and text else 1
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged_database(DATABASE, f"passages of a document are {shown(text)}: {error}") from error


def stored_of(
    id: str, text: str, metadata: str, fields: str, payload: str, digest: str, places: str = "", source: str = ""
) -> StoredDocument:
    """Convert a row of ``DOCUMENT_COLUMNS`` into a document; raises where its content is not what was written."""
    try:
        for value in (id, text, metadata, fields, payload, places, source):
            if not isinstance(value, str):
                raise TypeError(f"{shown(value)} is no text")
        parts = parse_json(metadata), parse_json(fields), parse_json(payload)
        document, actual = Document(id, text, *parts), content_digest(text, *parts)
        if actual != digest:
            raise ValueError(f"its digest is {actual}, not {shown(digest)}")
        return replace(parse_passages(places, document), source=source)
    except (TypeError, ValueError, RecursionError) as error:  # no JSON, no mapping, no document, no places
        raise CorruptIndexError(f"document {shown(id)} is damaged in {DATABASE} ({error}); {REPAIR}") from error


@cache
def _load_checksums() -> None:
    """Register SQLite's checksum VFS, for connections that name it and no others of this process."""
    try:
        usual = apsw.vfs_names()[0]
        apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
        apsw.set_default_vfs(usual)
    except (apsw.Error, apsw.sqlite_extra.NotAvailable, LookupError) as error:
        raise StoreError(
            f"this apsw {apsw.apsw_version()} lacks SQLite's checksum extension ({error}). "
            "Run: pip install --force-reinstall --only-binary apsw apsw"
        ) from error


def connect(path: Path, mode: str) -> apsw.Connection:
    """Open a database whose pages are checked when read; it trusts no function or view that its file defines.

    An interrupt (Ctrl-C) ends a query that runs.
    """
    _load_checksums()
    # the mode restricts the flags
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"{path.absolute().as_uri()}?{mode}", flags, _VFS)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.set_progress_handler(lambda: False, _STEPS_PER_INTERRUPT_CHECK)
    return connection


def limit_steps(connection: Any, path: Path, per_byte: int) -> int:
    """Interrupt queries that take more steps than the size of the file explains; returns that size.

    Pages that refer to each other in a knot make billions of rows of a small file.
    """
    size = sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.is_file())
    left = _FREE_STEPS + per_byte * size

    def is_over() -> bool:
        nonlocal left
        left -= _STEPS_PER_COUNT
        return left < 0

    connection.set_progress_handler(is_over, _STEPS_PER_COUNT)
    return size


@contextmanager
def bounded(connection: apsw.Connection, path: Path, per_byte: int = 16) -> Iterator[None]:
    """End queries that take more steps than reading the file once explains."""
    size = limit_steps(connection, path, per_byte)
    try:
        yield
    except apsw.InterruptError as error:
        raise damaged_database(path, f"reading it takes longer than its {size:,} bytes explain") from error
    finally:
        connection.set_progress_handler(lambda: False, _STEPS_PER_INTERRUPT_CHECK)


@cache
def _expected_schema() -> frozenset[tuple[Any, ...]]:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(SCHEMA)
        return frozenset(connection.execute(_READ_SCHEMA))


def check_schema(connection: apsw.Connection, path: Path) -> None:
    """Raise unless the database holds exactly the tables of :data:`TABLES`: no view, trigger or other column."""
    expected = _expected_schema()
    rows = connection.execute(f"{_READ_SCHEMA} LIMIT {len(expected) + 1}").fetchall()
    if len(rows) != len(expected) or set(rows) != expected:
        wrong = sorted(expected.symmetric_difference(rows), key=repr) or rows
        kind, name = wrong[0][:2]
        raise damaged_database(path, f"its schema has {shown(kind)} {shown(name)} otherwise than palmette makes it")


def check_stored(connection: apsw.Connection, path: Path) -> None:
    """Raise where a table is a view, virtual or computed: reading it would run what a stranger wrote."""
    query = "SELECT list.type, max(info.hidden) FROM pragma_table_list(?) AS list, pragma_table_xinfo(?) AS info"
    for name in TABLES:
        [(kind, hidden)] = connection.execute(f"{query} WHERE list.schema = 'main'", [name, name]).fetchall()
        if kind not in (None, "table") or hidden:
            raise damaged_database(path, f"{name} is not a plain table")


def damaged_database(path: Path | str, why: str) -> CorruptIndexError:
    """Make the error for a database that holds what was never written so."""
    return CorruptIndexError(f"{path} is damaged: {why}; {REPAIR}")


def create_database(path: Path, *, durable: bool, **values: str | int) -> apsw.Connection:
    """Create an empty database with these values in its meta table.

    A database of an index in memory, which no other process opens, is not ``durable``: it is never flushed to disk.
    """
    connection = connect(path, "mode=rwc")
    # 1. What can only be set while the file is empty.
    connection.reserve_bytes(reserve=_CHECKSUM_BYTES)
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL").fetchall()
    # 2. Tables and values, in one transaction.
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}; BEGIN IMMEDIATE; {SCHEMA}")
    write_meta(connection, **values)
    connection.execute("COMMIT")
    return connection


def log_size(path: Path) -> int:
    """Size of the log beside a database."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def empty_log(connection: apsw.Connection, patience: float = 0.0) -> None:
    """Move the log into the database and empty it; readers of older states prevent that after ``patience`` seconds.

    No reader waits for it: one that begins meanwhile needs the database alone.
    """
    [(usual,)] = connection.execute("PRAGMA busy_timeout")
    try:
        connection.set_busy_timeout(int(1000 * patience))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.set_busy_timeout(usual)


def has_zeroed_page(connection: apsw.Connection, path: Path) -> bool:
    """Return whether a page in use is all zeros: its checksum is valid then, and documents' digests must tell."""
    [(size,)] = connection.execute("PRAGMA page_size")
    content = np.memmap(path, np.uint8, mode="r")
    pages = content[: len(content) // size * size].reshape(-1, size)
    zeroed = np.flatnonzero(~pages[:, -_CHECKSUM_BYTES:].any(axis=1)) + 1
    query = "SELECT 1 FROM dbstat WHERE pageno IN (SELECT value FROM json_each(?)) LIMIT 1"
    return len(zeroed) > 0 and bool(connection.execute(query, [json.dumps(zeroed.tolist())]).fetchall())
