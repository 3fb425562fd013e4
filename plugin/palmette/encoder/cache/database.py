"""SQLite database of encodings.

    ROOT/palmette-cache.sqlite   texts (key, crc, batch, data), batches (id, encoder, output, used, bytes)

A key is the first 16 bytes of a SHA-256 over all that determines the data; the CRC-32 is that of key and data. Texts
are written in batches, and the batches that were used least recently are deleted when the database exceeds its limit.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

_KEYS = 5_000  # of one query
_PAGE = 16_384  # bytes; read almost twice as fast as pages of 4096
_PATIENCE = 60.0  # seconds to wait for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: no such table
_SCHEMA = f"""
    PRAGMA page_size = {_PAGE};
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    CREATE TABLE batches (id INTEGER PRIMARY KEY, encoder TEXT, output TEXT, used INTEGER, bytes INTEGER);
    CREATE TABLE texts (
        key BLOB PRIMARY KEY, crc INTEGER, batch INTEGER REFERENCES batches ON DELETE CASCADE, data BLOB
    );
    CREATE INDEX texts_of_batches ON texts (batch);
"""


class CacheEntry(NamedTuple):
    """Texts of an encoder kept for an output, their bytes, and when they were last used, in seconds."""

    encoder: str
    output: str
    texts: int
    bytes: int
    used: int


class EncodingDatabase:
    """Encodings by key; threads and processes may use the database at once."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root, self.path, self.max_bytes = root, root / "palmette-cache.sqlite", max_bytes

    def get(self, keys: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield known keys and their data. Damaged data are skipped, with a warning."""
        key_list, left, batches = list(keys), set(keys), set[int]()
        if not self.path.exists():
            return
        try:
            with self._connect() as connection:
                step = min(_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))
                damaged = 0
                for start in range(0, len(key_list), step):
                    chunk = key_list[start : start + step]
                    marks = ",".join("?" * len(chunk))
                    query = f"SELECT key, crc, batch, data FROM texts WHERE key IN ({marks})"
                    for key, crc, batch, data in connection.execute(query, chunk):
                        if key in left and isinstance(data, bytes) and _crc(key, data) == crc:
                            left.remove(key)
                            batches.add(batch)
                            yield key, data
                        else:
                            damaged += 1
                if damaged:
                    self._warn(f"{damaged} texts have been altered")
                self._mark(connection, batches)
        except sqlite3.Error as error:
            self._discard(error)

    def put(self, rows: Mapping[bytes, bytes], encoder: str, output: str) -> None:
        """Write data by key, as one batch; batches used least recently go where the limit is exceeded."""
        if not rows:
            return
        for last in (False, True):
            if not self.path.exists():
                self._create()
            try:
                with self._connect() as connection:
                    with connection:
                        batch = connection.execute(
                            "INSERT INTO batches (encoder, output, used, bytes) VALUES (?, ?, ?, ?)",
                            (encoder, output, int(time.time()), sum(map(len, rows.values()))),
                        ).lastrowid
                        values = ((key, _crc(key, rows[key]), batch, rows[key]) for key in sorted(rows))
                        connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", values)
                    [pages] = connection.execute("PRAGMA page_count").fetchone()
                    if (excess := pages * _PAGE - self.max_bytes) > 0:  # a tenth is to be free afterwards
                        oldest = "SELECT id, SUM(bytes) OVER (ORDER BY used, id) - bytes AS before FROM batches"
                        condition = f"id IN (SELECT id FROM ({oldest}) WHERE before < ?)"
                        _delete(connection, condition, excess + self.max_bytes // 10)
                return
            except sqlite3.Error as error:
                if last or not self._discard(error):
                    raise

    def entries(self) -> list[CacheEntry]:
        """List what is kept, most recently used first."""
        with contextlib.suppress(sqlite3.Error), self._connect() as connection:
            texts = "(SELECT COUNT(*) FROM texts WHERE batch = id)"
            rows = connection.execute(
                f"SELECT encoder, output, SUM({texts}), SUM(bytes), MAX(used) FROM batches "
                "GROUP BY encoder, output ORDER BY MAX(used) DESC"
            )
            return [CacheEntry(*row) for row in rows]
        return []

    def clear(self, encoder: str | None) -> int:
        """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
        if encoder is None:
            return self._remove()
        if any(entry.encoder == encoder for entry in self.entries()):
            with contextlib.suppress(sqlite3.Error), self._connect() as connection:
                return _delete(connection, "encoder = ?", encoder)
        return 0

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open the database, which exists; in a folder that cannot be written, without SQLite's files beside it."""
        mode = "mode=rw" if os.access(self.root, os.W_OK) else "immutable=1"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        with contextlib.closing(sqlite3.connect(address, _PATIENCE, uri=True)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            yield connection

    def _mark(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        """Note that batches are in use, once an hour; another writer, or a folder that is only read, may prevent it."""
        now = int(time.time())
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            with connection:
                rows = [(now, batch, now - 3600) for batch in batches]
                connection.executemany("UPDATE batches SET used = ? WHERE id = ? AND used < ?", rows)

    def _create(self) -> None:
        """Make an empty database, unless there is one: beside its place, so that a kill leaves none half made."""
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "palmette-cache.lock", timeout=_PATIENCE):
            if self.path.exists():
                return
            self._remove()
            new = self.path.with_suffix(".sqlite-new")
            with contextlib.closing(sqlite3.connect(new)) as connection:
                connection.executescript(_SCHEMA)
            new.replace(self.path)

    def _discard(self, error: sqlite3.Error) -> bool:
        """Delete a damaged or foreign database, with a warning; return False for any other error."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            return False
        with contextlib.suppress(OSError):
            self._remove()
        self._warn(str(error))
        return True

    def _remove(self) -> int:
        """Delete the database, and SQLite's files beside it; returns their bytes."""
        files = [*self.root.glob(f"{self.path.name}*")]
        freed = sum(path.stat().st_size for path in files)
        for path in files:
            path.unlink(missing_ok=True)
        return freed

    def _warn(self, why: str) -> None:
        warnings.warn(f"cached encodings {self.path} are damaged ({why}); they are made again", stacklevel=4)


def _crc(key: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key))


def _delete(connection: sqlite3.Connection, where: str, value: object) -> int:
    """Delete batches and their texts, and free their pages; returns the bytes of their data."""
    connection.execute("PRAGMA foreign_keys=ON")  # only here: it makes inserting slower
    with connection:
        rows = connection.execute(f"DELETE FROM batches WHERE {where} RETURNING bytes", [value]).fetchall()
    connection.executescript("PRAGMA incremental_vacuum")  # execute() would free one page
    return sum(size for [size] in rows)
