"""The SQLite side of a local index: schema, connections, document rows, and what SQLite's failures mean.

SQLite holds everything but the arrays and is the one commit point: a segment of arrays exists for readers
when, and only when, a committed row names it. WAL gives every reader a snapshot and never makes it wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import filelock  # noqa: F401  # its fork hooks must be registered first: they keep writers from finishing
import numpy as np

from palmette.arrays import Keys
from palmette.errors import (
    CorruptIndexError,
    InputError,
    LockedError,
    PalmetteError,
    ReadOnlyError,
    StorageFullError,
    StoreError,
)
from palmette.store.filters import Scalar, flatten
from palmette.types import Document, Metadata

DATABASE = "index.sqlite3"

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents(
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL,
    metadata TEXT NOT NULL, fields TEXT NOT NULL, payload TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS metadata(
    name TEXT NOT NULL, value NOT NULL, key INTEGER NOT NULL, PRIMARY KEY(name, value, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments(
    position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, count INTEGER NOT NULL, files TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS dead(key INTEGER PRIMARY KEY);
"""
"""``dead`` lists the keys of deleted documents whose arrays still lie in a segment."""

COLUMNS = "id, text, metadata, fields, payload"
CHUNK = 500  # parameters of one statement

_SURROGATE = re.compile("[\ud800-\udfff]")
_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
# SQLite reports EFBIG and EDQUOT as plain write errors
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_NO_ROOM |= {sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise what a failing disk or database means for the user, as palmette's own errors."""
    try:
        yield
    except PalmetteError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise _explain(error, path) from error


def _explain(error: OSError | sqlite3.Error, path: Path) -> StoreError:
    number, code = getattr(error, "errno", None), getattr(error, "sqlite_errorcode", 0)
    file = getattr(error, "filename", None)
    why = f"{getattr(error, 'strerror', error)}" + (f": {file}" if file else "")
    if number in _FULL or code in _NO_ROOM:
        return StorageFullError(
            f"no room to write {path} ({why}); the index is as it was. Free some space and retry"
        )
    if number in _DENIED or code & 0xFF in _READ_ONLY:
        return ReadOnlyError(
            f"{path} cannot be written ({why}); change its permissions, or copy it where it can be"
        )
    if number == errno.ENOENT:
        return CorruptIndexError(f"{file} is missing from the index {path}; restore it from a backup")
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError(
            f"{path}: its database is busy ({why}); retry, or look for a program that holds {DATABASE}"
        )
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptIndexError(
            f"{path / DATABASE} is damaged ({why}); restore it from a backup, or build the index again"
        )
    return StoreError(f"{path if number else path / DATABASE}: {error}")


def read_meta(connection: sqlite3.Connection, name: str) -> Any:
    """Read a value of the meta table."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", [name]).fetchone()
    if row is None:
        raise StoreError(f"the database has no {name!r}: it is not a palmette index")
    return row[0]


def write_meta(connection: sqlite3.Connection, **values: str | int) -> None:
    """Set values of the meta table."""
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def rows_among(
    connection: sqlite3.Connection, query: str, values: Sequence[Scalar]
) -> Iterator[tuple[Any, ...]]:
    """Run ``query`` with the values in place of its ``{}``, some hundreds at a time.

    Half surrogate pairs are no text, so nothing stored equals a value that holds one.
    """
    values = [value for value in values if not isinstance(value, str) or _SURROGATE.search(value) is None]
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        yield from connection.execute(query.format(", ".join("?" * len(some))), some)


class Row(NamedTuple):
    """A document as it is stored."""

    id: str
    text: str
    metadata: str
    fields: str
    payload: str
    digest: str
    values: list[tuple[str, Scalar]]


def row_of(document: Document) -> Row:
    """Convert a document into a row; raises for what cannot be stored."""
    digest = document.digest  # raises for what is not JSON
    stored = {"id": document.key, "text": document.text}
    for name in ("metadata", "fields", "payload"):
        stored[name] = _to_json(dict(getattr(document, name)))
    for name, text in stored.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"document {document.id!r}: its {name} holds half of a surrogate pair at position {error.start}; "
                "clean it with text.encode('utf-8', 'replace').decode()"
            ) from error
    return Row(**stored, digest=digest, values=values_of(document.metadata))


def values_of(metadata: Metadata) -> list[tuple[str, Scalar]]:
    """List the (name, value) pairs by which a document can be filtered."""
    pairs = [(name, one) for name, values in flatten(metadata).items() for one in values]
    return [(name, int(one) if isinstance(one, bool) else one) for name, one in pairs]


def keys_of(rows: Iterable[tuple[int]]) -> Keys:
    """Collect a query's only column."""
    return np.fromiter((key for (key,) in rows), np.int64)


def document_of(id: str, text: str, *parts: str) -> Document:
    """Convert a row of ``COLUMNS`` into a document."""
    try:
        return Document(id, text, *map(json.loads, parts))
    except (TypeError, ValueError) as error:
        raise CorruptIndexError(
            f"document {id!r} is damaged in {DATABASE} ({error}); restore the index from a backup"
        ) from error


class Pool:
    """Connections to one database, each lent to one user at a time.

    Safe across threads and forks. SQLite must not be in use when a process forks: its record of locks is copied into
    the child, which would believe to hold them. So a fork waits, as long as a writer waits for another, until other
    threads have given their connections back. A child opens its own connections; where the fork found another thread
    still reading, or any write open, the child is refused, since SQLite cannot be used there.
    """

    def __init__(self, folder: Path, *, durable: bool, busy_timeout: float) -> None:
        self.folder, self.read_only = folder, False
        self._durable, self._busy_timeout = durable, busy_timeout
        self._reset_lock()
        self._idle: list[sqlite3.Connection] = []
        self._lent: dict[sqlite3.Connection, tuple[int, bool]] = {}  # thread, and whether it writes
        self._stamp: tuple[int, int, bool] | None = None
        self._closed = False
        self._opened: tuple[int, int] | None = None  # device and inode of the database
        with no_fork:
            _pools.add(self)

    def _reset_lock(self) -> None:
        # a finaliser may close the pool inside a call of the same thread
        self._lock, self._forking = threading.Condition(threading.RLock()), False

    @contextmanager
    def connection(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Borrow a connection; anything left uncommitted is rolled back at the end."""
        pid = os.getpid()
        connection = self._borrow(write)
        try:
            if write:
                connection.execute("PRAGMA query_only=OFF")
            yield connection
        finally:
            if os.getpid() == pid:
                self._give_back(connection)

    def _borrow(self, write: bool) -> sqlite3.Connection:
        thread = threading.get_ident()
        with self._lock, storage_errors(self.folder):
            # a thread that has one may need another before it can give either back
            self._lock.wait_for(
                lambda: not self._forking or thread in (one for one, _ in self._lent.values())
            )
            if self._closed:
                raise StoreError(f"the index {self.folder} is closed; open it again")
            if self._stamp is not None and self._stamp != self._read_only_stamp():
                while self._idle:
                    self._idle.pop().close()
                self._stamp = None
            connection = self._idle.pop() if self._idle else self._open()
            self._lent[connection] = thread, write
            return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        sound = False  # a connection in doubt is not lent again
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.rollback()
            connection.execute("PRAGMA query_only=ON")
            sound = True
        with self._lock:
            if sound and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
            del self._lent[connection]
            self._lock.notify_all()

    def before_fork(self) -> None:
        """Wait for other threads' connections, close idle ones, and lend none until :meth:`after_fork`."""
        own = threading.get_ident()
        self._lock.acquire()
        self._forking = True
        self._lock.wait_for(lambda: all(one == own for one, _ in self._lent.values()), self._busy_timeout)
        while self._idle:
            self._idle.pop().close()

    def after_fork(self, *, child: bool) -> None:
        """Lend connections again; a child first parts from those that were lent to its parent."""
        if not child:
            self._forking = False
            self._lock.notify_all()
            self._lock.release()
            return
        self._reset_lock()
        for connection, (thread, write) in self._lent.items():
            if thread == threading.get_ident() and not write:
                connection.close()  # between two calls: nothing that the parent shares is written
            else:
                ctypes.pythonapi.Py_IncRef(
                    ctypes.py_object(connection)
                )  # closing it would undo the parent's write
                _unusable.add(self._file())
        self._lent = {}

    def _file(self) -> tuple[int, int]:
        found = (self.folder / DATABASE).stat()
        return found.st_dev, found.st_ino

    def _open(self) -> sqlite3.Connection:
        """Open read-write where possible, so that what a crashed writer left is recovered; otherwise read-only."""
        file = self._file()
        self._opened = self._opened or file
        if file != self._opened:  # its documents would meet the arrays of the index before
            raise StoreError(f"{self.folder} holds another index than the one that was opened: open it again")
        if file in _unusable:
            raise StoreError(
                f"{self.folder} was in use when this process was forked: fork while no write is open and no other "
                "thread reads it, or start processes by spawn"
            )
        if os.access(self.folder, os.W_OK) and os.access(self.folder / DATABASE, os.W_OK):
            try:
                connection = self._connect("mode=rw")
                self.read_only = False
                return connection
            except sqlite3.OperationalError as error:
                code = error.sqlite_errorcode & 0xFF
                if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                    raise
        self.read_only = True
        self._stamp = self._read_only_stamp()
        if self._stamp[2]:
            try:
                return self._connect("mode=ro")
            except sqlite3.OperationalError as error:
                raise ReadOnlyError(
                    f"{self.folder} holds changes that a writer left in {DATABASE}-wal, and cannot be written to "
                    "take them in; open it once where it can be written, then copy it again"
                ) from error
        return self._connect("immutable=1")

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{(self.folder / DATABASE).absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            connection.executescript(
                f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}; PRAGMA temp_store=MEMORY;"
                "PRAGMA cache_size=-16000; PRAGMA journal_size_limit=67108864; PRAGMA query_only=ON;"
            )
            connection.create_function(
                "folded_contains", 2, lambda value, folded: folded in value.casefold(), deterministic=True
            )
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # reads the file and its WAL
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _read_only_stamp(self) -> tuple[int, int, bool]:
        """Return what changes when the database does, for those who cannot take part in its locking."""
        found, log = (self.folder / DATABASE).stat(), self.folder / f"{DATABASE}-wal"
        return found.st_mtime_ns, found.st_size, log.exists() and log.stat().st_size > 0

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_unusable: set[tuple[int, int]] = (
    set()
)  # databases, by device and inode, that were in use when this process was forked
_forking: list[Pool] = []
no_fork = threading.RLock()
"""Held by whoever uses SQLite outside a pool, or forks."""


def _before_fork() -> None:
    no_fork.acquire()
    _forking.extend(_pools)
    for pool in _forking:
        pool.before_fork()


def _after_fork(*, child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(child=child)
    no_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, child=False),
        after_in_child=partial(_after_fork, child=True),
    )
