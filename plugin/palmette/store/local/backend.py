"""The local backend: one folder, SQLite for rows, immutable ``.npy`` segments for arrays.

manifest.json        format, model fingerprint, arrays
commit.json          number and digest of the last commit
index.sqlite3        documents, metadata, and which segments count: the one commit point
segments/<name>/     keys.npy, one .npy per array (two if ragged), the documents' words; never changed once there
.lock, .owner.json   the writer's lock, and who holds it
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import apsw
import filelock  # noqa: F401  # its fork hooks must be registered first: they keep writers from finishing
import numpy as np

from palmette.errors import ConfigError, LockedError, ReadOnlyError, StorageFullError, StoreError, shown
from palmette.lexical.analyser import LANGUAGE, analyser_of, stemmer_version
from palmette.search.faiss_engine import engine_named
from palmette.search.plan import ArraySpec
from palmette.store.filters import FilterLike, parse_filter
from palmette.store.local.database import (
    DAMAGED,
    DATABASE,
    DOCUMENT_COLUMNS,
    LONG_LOG,
    OpenedFolder,
    bounded,
    check_schema,
    connect,
    empty_log,
    has_zeroed_page,
    keys_of,
    log_size,
    no_fork,
    read_meta,
    storage_errors,
    stored_of,
    values_of,
)
from palmette.store.local.folder import (
    MANIFEST,
    SEGMENTS,
    Commit,
    Manifest,
    check_commit,
    check_entries,
    check_own,
    create_files,
    note_commit,
    read_commit,
    write_lock,
)
from palmette.store.local.segments import damaged, progress, remove_orphans
from palmette.store.local.view import LocalView, Snapshot, Snapshots
from palmette.store.local.writer import LocalWriter
from palmette.store.protocols import Backend, BackendStats, check_built_by

Verify = Literal["fast", "full", False]
"""Checks at opening: ``fast`` reads every file once and compares it with its checksums; ``full`` also compares every
document with its digest and with the columns that filters read; ``False`` looks at sizes and the last commit alone."""
QUICK = 1 << 26
"""Bytes that are checked before a bar would show."""
MOVED_AT_ONCE = 256
"""Pages of the database that are given back in one transaction."""
PATIENCE = 0.5
"""Seconds that a write waits for readers of older states where the log is long."""
MOST_PATIENCE = 2.0
"""Seconds that it waits at most, however long the log is."""


class LocalBackend(Backend):
    """Documents and arrays in a folder: many readers and one writer at a time, in threads and processes.

    A write is one SQLite commit: killed at any moment, the index is as before or as after. Readers hold a
    snapshot and never wait. Made by :meth:`create`, :meth:`open` or :meth:`in_memory`.
    """

    def __init__(
        self,
        opened: OpenedFolder,
        manifest: Manifest,
        *,
        lock_timeout: float = 10.0,
        engine: str = "exact",
        temporary: bool = False,
    ) -> None:
        path = opened.path
        self.path, self.arrays, self._manifest, self._opened = path, manifest.arrays, manifest, opened
        self.fingerprint, self.language, self.tenant = manifest.fingerprint, manifest.language, manifest.tenant
        self.passages = manifest.passages
        self._lock_timeout, self.engine, durable = lock_timeout, engine, not temporary
        analyser, search = analyser_of(manifest.language), engine_named(engine)
        self._pool = Pool(opened, durable=durable, busy_timeout=max(lock_timeout, 1.0))
        self._snapshots = Snapshots(opened, manifest.arrays, analyser, search, durable=durable)
        self._finish = weakref.finalize(self, _close, self._pool, path if temporary else None, os.getpid())

    @classmethod
    def create(
        cls,
        path: str | Path,
        arrays: Sequence[ArraySpec],
        *,
        fingerprint: str,
        language: str | None = LANGUAGE,
        tenant: str | None = None,
        passages: Mapping[str, Any] | None = None,
    ) -> LocalBackend:
        """Create an empty index in a new folder."""
        folder, manifest = Path(path), Manifest(fingerprint, tuple(arrays), language, tenant, passages)
        with storage_errors(folder):
            folder.mkdir(parents=True)
            create_files(folder, manifest, durable=True)
            opened = OpenedFolder(folder)
        return cls(opened, manifest)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        fingerprint: str | None = None,
        verify: Verify = "fast",
        lock_timeout: float = 10.0,
        engine: str = "exact",
    ) -> LocalBackend:
        """Open an index, and check its files first as ``verify`` says."""
        if verify not in ("fast", "full", False):
            raise ConfigError(f"verify must be 'fast', 'full' or False, got {verify!r}")
        folder = Path(path)
        # 1. Files beside the database: no strange links, the model, and the last commit that was noted.
        with storage_errors(folder):
            check_entries(folder)
            for segment in check_entries(folder / SEGMENTS):
                check_entries(segment)
            manifest, noted = Manifest.read(folder), read_commit(folder)
        check_built_by(folder, manifest.fingerprint, fingerprint)
        if not (folder / DATABASE).is_file():
            raise damaged(folder / DATABASE, "an SQLite database", "no file")
        with storage_errors(folder):
            opened = OpenedFolder(folder)
        backend = cls(opened, manifest, lock_timeout=lock_timeout, engine=engine)
        try:
            # 2. The database must tell the same of model and commit; a hostile one cannot keep queries running.
            in_time = partial(bounded, path=folder / DATABASE)
            with backend._pool.connection() as connection, storage_errors(folder), in_time(connection):
                recorded = read_meta(connection, "fingerprint")
                if recorded != manifest.fingerprint:
                    expected = f"model {manifest.fingerprint} as in {MANIFEST}"
                    raise damaged(folder / DATABASE, expected, f"model {recorded}")
                backend._snapshots.open_snapshot(connection)
                stemmer = connection.execute("SELECT value FROM meta WHERE name = 'stemmer'").fetchone()
                if manifest.language and stemmer and stemmer[0] != stemmer_version():
                    warnings.warn(
                        f"the words of {folder} were stemmed by version {shown(stemmer[0])} of the stemmer, and "
                        f"version {stemmer_version()} stems some otherwise: index.copy_to(…) stems them anew",
                        stacklevel=2,
                    )
                now = Commit.of(connection)
                if noted.generation == now.generation and noted.digest != now.digest:
                    expected = f"commit {now.generation} with digest {noted.digest}"
                    raise damaged(folder / DATABASE, expected, now.digest)
            # 3. Arrays, and with "full" every document.
            if verify:
                backend.verify(documents=verify == "full")
        except BaseException:
            backend.close()
            raise
        return backend

    @classmethod
    def in_memory(
        cls,
        arrays: Sequence[ArraySpec],
        *,
        fingerprint: str = "",
        language: str | None = LANGUAGE,
        tenant: str | None = None,
        passages: Mapping[str, Any] | None = None,
        engine: str = "exact",
    ) -> LocalBackend:
        """Create an index that lasts as long as the object: in a private temporary folder, never flushed to disk."""
        manifest = Manifest(fingerprint, tuple(arrays), language, tenant, passages)
        folder = Path(tempfile.mkdtemp(prefix="palmette-"))
        try:
            with storage_errors(folder):
                create_files(folder, manifest, durable=False)
                opened = OpenedFolder(folder)
            return cls(opened, manifest, engine=engine, temporary=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @contextmanager
    def read(self, filter: FilterLike = None) -> Iterator[LocalView]:
        """Open a consistent view under a filter that is applied before any ranking."""
        since = time.monotonic()
        try:
            with self._pool.connection() as connection:
                with storage_errors(self.path):
                    view = LocalView(connection, self._snapshots, None if filter is None else parse_filter(filter))
                try:
                    yield view
                finally:
                    view.is_open = False
        finally:
            if time.monotonic() - since > PATIENCE:  # writers may have given up waiting for this view
                self._tidy_up()

    def _tidy_up(self) -> None:
        """Empty the log if it is long; nothing depends on it."""
        with suppress(OSError, apsw.Error, StoreError):
            if log_size(self.path / DATABASE) > LONG_LOG and not self._pool.read_only:
                with self._pool.connection(write=True) as connection:
                    empty_log(connection)

    def outlast(self, readers: int = 4) -> None:
        """Keep answering while nothing lies at the path, by files that are open, for so many readers at a time.

        Called again after a change, it opens what that has written. Where files that are open cannot be deleted
        (Windows), they cannot go away either.
        """
        self._opened.outlasts = True
        with ExitStack() as stack:
            for _ in range(readers):
                connection = stack.enter_context(self._pool.connection())
                with storage_errors(self.path):
                    self._snapshots.open_snapshot(connection)

    @contextmanager
    def write(self) -> Iterator[LocalWriter]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""
        with self._pool.connection(write=True) as connection:
            if self._pool.read_only:
                raise ReadOnlyError(
                    f"{self.path} cannot be written; change its permissions, or copy it where it can be"
                )
            with ExitStack() as stack:
                with storage_errors(self.path):
                    stack.enter_context(write_lock(self._opened, self._lock_timeout))
                    if shutil.disk_usage(self.path).free < LONG_LOG:
                        with suppress(apsw.Error):  # the room of the log may do for a deletion
                            empty_log(connection)
                    connection.execute("BEGIN IMMEDIATE")
                    remove_orphans(self.path, None)
                    writer, before = LocalWriter(connection, self._snapshots), log_size(self.path / DATABASE)
                try:
                    yield writer
                    writer.commit()
                except BaseException as error:
                    writer.drop()
                    if isinstance(error, StorageFullError):
                        with suppress(apsw.Error):  # a quota, or a limit of the size of files
                            if connection.in_transaction:  # some failures have ended it
                                connection.execute("ROLLBACK")
                            empty_log(connection)
                    raise
                with suppress(OSError, apsw.Error):  # the change is made: what cannot be swept now, the next write does
                    names = {name for (name,) in connection.execute("SELECT name FROM segments")}
                    if self._opened.is_there():
                        remove_orphans(self.path, names)
                        self._keep_log_short(connection, before)

    def _keep_log_short(self, connection: apsw.Connection, before: int) -> None:
        """Empty the log once it is long.

        Where reads overlap without a pause, there is always one in the way, until a write waits for those that run:
        it does each time that the log has become longer by ``LONG_LOG``, the longer the log is.
        """
        size = log_size(self.path / DATABASE)
        if size > LONG_LOG:
            times, waited = size // LONG_LOG, before // LONG_LOG
            empty_log(connection, min(PATIENCE * times, MOST_PATIENCE) if times > waited else 0)

    def stats(self) -> BackendStats:
        """Return counts and sizes."""
        with self._pool.connection() as connection, storage_errors(self.path):
            snapshot = self._snapshots.open_snapshot(connection)
            [(reclaimable,)] = connection.execute("SELECT count(*) FROM dead")
            [(pages,)] = connection.execute("PRAGMA page_count")
            [(page,)] = connection.execute("PRAGMA page_size")
            log = log_size(self.path / DATABASE)
        size = pages * page + log + sum(segment.bytes for segment in snapshot.segments)
        documents, passages = len(snapshot.first_keys), len(snapshot.keys)
        return BackendStats(documents, passages, str(self.path), size, len(snapshot.segments), reclaimable, log)

    def compact(self) -> None:
        """Give back the space of deleted documents; results and keys do not change."""
        before = self.stats()
        with self._pool.connection(write=True) as connection, storage_errors(self.path), suppress(apsw.Error):
            empty_log(connection)  # a full disk may need its room
        if before.reclaimable or before.segments > 1:
            with self.write() as writer:
                writer.compact()
        lock = write_lock(self._opened, self._lock_timeout)
        with self._pool.connection(write=True) as connection, storage_errors(self.path), lock:
            left, former = 1, 0
            while left != former:  # step by step, since the log needs room for several pages for each that moves
                pages = max(1, min(MOVED_AT_ONCE, shutil.disk_usage(self.path).free // 2**15))
                connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
                empty_log(connection)  # unless a reader of an older state is in the way
                former, left = left, int(str(connection.execute("PRAGMA freelist_count").fetchall()[0][0]))

    def check_arrays(self, specs: Sequence[ArraySpec]) -> None:
        """Raise unless the index stores these arrays, and their numbers lie where a method's tables and loops reach."""
        if self.arrays != tuple(specs):
            expected, stored = (", ".join(str(spec.layout) for spec in arrays) for arrays in (specs, self.arrays))
            raise damaged(self.path / MANIFEST, f"the model's arrays {expected}", stored)
        with self._pool.connection() as connection, storage_errors(self.path):
            for segment in self._snapshots.open_snapshot(connection).segments:
                for spec in specs:
                    segment.check(spec)

    def verify(self, documents: bool = True) -> None:
        """Check files against checksums, the database against itself and the arrays, ``documents`` by digest."""
        with self._pool.connection() as connection, storage_errors(self.path):
            self._snapshots.open_snapshot(connection, partial(self._verify, documents, connection))

    def backup(self, folder: Path) -> None:
        """Copy one consistent state into a new folder and check the copy, while others write."""
        with self._pool.connection() as connection, storage_errors(self.path):
            self._snapshots.open_snapshot(connection, partial(self._copy, folder, connection))
        LocalBackend.open(folder).close()

    def _copy(self, folder: Path, connection: apsw.Connection, snapshot: Snapshot) -> None:
        """Copy one consistent state to a new folder: the segments' files, and the database by SQLite's backup."""
        names = [Path(segment.name, name) for segment in snapshot.segments for name in segment.files]
        with ExitStack() as stack:  # files that are open outlive a merge
            files = [stack.enter_context((self.path / SEGMENTS / name).open("rb")) for name in names]
            (folder / SEGMENTS).mkdir(parents=True)
            copy = stack.enter_context(closing(connect(folder / DATABASE, "mode=rwc")))
            with copy.backup("main", connection, "main") as pages:
                pages.step()
            for name, file in zip(names, files, strict=True):
                target = folder / SEGMENTS / name
                target.parent.mkdir(exist_ok=True)
                with target.open("wb") as out:
                    shutil.copyfileobj(file, out, 1 << 20)
                    out.flush()
                    os.fsync(out.fileno())
            note_commit(connection, folder)
        self._manifest.write(folder, durable=True)

    def _verify(self, documents: bool, connection: apsw.Connection, snapshot: Snapshot) -> None:
        """Raise unless files, database and, where ``documents``, every document agree with their checksums."""
        documents = documents or has_zeroed_page(connection, self.path / DATABASE)
        check = "PRAGMA integrity_check(1)" if documents else "PRAGMA quick_check(1)"
        with bounded(connection, self.path / DATABASE, 64):
            [(result,), *_] = connection.execute(check).fetchall()
        if result != "ok":
            raise damaged(self.path / DATABASE, "a sound database", str(result))
        total = sum(segment.bytes for segment in snapshot.segments)
        with progress(total, "checking files", least=QUICK, unit="B", unit_scale=True) as bar:
            for segment in snapshot.segments:
                segment.verify(bar.update)
        keys = keys_of(connection.execute("SELECT key FROM documents ORDER BY key"))
        if not np.array_equal(keys, snapshot.first_keys):
            expected, actual = f"rows for {len(keys)} documents", f"rows for {len(snapshot.first_keys)}"
            raise damaged(self.path / SEGMENTS, expected, actual)
        if not documents:
            return
        values, lookup = 0, "SELECT count(*) FROM metadata WHERE name = ? AND value = ? AND key = ?"
        with progress(len(keys), "checking documents") as bar:
            for key, *row in connection.execute(f"SELECT key, {DOCUMENT_COLUMNS} FROM documents"):
                stored = stored_of(*row)
                if len(stored.passages) != len(snapshot.passages_of(key)):
                    expected = f"{len(snapshot.passages_of(key))} passages of document {row[0]!r}"
                    raise damaged(self.path / DATABASE, expected, str(len(stored.passages)))
                pairs = set(values_of(stored.document.metadata))
                if any(connection.execute(lookup, (*pair, key)).fetchall() != [(1,)] for pair in pairs):
                    raise damaged(self.path / DATABASE, f"columns to filter document {row[0]!r}", "others")
                values += len(pairs)
                bar.update()
        [(count,)] = connection.execute("SELECT count(*) FROM metadata")
        if count != values:
            raise damaged(self.path / DATABASE, f"{values} values to filter by", str(count))

    def close(self) -> None:
        """Release files and locks; further calls raise StoreError."""
        self._finish()
        self._snapshots.latest = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(pool: Pool, temporary: Path | None, pid: int) -> None:
    """Close the files of an index, and remove one in memory (never from a forked child)."""
    pool.close()
    if temporary and os.getpid() == pid:
        shutil.rmtree(temporary, ignore_errors=True)


# -- connections ------------------------------------------------------------------------------------------


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
                sound = False  # a connection in doubt is closed, not lent again
                with suppress(apsw.Error):
                    if connection.in_transaction:  # left uncommitted
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
            connection.create_scalar_function(
                "folded_contains", lambda *pair: pair[1] in str(pair[0]).casefold(), 2, deterministic=True
            )
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
