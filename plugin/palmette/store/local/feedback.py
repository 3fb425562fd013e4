"""Votes on hits and recorded searches, in a database of their own in the folder of an index.

It is written without the index's lock, so that feedback never waits for a writer. The file is made by the first
feedback; searches are recorded only where that was turned on. Persons are kept as keyed hashes, whose key never leaves
the file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.config import check_kind, check_range
from palmette.errors import CorruptIndexError, InputError, ReadOnlyError, StorageFullError, shown
from palmette.machine.files import flaw_of
from palmette.machine.text import is_unicode
from palmette.store.local.database import limit_steps

FEEDBACK = "feedback.sqlite3"
"""Name of the file."""
LOCK_SECONDS = 60.0
"""Seconds to wait for another process that writes feedback."""
LONGEST_QUERY = 8192
"""Most characters of a query that is kept."""
MOST_PAGES = 2**16
"""Most pages of 4,096 bytes of the file: a caller that may only read can fill it, and no more of the disk."""
YEAR_9999 = 253_402_300_800
"""Seconds from 1970 to the last time that Python's datetime knows."""
STEPS_PER_BYTE = 16
"""Steps of queries for each byte of the file: more, and its pages refer to each other in a knot."""
LONGEST_NAME = 256
"""Most characters of the name of a person."""
_SCHEMA = """CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)
CREATE TABLE votes (number INTEGER PRIMARY KEY, time REAL NOT NULL, scope TEXT NOT NULL, query TEXT NOT NULL, \
document TEXT NOT NULL, useful INTEGER NOT NULL, person TEXT NOT NULL, run TEXT NOT NULL)
CREATE TABLE searches (number INTEGER PRIMARY KEY, time REAL NOT NULL, scope TEXT NOT NULL, query TEXT NOT NULL, \
documents TEXT NOT NULL, person TEXT NOT NULL, run TEXT NOT NULL)
CREATE INDEX runs ON searches (run)""".split("\n")
"""Part of the format, and compared; ``run`` is empty."""
_TYPES = {"useful": (int,), "time": (float,)} | dict.fromkeys("query document documents person".split(), (str,))
"""Types of columns; SQLite takes others too."""


@dataclass(frozen=True)
class Vote:
    """A person's judgement that a document was useful for a query, or was not."""

    query: str
    document: str
    useful: bool
    person: str
    """Keyed hash of who said so; empty where nobody was named."""
    time: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class RecordedSearch:
    """A query, and the documents that it found."""

    query: str
    documents: tuple[str, ...]
    person: str
    time: float


class FeedbackLog:
    """Feedback on an index, and the searches that were recorded; of a filtered index only what came through its filter.

    Made by :attr:`palmette.Index.feedback_log`. Ids are stored with the ``prefix`` of the tenant whose log it is.
    """

    def __init__(self, folder: Path, scope: str = "", prefix: str = "") -> None:
        self.path, self._scope, self._prefix = folder / FEEDBACK, scope, prefix

    # -- writing ----------------------------------------------------------------------------------------------

    def add(self, query: str, document: str, useful: bool, *, person: str | None = None) -> None:
        """Keep a vote; it is on the disk when this returns."""
        query, document = _checked("query", query, LONGEST_QUERY), _checked("id", document, LONGEST_QUERY)
        with self._writing() as database:
            row = time.time(), self._scope, query, self._prefix + document, int(useful), _hashed(database, person)
            database.execute("INSERT INTO votes VALUES (NULL, ?, ?, ?, ?, ?, ?, '')", row)

    def record(self, query: str, documents: Sequence[str], *, person: str | None = None) -> bool:
        """Keep a search where recording is turned on; returns whether it is."""
        check_kind("query", query, str, "a str")
        if isinstance(documents, str):
            raise InputError(f"record_search takes a list of ids, got {shown(documents)}")
        if not self.recording:
            return False
        if len(query) > LONGEST_QUERY or not is_unicode(query):
            return True
        with self._writing() as database:
            ids = json.dumps([self._prefix + id for id in documents])
            row = time.time(), self._scope, query, ids, _hashed(database, person)
            database.execute("INSERT INTO searches VALUES (NULL, ?, ?, ?, ?, ?, '')", row)
        return True

    @property
    def recording(self) -> bool:
        """Return whether searches are recorded: off, unless it is turned on for the whole index."""
        with self._reading() as database:
            return database is not None and _setting(database, "recording") == "on"

    @recording.setter
    def recording(self, on: bool) -> None:
        check_kind("recording", on, bool, "True or False")
        if self._scope:
            raise InputError("recording is turned on and off for the whole index, not behind a filter")
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO settings VALUES ('recording', ?)", ("on" if on else "off",))

    def delete(self, *, document: str | None = None, person: str | None = None, before: float | None = None) -> int:
        """Delete the votes and searches of a document, of a person, or before a time (seconds since 1970).

        Returns how many; several conditions must all hold. A search is deleted with any of its documents.
        """
        if document is None and person is None and before is None:
            raise InputError("delete feedback by document=, person= or before=: give at least one")
        for name, given, longest in (("document", document, LONGEST_QUERY), ("person", person, LONGEST_NAME)):
            if given is not None and not _checked(name, given, longest):
                raise InputError(f"delete feedback of a {name}: its name must not be empty")
        if before is not None:
            check_kind("before", before, (int, float), "seconds since 1970, such as datetime.timestamp() gives")
            check_range("feedback_log.delete", "before", before, 0, YEAR_9999)
        with self._reading() as database:
            if database is None:
                return 0
        deleted = 0
        with self._writing() as database:
            database.execute("PRAGMA secure_delete = ON")
            hashed = None if person is None else _hashed(database, person)
            for table, of_document in (
                ("votes", "document = ?"),
                ("searches", "EXISTS (SELECT 1 FROM json_each(documents) WHERE json_each.value = ?)"),
            ):
                parts = {
                    "scope = ?": self._scope or None,
                    of_document: None if document is None else self._prefix + document,
                    "person = ?": hashed,
                    "time < ?": before,
                }
                conditions = {part: value for part, value in parts.items() if value is not None}
                where = " AND ".join(conditions)
                deleted += database.execute(f"DELETE FROM {table} WHERE {where}", tuple(conditions.values())).rowcount
        return deleted

    # -- reading ----------------------------------------------------------------------------------------------

    def votes(self) -> list[Vote]:
        """Return all votes, the oldest first."""
        rows = self._select("query, document, useful, person, time FROM votes")
        return [Vote(query, self._shown(document), bool(useful), *rest) for query, document, useful, *rest in rows]

    def searches(self) -> list[RecordedSearch]:
        """Return all recorded searches, the oldest first."""
        searches = []
        for query, documents, *rest in self._select("query, documents, person, time FROM searches"):
            try:
                ids = tuple(self._shown(str(id)) for id in json.loads(documents))
            except (TypeError, ValueError, RecursionError) as error:
                raise CorruptIndexError(f"{self.path} is damaged ({error}): delete it, or restore a backup") from error
            searches.append(RecordedSearch(query, ids, *rest))
        return searches

    def _shown(self, id: str) -> str:
        """Return the id that the tenant knows."""
        return id[len(self._prefix) :]

    def _select(self, what: str) -> list[tuple[Any, ...]]:
        """Read rows of this tenant in their order, with the types of all values checked."""
        columns = what.partition(" FROM ")[0].split(", ")
        with self._reading() as database:
            if database is None:
                return []
            query = f"SELECT {what} WHERE ? IN ('', scope) ORDER BY number"
            rows = database.execute(query, [self._scope]).fetchall()
        if any(type(value) not in _TYPES[column] for row in rows for column, value in zip(columns, row, strict=True)):
            raise CorruptIndexError(f"{self.path} holds values of other types: delete it, or restore a backup")
        return rows

    # -- the file ---------------------------------------------------------------------------------------------

    def copy_to(self, folder: Path) -> None:
        """Copy one consistent state to the folder of another index, in place of what that has."""
        with self._reading() as database:
            if database is None:
                (folder / FEEDBACK).unlink(missing_ok=True)
            else:
                with closing(sqlite3.connect(folder / FEEDBACK)) as copy:
                    database.backup(copy)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others from writing feedback, while the folder is exchanged."""
        with self._writing():
            yield

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, in the file that has the name when it begins."""
        with self._errors():
            while True:
                before = _identity(self.path)
                database = _connect(self.path, create=True)
                try:
                    database.execute("BEGIN IMMEDIATE")
                    if before != _identity(self.path):  # new, or exchanged while this waited
                        continue
                    _check_schema(database, self.path)
                    database.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
                    yield database
                    database.execute("COMMIT")
                    return
                finally:
                    database.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file to read; ``None`` where there is none yet."""
        if not self.path.exists():
            yield None
            return
        with self._errors(), closing(_connect(self.path, create=False)) as database:
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):  # its writer was killed
                yield None
                return
            _check_schema(database, self.path)
            yield database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite into StoreErrors that name the fix."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise StorageFullError(
                    f"no room left for feedback in {self.path}, on the disk or in its {MOST_PAGES:,} pages: make room, "
                    "or delete some (palmette feedback INDEX --delete-before DAYS), and repeat it"
                ) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise ReadOnlyError(
                    f"feedback cannot be written to {self.path} ({error}): change its permissions"
                ) from error
            raise CorruptIndexError(f"{self.path} is damaged ({error}): delete it, or restore a backup") from error


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open a regular file of one name, beside such ones; it gets its tables with the first transaction."""
    for file in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm"))):
        if flaw := flaw_of(file, written=True):
            raise CorruptIndexError(f"{file} {flaw}: an index has none such; copy the files themselves")
    mode = "rwc" if create else "rw" if os.access(path, os.W_OK) else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None)
    limit_steps(database, path, STEPS_PER_BYTE)
    return database


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        state = path.stat()
        return state.st_dev, state.st_ino
    return None


def _check_schema(database: sqlite3.Connection, path: Path) -> None:
    """Raise unless the file has palmette's tables, and no view or trigger; make them in a new file."""
    database.execute("PRAGMA trusted_schema = OFF")
    schema = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
    if not schema and database.in_transaction:
        for statement in _SCHEMA:
            database.execute(statement)
        database.execute("INSERT INTO settings VALUES ('key', ?)", (secrets.token_hex(32),))
    elif schema != _SCHEMA:
        raise CorruptIndexError(f"{path} has other tables than palmette makes: delete it, or restore a backup")


def _setting(database: sqlite3.Connection, name: str) -> str:
    row = database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def _hashed(database: sqlite3.Connection, person: str | None) -> str:
    """Hash the name of a person with the key of this file."""
    if not person:
        return ""
    name = _checked("person", person, LONGEST_NAME).encode("utf-8", "surrogatepass")
    return hmac.new(_setting(database, "key").encode(), name, hashlib.sha256).hexdigest()[:32]


def _checked(what: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise InputError(f"feedback: {what} must be a str of at most {longest:,} characters, got {shown(value)}")
    if not is_unicode(value):
        raise InputError(f"feedback: {what} holds half a surrogate pair, which is no text: {shown(value)}")
    return value
