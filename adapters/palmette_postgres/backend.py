"""An index in a schema of a PostgreSQL database with the extension pgvector, behind the same seam as a folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg import errors

from palmette.errors import ConfigError, CorruptIndexError, InputError, LockedError, NotFoundError, StoreError
from palmette.lexical.analyser import analyser_of
from palmette.search.plan import ArraySpec
from palmette.store.filters import FilterLike, parse_filter
from palmette.store.local.folder import Manifest
from palmette.store.protocols import BackendStats, StorageEngine, by_documents, check_built_by, read_array
from palmette_postgres.database import IDLE_WRITE, PAUSE, TRIES, Connection, Database, parse_url
from palmette_postgres.schema import DRAFT, FORMAT, KIND, TABLES, State, parse_state, passages_table, state_text
from palmette_postgres.view import PostgresView
from palmette_postgres.writer import PostgresWriter

SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
CHANGE = "ISOLATION LEVEL READ COMMITTED"  # a standby refuses READ WRITE as a feature that it lacks
STATE = "SELECT value FROM state", ()


class PostgresBackend(StorageEngine):
    """A schema as the storage of an index: many readers, one writer at a time, on whichever machines."""

    engine = "postgres"

    def __init__(self, db: Database, state: State, lock_timeout: float, draft: bool) -> None:
        self.db, self.url, self.lock_timeout, self._kind = db, db.url, lock_timeout, DRAFT if draft else KIND
        try:
            self.arrays = Manifest(state.fingerprint, state.arrays, state.language).arrays
            self.analyser = analyser_of(state.language)
        except (InputError, ConfigError, LookupError) as error:
            raise CorruptIndexError(f"the state of {db.url} is damaged ({error}): restore a backup") from error
        self.fingerprint, self.language, self._identity = state.fingerprint, state.language, state.identity
        self.tenant, self.passages = state.tenant, state.cut
        self._writing, self._memo = threading.Lock(), (-1, dict[object, Any]())

    @staticmethod
    def check_url(url: str) -> None:
        """Raise ConfigError for a URL that names no index, StoreError for one that holds a password."""
        parse_url(url)

    @classmethod
    def create(
        cls,
        url: str,
        arrays: Sequence[ArraySpec],
        *,
        fingerprint: str,
        language: str | None,
        tenant: str | None = None,
        passages: Mapping[str, Any] | None = None,
        model: Path | None = None,
        draft: bool = False,
    ) -> None:
        """Create an empty index, with the checkpoint of a folder, in one transaction.

        A ``draft`` is no index before ``publish``.
        """
        db, state = Database(url), State(
            kind=DRAFT if draft else KIND, format=FORMAT, identity=uuid4().hex, fingerprint=fingerprint,
            arrays=tuple(arrays), language=language, tenant=tenant, cut=None if passages is None else dict(passages),
        )  # fmt: skip
        files = [] if model is None else sorted(model.iterdir())
        try:
            with db.errors(), db.connection() as connection, connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_number(db.schema)])
                encoding = connection.info.parameter_status("server_encoding")
                if encoding != "UTF8":
                    raise ConfigError(f"the database of {url} is encoded in {encoding}: create one with -E UTF8")
                if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [db.schema]).fetchone():
                    raise InputError(f"{url} exists: choose another name, or Index.open it")
                try:
                    with connection.transaction():
                        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                except (errors.FeatureNotSupported, errors.UndefinedFile, errors.InsufficientPrivilege) as error:
                    why = " ".join(str(error).split())[:200]
                    raise StoreError(
                        f"{url} needs the extension pgvector ({why}): install it on the server, and let the database's "
                        "owner run CREATE EXTENSION vector"
                    ) from error
                connection.execute(
                    f"CREATE SCHEMA {db.schema}; SET LOCAL search_path = {db.schema}, {_vector(connection)}"
                )
                connection.execute(TABLES + passages_table(state.arrays))
                connection.execute("INSERT INTO state (value) VALUES (%s)", [state_text(state)])
                for file in files:
                    connection.execute("INSERT INTO model VALUES (%s, %s)", [file.name, file.read_bytes()])
        finally:
            db.close()

    @classmethod
    def open(cls, url: str, *, fingerprint: str | None = None, lock_timeout: float = 10.0, draft: bool = False) -> Self:
        """Open an index."""
        db = Database(url)
        try:
            state = _find(db, DRAFT if draft else KIND)
            if state is None:
                raise NotFoundError(f"there is no index at {url}: no such schema; create it first")
            check_built_by(url, state.fingerprint, fingerprint)
            return cls(db, state, lock_timeout, draft)
        except BaseException:
            db.close()
            raise

    @staticmethod
    def exists(url: str) -> bool:
        """Return whether there is such a schema."""
        db = Database(url)
        try:
            return bool(db.run(("SELECT 1 FROM pg_namespace WHERE nspname = %s", [db.schema])))
        finally:
            db.close()

    def publish(self) -> None:
        """Make an index of a draft."""
        state = self.state().model_copy(update={"kind": KIND})
        self.db.run(("UPDATE state SET value = %s", [state_text(state)]))
        self._kind = KIND

    def discard(self) -> None:
        """Delete a draft."""
        self.state()  # of this draft
        self.db.run((f"DROP SCHEMA {self.db.schema} CASCADE", ()))

    def save_model(self, folder: Path) -> None:
        """Write the checkpoint that lies in the database to a folder."""
        for name, content in self.db.run(("SELECT name, content FROM model", ())):
            (folder / Path(name).name).write_bytes(content)

    def state(self) -> State:
        """Read the state."""
        return self._checked(self.db.run(STATE))

    def _checked(self, rows: list[Any]) -> State:
        """Parse the state, and raise where another index has come to lie here."""
        if not rows:
            raise CorruptIndexError(f"{self.url} has lost its state: restore a backup")
        state = parse_state(self.url, rows[0][0], None)
        if state.identity != self._identity:
            raise StoreError(f"{self.url} holds another index than the one that was opened: open it again")
        if state.kind != self._kind or state.format != FORMAT:
            raise StoreError(f"{self.url} was changed by another version or is no index any more: open it again")
        return state

    @contextmanager
    def read(self, filter: FilterLike = None) -> Iterator[PostgresView]:
        """Open a view: one snapshot."""
        parsed, seconds = parse_filter(filter), self.db.options.timeout
        settings = f"{SNAPSHOT}; SET LOCAL statement_timeout = '{seconds}s'; SET LOCAL jit = off"
        with self.db.transaction(settings, STATE) as (connection, [rows]):
            state = self._checked(rows)
            if self._memo[0] != state.generation:
                self._memo = state.generation, {}
            generation, memo = self._memo
            memo = memo if generation == state.generation else {}
            view = PostgresView(self.db, connection, state, self.analyser, parsed, memo)
            try:
                yield view
            finally:
                view.is_open = False

    @contextmanager
    def write(self) -> Iterator[PostgresWriter]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""
        if not self._writing.acquire(timeout=self.lock_timeout):
            raise LockedError(f"{self.url} is being written by another thread; retry, or give a longer lock_timeout")
        try:
            patience = max(1, int(1000 * self.lock_timeout))
            settings = f"{CHANGE}; SET LOCAL lock_timeout = {patience}; SET LOCAL statement_timeout = 0; "
            settings += f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_WRITE}'"
            lock = "SELECT pg_advisory_xact_lock(%s)", [_lock_number(self.db.schema)]
            own = "SELECT pg_current_xact_id()::text", ()
            with self.db.transaction(settings, lock, ("SELECT value FROM state FOR UPDATE", ()), own) as (
                connection,
                [_, rows, [[number]]],
            ):
                writer = PostgresWriter(self.db, connection, self._checked(rows), self.analyser)
                try:
                    yield writer
                    if writer.prepare() is not None:
                        self._commit(connection, number)
                finally:
                    writer.is_open = False
        finally:
            self._writing.release()

    def _commit(self, connection: Connection, number: str) -> None:
        """Commit; where the answer is lost, ask the server what became of the transaction."""
        try:
            connection.execute("COMMIT")
            return
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if error.sqlstate is not None and not connection.broken:
                raise
            lost = error
        status = "in progress"
        for attempt in range(2 * TRIES):
            time.sleep(PAUSE * 2 ** min(attempt, 4))
            with suppress(StoreError):
                [[status]] = self.db.run(("SELECT pg_xact_status(%s::xid8)", [number]))
                if status != "in progress":
                    break
        if status == "in progress":
            raise StoreError(
                f"{self.url}: the connection broke while this write was committed, and the server does not answer: it "
                "may count or not. Do the same again once the server is there: what is there already is left alone"
            ) from lost
        if status != "committed":
            raise self.db.explain(lost) from lost

    def stats(self) -> BackendStats:
        """Return counts, and the size of all tables and their indexes."""
        sizes = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND "
        [[size]] = self.db.run((f"{sizes} relnamespace = %s::regnamespace", [self.db.schema]))
        state = self.state()
        return BackendStats(state.documents, state.passages, self.url, size, 1, 0, 0)

    def compact(self) -> None:
        """Let the server reuse the room of deleted rows now; it does so by itself in time."""
        self.state()
        with self.write() as writer:
            writer.remove_counts()
        tables = ", ".join(f"{self.db.schema}.{name}" for name in ("documents", "passages", "words", "counts"))
        with self.db.errors(), self.db.connection() as connection:
            connection.execute(f"VACUUM (ANALYZE) {tables}")

    def verify(self) -> None:
        """Count passages and words, and compare each document with its digest and each array with its shape."""
        with self.read() as view:
            keys, state = view.keys(), view.state
            [[count, length, entries, cut_off]] = view.query(
                "SELECT count(*), coalesce(sum(length), 0)::bigint, coalesce(sum(length(entries)) / 6, 0)::bigint, "
                "min(key) FILTER (WHERE mod(length(entries), 6) > 0) FROM words"
            )
            if cut_off is not None:
                raise CorruptIndexError(f"passage {cut_off} of {self.url} is damaged: its words are cut off")
            if (len(keys), count, length) != (state.passages, state.passages, state.length):
                raise CorruptIndexError(f"{self.url} has {len(keys)} of {state.passages} passages: copy it anew")
            seen = 0
            for some in by_documents(view, keys):
                documents = dict(zip(view.document_keys(some).tolist(), view.stored(some), strict=True))
                places = sum(len(one.passages) for one in documents.values())
                seen += len(documents)
                if places != len(some):
                    raise CorruptIndexError(
                        f"{self.url} has {len(some)} of {places} passages of documents: copy it anew"
                    )
                for spec in self.arrays:
                    read_array(view, spec, some)
                view.forget()
            total = view.query("SELECT coalesce(sum(passages), 0)::bigint FROM counts")[0][0]
            if (seen, entries) != (state.documents, total):
                raise CorruptIndexError(
                    f"{self.url}: the documents or counts of words are not what was written: copy it"
                )

    def close(self) -> None:
        """Close the connections."""
        self.db.close()


def _lock_number(schema: str) -> int:
    """Number of the advisory lock of a schema's writers; the database is part of the server's own key."""
    return int.from_bytes(blake2b(f"palmette {schema}".encode(), digest_size=8).digest(), "big", signed=True)


def _vector(connection: Connection) -> str:
    """Schema of the extension pgvector."""
    found = "SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace"
    row = connection.execute(f"{found} WHERE extname = 'vector'").fetchone()
    return str(row[0]) if row else "public"


def _find(db: Database, kind: str) -> State | None:
    """Read the state of a schema, ``None`` where there is none, and note where the types of vectors lie."""
    with db.transaction("READ ONLY", ("SELECT 1 FROM pg_namespace WHERE nspname = %s", [db.schema])) as (
        connection,
        [rows],
    ):
        if not rows:
            return None
        db.search_path = f"{db.schema}, {_vector(connection)}"
        try:
            found = connection.execute(f"SELECT value FROM {db.schema}.state").fetchone()
        except errors.UndefinedTable as error:
            raise NotFoundError(f"{db.url} is not a palmette index: another program's schema") from error
    if found is None:
        raise CorruptIndexError(f"{db.url} has lost its state: restore a backup")
    return parse_state(db.url, found[0], kind)
