"""Connections to a local index's database, lent one at a time, across threads and forks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import apsw
import filelock  # noqa: F401  # its fork hooks must be registered first: they keep writers from finishing

from palmette.errors import LockedError, ReadOnlyError, StoreError
from palmette.store.local.database import (
    DAMAGED,
    DATABASE,
    LONG_LOG,
    bounded,
    check_schema,
    connect,
    no_fork,
    storage_errors,
)
from palmette.store.local.folder import OpenedFolder, check_commit, check_own, read_commit


class Pool:
    """Connections to one database, each lent to one user at a time.

    Safe across threads and forks. SQLite must not be in use when a process forks: its record of locks is copied into
    the child, which would believe to hold them. So a fork waits, as long as a writer waits for another, until other
    threads have given their connections back. A child opens its own connections; where the fork found another thread
    still reading, or any write open, the child is refused, since SQLite cannot be used there.
    """

    def __init__(self, opened: OpenedFolder, *, durable: bool, busy_timeout: float) -> None:
        self.opened, self.folder, self.read_only = opened, opened.path, False
        self._durable, self._busy_timeout = durable, busy_timeout
        self._reset_lock()
        self._idle: list[apsw.Connection] = []
        self._lent: dict[apsw.Connection, tuple[int, bool]] = {}  # thread, and whether it writes
        self._stamp: tuple[int, int, bool] | None = None
        self._closed = False
        with no_fork:
            _pools.add(self)

    def _reset_lock(self) -> None:
        # a finaliser may close the pool inside a call of the same thread
        self._lock, self._forking = threading.Condition(threading.RLock()), False

    @contextmanager
    def connection(self, *, write: bool = False) -> Iterator[apsw.Connection]:
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

    def _borrow(self, write: bool) -> apsw.Connection:
        """Lend an idle connection, or a new one, to this thread; waits while a fork is being prepared."""
        thread = threading.get_ident()
        with self._lock, storage_errors(self.folder):
            # a thread that has one may need another before it can give either back
            while self._forking and thread not in (holder for holder, _ in self._lent.values()):
                self._lock.wait()
            if self._closed:
                raise StoreError(f"the index {self.folder} is closed; open it again")
            # else documents of one index would meet the arrays of another
            is_there = self.opened.check(reading=not write)
            if is_there and self._stamp is not None and self._stamp != self._read_only_stamp():
                self.drain()
                self._stamp = None
            if not is_there and not self._lock.wait_for(lambda: self._idle or self._closed, self._busy_timeout):
                raise LockedError(f"the index {self.folder} is away, and too many read what is open of it: try again")
            connection = self._idle.pop() if self._idle else self._open()
            self._lent[connection] = thread, write
            return connection

    def _give_back(self, connection: apsw.Connection) -> None:
        """Take a connection back; one that cannot be reset is closed."""
        sound = False  # a connection in doubt is not lent again
        with contextlib.suppress(apsw.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
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
        self._lock.wait_for(lambda: all(holder == own for holder, _ in self._lent.values()), self._busy_timeout)
        self.drain()

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
                # closing it would undo the parent's write
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
                _unusable.add(self.opened.database)
        self._lent = {}

    def _open(self) -> apsw.Connection:
        """Open read-write where possible, so that what a crashed writer left is recovered; otherwise read-only."""
        if self.opened.database in _unusable:
            raise StoreError(
                f"{self.folder} was in use when this process was forked: fork while no write is open and no other "
                "thread reads it, or start processes by spawn"
            )
        if os.access(self.folder, os.W_OK) and os.access(self.folder / DATABASE, os.W_OK):
            try:
                connection = self._connect("mode=rw")
                self.read_only = False
                return connection
            except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.IOError) as error:
                if getattr(error, "extendedresult", 0) in DAMAGED:
                    raise
        self.read_only = True
        self._stamp = self._read_only_stamp()
        *_, has_log = self._stamp
        if has_log:
            try:
                return self._connect("mode=ro")
            except (apsw.ReadOnlyError, apsw.CantOpenError) as error:
                raise ReadOnlyError(
                    f"{self.folder} holds changes that a writer left in {DATABASE}-wal, and cannot be written to "
                    "take them in; open it once where it can be written, then copy it again"
                ) from error
        return self._connect("immutable=1")

    def _connect(self, mode: str) -> apsw.Connection:
        """Open a connection with its settings, and check schema and last commit."""
        for end in ("", "-wal", "-shm"):
            check_own(self.folder / f"{DATABASE}{end}")
        committed = read_commit(self.folder)  # before the database: a writer notes a commit when it is done
        path = self.folder / DATABASE
        connection = connect(path, mode)
        try:
            connection.set_busy_timeout(int(1000 * self._busy_timeout))
            connection.execute(
                f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}; PRAGMA temp_store=MEMORY;"
                f"PRAGMA cache_size=-16000; PRAGMA journal_size_limit={LONG_LOG}; PRAGMA query_only=ON;"
            ).fetchall()
            connection.create_scalar_function("folded_contains", _contains_folded, 2, deterministic=True)
            with bounded(connection, path):
                check_schema(connection, path)
                check_commit(connection, self.folder, committed)  # reads the file and its WAL
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_only_stamp(self) -> tuple[int, int, bool]:
        """Return what changes when the database does, for those who cannot take part in its locking."""
        status, log = (self.folder / DATABASE).stat(), self.folder / f"{DATABASE}-wal"
        return status.st_mtime_ns, status.st_size, log.exists() and log.stat().st_size > 0

    def drain(self) -> None:
        """Close what is idle."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            self.drain()
            self.opened.close()


def _contains_folded(*values: Any) -> bool:
    value, folded = values
    return folded in str(value).casefold()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
# databases, by device and inode, that were in use when this process was forked
_unusable: set[tuple[int, int]] = set()
_forking: list[Pool] = []


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
