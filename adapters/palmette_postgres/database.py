"""A PostgreSQL database by its URL: options, connections, transactions, and its errors in our words.

A view is one transaction, REPEATABLE READ and READ ONLY: it sees one snapshot. A write is another, and its COMMIT is
the only moment at which anything of it counts; an advisory lock of the transaction keeps other writers out, and the
server lets go of it when the writer's connection ends, however it ends.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg import errors
from pydantic import Field

from palmette.config import Config, check_keys
from palmette.errors import (
    ConfigError,
    CorruptIndexError,
    LockedError,
    NotFoundError,
    PalmetteError,
    ReadOnlyError,
    StorageFullError,
    StoreError,
)

PLACES = "postgresql://host:5432/database?index=name"
"""What URLs look like."""
LIBPQ = frozenset(
    "host hostaddr port user service passfile sslmode sslrootcert sslcert sslkey connect_timeout application_name "
    "target_session_attrs channel_binding gssencmode".split()
)
"""Parameters of libpq that a URL may hold beside the options of an index."""
SECRETS = ("password", "sslpassword")
TRIES = 5
"""Times that a transaction is begun where the connection breaks before anything was read or written."""
PAUSE = 0.1
"""Seconds before the second try; each further pause is twice as long."""
IDLE_WRITE = "15min"
"""How long a writer may pause before the server ends its transaction: its machine may be gone for good."""
Connection = psycopg.Connection[Any]
_SCHEMA_NAME = re.compile(r"(?!pg_|public$|information_schema$)[a-z][a-z0-9_]{0,55}")
_BROKEN = (psycopg.OperationalError, psycopg.InterfaceError)
_EXPLAINED: list[tuple[Any, type[PalmetteError], str]] = [
    (errors.LockNotAvailable, LockedError, " is being written; retry, or give a longer lock_timeout"),
    (errors.ReadOnlySqlTransaction, ReadOnlyError, " cannot be written on this server, a standby: use the primary"),
    (errors.InsufficientPrivilege, ReadOnlyError, ": this role may not do that ({why}); grant it, or use another role"),
    ((errors.DiskFull, errors.OutOfMemory), StorageFullError, " has no room left ({why}); the index is as it was"),
    (errors.QueryCanceled, StoreError, ": a search took more than {timeout} s ({why}); retry, or give &timeout="),
    (errors.InvalidCatalogName, NotFoundError, ": there is no such database ({why}); create it with createdb"),
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        StoreError,
        " refuses the role or its password ({why}): set PGUSER and PGPASSWORD",
    ),
    (
        (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn, errors.UndefinedObject),
        StoreError,
        " is no longer there, or not whole ({why}): open it again, or create it",
    ),
    (
        (errors.DataCorrupted, errors.IndexCorrupted),
        CorruptIndexError,
        " is damaged ({why}): restore a backup, or copy the index anew",
    ),
    (
        (errors.SerializationFailure, errors.DeadlockDetected),
        StoreError,
        ": another transaction was in the way ({why}); retry",
    ),
]
"""Errors of the server: what each is for us, and the end of its text."""


class PostgresOptions(Config):
    """Options in a URL: ``?index=docs&ef=400``; those of libpq may stand beside them."""

    index: str
    """Name of the index: the schema that its tables lie in."""
    timeout: Annotated[int, Field(ge=1)] = 60
    """Seconds until a statement of a search is given up."""
    connections: Annotated[int, Field(ge=2)] = 16
    """Most connections of this process: each open view has one, and so has a write."""
    ef: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Candidates that a search in the graph keeps: how deep it looks; ``None`` for twice as many as are needed."""
    exact: bool | None = None
    """Compare every vector; ``None`` does so up to 20,000 passages."""


def parse_url(url: str) -> tuple[str, PostgresOptions]:
    """Return libpq's connection string and the options of a URL; one that holds a password is refused.

    A URL is printed, logged and pickled with what was opened by it: a secret must not be part of it.
    """
    head = url.split("?")[0]
    head = head.partition("://")[0] + "://" + head.partition("://")[2].rpartition("@")[2]
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        secret, port = parts.password is not None or any(name in given for name in SECRETS), parts.port
    except ValueError as error:
        raise ConfigError(f"{head!r} names no index ({error}): write {PLACES}") from error
    if secret:
        raise StoreError(  # no ValueError, beside which pydantic would print the URL
            f"the URL of {head!r} holds a password, which would be printed and saved with it: take it out, and set the "
            "environment variable PGPASSWORD, or keep it in ~/.pgpass or in a service file"
        )
    database = parts.path.lstrip("/")
    if "index" not in given or "/" in database or parts.fragment or not (database or "service" in given):
        raise ConfigError(f"{head!r} names no index: write {PLACES}")
    if not _SCHEMA_NAME.fullmatch(given["index"]):
        raise ConfigError(
            f"index={given['index']!r} cannot name an index. It becomes a schema of the database: write up to 56 small "
            "letters, digits and _, beginning with a letter, and not pg_, public or information_schema"
        )
    own = {name: text for name, text in given.items() if name not in LIBPQ}
    check_keys("the URL of an index in PostgreSQL", own, [*PostgresOptions.model_fields, *LIBPQ])
    values: dict[str, Any] = dict(own)
    for name, text in own.items():
        if name != "index":  # a number, true or false
            values[name] = int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)
    options = PostgresOptions(**values)
    libpq = {name: text for name, text in given.items() if name in LIBPQ}
    for name, value in (("host", parts.hostname), ("port", port), ("user", parts.username), ("dbname", database)):
        if value:
            libpq[name] = unquote(str(value))
    return psycopg.conninfo.make_conninfo("", **libpq), options


class Database:
    """The schema of an index: connections to it, and transactions."""

    def __init__(self, url: str) -> None:
        self.conninfo, self.options = parse_url(url)
        self.url, self.schema, self.is_open = url, self.options.index, True
        self.search_path = f"{self.schema}, public"
        self._idle: list[Connection] = []
        weakref.finalize(self, _close, self._idle, os.getpid())  # an index may be let go without being closed
        self._free = threading.BoundedSemaphore(self.options.connections)
        self._pid = os.getpid()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection, idle or new; one that broke is not used again."""
        if self._pid != os.getpid():  # forked: connections and locks are the other process's
            self._idle, self._free = [], threading.BoundedSemaphore(self.options.connections)
            self._pid = os.getpid()
            weakref.finalize(self, _close, self._idle, self._pid)
        if not self.is_open:
            raise StoreError(f"the index {self.url} is closed; open it again")
        free = self._free
        if not free.acquire(timeout=self.options.timeout):
            raise StoreError(
                f"{self.url}: all {self.options.connections} connections of this process have been busy for "
                f"{self.options.timeout} s; retry, or allow more: &connections={2 * self.options.connections}"
            )
        try:
            # no prepared statements, which a pooler in transaction mode cannot keep; a peer that is gone is found out;
            # texts travel as they are written, whatever PGCLIENTENCODING or the role say
            connection = (
                self._idle.pop()
                if self._idle
                else psycopg.connect(
                    self.conninfo, autocommit=True, prepare_threshold=None, keepalives_idle=60, keepalives_interval=10,
                    client_encoding="utf8",
                )
            )  # fmt: skip
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            free.release()

    def _give_back(self, connection: Connection) -> None:
        if not connection.closed and not _is_idle(connection):
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        if _is_idle(connection) and self.is_open and self._pid == os.getpid():
            self._idle.append(connection)
        else:
            connection.close()

    @contextmanager
    def transaction(self, begin: str, *first: tuple[str, Sequence[Any]]) -> Iterator[tuple[Connection, list[Any]]]:
        """Run a transaction; yields its connection and the rows of its ``first`` statements.

        Where the connection breaks before these are answered, nothing was acknowledged, and they are tried again.
        Leaving it without a COMMIT rolls back.
        """
        with self.errors():
            for attempt in range(TRIES):
                with ExitStack() as stack:
                    try:
                        connection = stack.enter_context(self.connection())
                        connection.execute(f"BEGIN {begin}; SET LOCAL search_path = {self.search_path}")
                        rows = [connection.execute(*statement).fetchall() for statement in first]
                    except _BROKEN as error:
                        if attempt == TRIES - 1 or not self._may_pass(error):
                            raise
                    else:
                        yield connection, rows
                        return
                _close(self._idle, self._pid)  # a server that was started again has ended all of them
                time.sleep(PAUSE * 2**attempt)

    @staticmethod
    def _may_pass(error: psycopg.Error) -> bool:
        """Return whether the same again may succeed: the connection broke, or the server starts or stops."""
        passing = errors.CannotConnectNow | errors.SerializationFailure | errors.AdminShutdown | errors.CrashShutdown
        refused = "FATAL" in str(error) and not re.search("starting up|shutting down|recovery", str(error))
        return isinstance(error, passing) or (error.sqlstate is None and not refused)

    def run(self, *statements: tuple[str, Sequence[Any]]) -> list[Any]:
        """Run statements in one transaction: return the rows of the last."""
        with self.errors(), self.connection() as connection, connection.transaction():
            connection.execute(f"SET LOCAL search_path = {self.search_path}")
            rows: list[Any] = []
            for statement in statements:
                cursor = connection.execute(*statement)
                rows = cursor.fetchall() if cursor.description else []
            return rows

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what the server or the client refuses as palmette's own errors."""
        try:
            yield
        except psycopg.Error as error:
            raise self.explain(error) from error

    def explain(self, error: psycopg.Error) -> PalmetteError:
        """Turn an error of the database into one that names cause and fix."""
        why = " ".join(str(error).split())[:300]
        for kinds, made, text in _EXPLAINED:
            if isinstance(error, kinds):
                return made(f"{self.url}{text.format(why=why, timeout=self.options.timeout)}")
        if error.sqlstate is None and "FATAL" in why:  # before there was a connection
            if "does not exist" in why and "database" in why:
                return NotFoundError(f"{self.url}: there is no such database ({why}); create it with createdb")
            return StoreError(f"{self.url} refuses the connection ({why}): check PGUSER, PGPASSWORD and the server")
        if isinstance(error, _BROKEN):
            return StoreError(f"{self.url}: no connection, or it broke ({why}); is the server running? Retry")
        return StoreError(f"{self.url}: the database refuses ({error.sqlstate}: {why})")

    def close(self) -> None:
        """Close all idle connections, and each that is in use when it is given back."""
        self.is_open = False
        _close(self._idle, self._pid)


def _is_idle(connection: Connection) -> bool:
    """Return whether a connection is whole, and in no transaction."""
    return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _close(idle: list[Connection], pid: int) -> None:
    """Close connections that this process has opened."""
    while idle and pid == os.getpid():
        with suppress(IndexError):
            idle.pop().close()
