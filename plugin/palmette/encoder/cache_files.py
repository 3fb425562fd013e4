"""SQLite files of encodings: one per encoder and output.

    ROOT/encodings/HASH.sqlite   about (encoder, facts), texts (key, crc, data, sentences, batch),
                                 batches (id, used, bytes)

A key is the first 16 bytes of a text's SHA-256; the CRC-32 is that of key and data. Data are the pooled vector
(float32), or the states of the text's tokens one after the other (float16). Sentences, where they are known, are
the CRC-32 of key and rest, the spans (int32) and the vectors (int8). Texts are written in batches, and the batches
that were used least recently are deleted when the folder exceeds its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

_KEYS = 5_000  # of one query
_PATIENCE = 60.0  # seconds to wait for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: no such table


class EncodingFile:
    """Encodings of one encoder and output."""

    def __init__(self, path: Path, encoder: str, facts: str) -> None:
        self.path, self.encoder, self.facts, self.lock = path, encoder, facts, path.parent / ".lock"

    def get(
        self, keys: Iterable[bytes], size: int, width: int | None = None
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield known keys, their data, a multiple of ``size`` bytes, and their sentences, with ``width`` bytes each.

        Without ``width`` sentences are not read. Damaged data are skipped, with a warning.
        """
        wanted, damaged, batches = list(keys), 0, set[int]()
        left = set(wanted)
        if not self.path.exists():
            return
        try:
            with contextlib.closing(self._open()) as connection:
                step = min(_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))
                columns, rest = ("sentences", " AND sentences NOT NULL") if width else ("NULL", "")
                for start in range(0, len(wanted), step):
                    some = wanted[start : start + step]
                    query = (
                        f"SELECT key, crc, data, batch, {columns} FROM texts "
                        f"WHERE key IN ({','.join('?' * len(some))}){rest}"
                    )
                    for key, crc, data, batch, more in connection.execute(query, some):
                        if (
                            key in left
                            and isinstance(data, bytes)
                            and not len(data) % size
                            and zlib.crc32(data, zlib.crc32(key)) == crc
                            and (width is None or _is_whole(key, more, width))
                        ):
                            left.remove(key)
                            batches.add(batch)
                            yield key, data, more[4:] if width else b""
                        else:
                            damaged += 1
                self._mark(connection, batches)
        except sqlite3.Error as error:
            self._set_aside(error)
        if damaged:
            self._warn(f"{damaged} texts have been altered")

    def put(self, rows: Mapping[bytes, bytes], sentences: Mapping[bytes, bytes] | None = None) -> None:
        """Write data by key, as one batch, and sentences where they are known."""
        if not rows:
            return
        more = {key: _crc(key, blob) + blob for key, blob in (sentences or {}).items()}
        size = sum(map(len, rows.values())) + sum(map(len, more.values()))
        for last in (False, True):
            if not self.path.exists():
                self._create()
            try:
                with contextlib.closing(self._open()) as connection, connection:
                    added = "INSERT INTO batches (used, bytes) VALUES (?, ?)"
                    batch = connection.execute(added, (int(time.time()), size)).lastrowid
                    values = (
                        (key, zlib.crc32(rows[key], zlib.crc32(key)), rows[key], more.get(key), batch)
                        for key in sorted(rows)
                    )
                    connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", values)
                return
            except sqlite3.Error as error:
                if last or not self._set_aside(error):
                    raise

    def _mark(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        """Note that batches are in use, once an hour; another writer, or a folder that is only read, may prevent it."""
        now = int(time.time())
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            with connection:
                rows = [(now, batch, now - 3600) for batch in batches]
                connection.executemany("UPDATE batches SET used = ? WHERE id = ? AND used < ?", rows)

    def _open(self) -> sqlite3.Connection:
        """Open a file that exists; in a folder that cannot be written, without SQLite's files beside it."""
        how = "mode=rw" if os.access(self.path.parent, os.W_OK) else "immutable=1"
        connection = _connect(self.path, how)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            facts = connection.execute("SELECT facts FROM about").fetchone()
            if facts != (self.facts,):
                error = sqlite3.DatabaseError("it belongs to another encoder")
                error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                raise error
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Make an empty file, unless there is one: beside its place, so that a kill leaves none that is half made."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.lock, timeout=_PATIENCE):
            if self.path.exists():
                return
            new = self.path.with_suffix(".new")
            new.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(new)) as connection, connection:
                connection.execute("PRAGMA page_size=16384")  # read almost twice as fast as with 4096
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE about (encoder TEXT, facts TEXT)")
                connection.execute(
                    "CREATE TABLE batches (id INTEGER PRIMARY KEY, used INTEGER, bytes INTEGER)"
                )
                connection.execute(
                    "CREATE TABLE texts "
                    "(key BLOB PRIMARY KEY, crc INTEGER, data BLOB, sentences BLOB, batch INTEGER)"
                )
                connection.execute("CREATE INDEX texts_of_batches ON texts (batch)")
                connection.execute("INSERT INTO about VALUES (?, ?)", (self.encoder, self.facts))
            new.replace(self.path)

    def _set_aside(self, error: sqlite3.Error) -> bool:
        """Rename a damaged or foreign file, with a warning; return False for any other error."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            return False
        with contextlib.suppress(OSError), FileLock(self.lock, timeout=_PATIENCE):
            self.path.replace(self.path.with_suffix(".damaged"))
            _remove(self.path)
        self._warn(str(error))
        return True

    def _warn(self, why: str) -> None:
        warnings.warn(f"cached encodings {self.path} are damaged ({why}); they are made again", stacklevel=4)


class CacheEntry(NamedTuple):
    """What one file keeps: texts of an encoder, for an output, in bytes; and when it was used, in seconds."""

    encoder: str
    output: str
    texts: int
    bytes: int
    used: int


def entries(folder: Path) -> list[CacheEntry]:
    """List the files of encodings."""
    found = []
    for path in _files(folder):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as connection:
            encoder, facts = connection.execute("SELECT encoder, facts FROM about").fetchone()
            texts, sentences = connection.execute("SELECT COUNT(*), COUNT(sentences) FROM texts").fetchone()
            used = connection.execute("SELECT MAX(used) FROM batches").fetchone()[0] or 0
            output = "sentences" if sentences else json.loads(facts)["output"]
            found.append(CacheEntry(encoder, output, texts, path.stat().st_size, used))
    return found


def clear(folder: Path, encoder: str | None) -> int:
    """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
    freed = 0
    for path in _files(folder):
        name = None
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as connection:
            name = connection.execute("SELECT encoder FROM about").fetchone()[0]
        if encoder in (None, name):
            freed += _remove(path)
    return freed


def _files(folder: Path) -> list[Path]:
    found = folder.glob("*")
    return sorted(path for path in found if path.suffix in (".sqlite", ".damaged"))


def trim(folder: Path, max_bytes: int) -> None:
    """Delete the batches used least recently, until a tenth of ``max_bytes`` is free."""
    excess = sum(path.stat().st_size for path in _files(folder)) - max_bytes
    if excess <= 0:
        return
    batches: list[tuple[int, int, int, Path]] = []  # used, bytes, id
    with FileLock(folder / ".lock", timeout=_PATIENCE):
        for path in _files(folder):
            try:
                with contextlib.closing(_connect(path)) as connection:
                    rows = connection.execute("SELECT used, bytes, id FROM batches").fetchall()
            except sqlite3.Error:  # damaged, or written by another version
                rows = [(0, path.stat().st_size, -1)]
            batches += [(*row, path) for row in rows]
        excess += max_bytes // 10
        old: dict[Path, list[tuple[int]]] = {}
        for _, size, number, path in sorted(batches):
            if excess > 0:
                old.setdefault(path, []).append((number,))
                excess -= size
        for path, numbers in old.items():
            if (-1,) in numbers:
                _remove(path)
                continue
            with contextlib.closing(_connect(path)) as connection:
                with connection:
                    connection.executemany("DELETE FROM texts WHERE batch = ?", numbers)
                    connection.executemany("DELETE FROM batches WHERE id = ?", numbers)
                connection.executescript("PRAGMA incremental_vacuum")  # execute() would free one page


def _crc(key: bytes, blob: bytes) -> bytes:
    return zlib.crc32(blob, zlib.crc32(key)).to_bytes(4, "little")


def _is_whole(key: bytes, blob: object, width: int) -> bool:
    """Tell whether sentences are as they were written."""
    return isinstance(blob, bytes) and len(blob) % width == 4 and _crc(key, blob[4:]) == blob[:4]


def _connect(path: Path, how: str = "mode=rw") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", _PATIENCE, uri=True)


def _remove(path: Path) -> int:
    """Delete a file of encodings and SQLite's files beside it; returns its bytes."""
    size = path.stat().st_size if path.exists() else 0
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    return size
