"""One change of an index in PostgreSQL: a transaction, behind an advisory lock that keeps other writers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg.types.numeric import Int4, Int8

from palmette.arrays import Floats, Ragged, Stored, as_floats
from palmette.errors import StoreError
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import norms
from palmette.lexical.packed import Entries, pack
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT
from palmette.search.plan import ArraySpec
from palmette.store.local.writer import rows_of
from palmette.store.protocols import StoredDocument, as_stored
from palmette.types import Document
from palmette_postgres.database import Connection, Database
from palmette_postgres.schema import (
    DIMENSIONS,
    MOST_INDEXED,
    State,
    escape,
    escaped_ids,
    escaped_json,
    integers,
    is_vector,
    jsonb,
    packed,
    sparse_vector,
    state_text,
    terms_of,
    unescape,
    unpacked,
    values_text,
    vector,
    vector_columns,
)
from palmette_postgres.view import SMALL

INDEX_WORDS = 2000
"""Passages from which on words and metadata have an index: fewer are read through as quickly."""
MOST_COUNTED = 1 << 22
"""Occurrences of terms that a write keeps in memory before it counts them."""
UPSERTED = 1 << 18
"""Counts of terms in one statement."""
MEMORY = "256MB"
"""Memory in which an index is built."""
Terms = NDArray[np.uint64]


class PostgresWriter:
    """A transaction; nothing of it counts before its COMMIT."""

    def __init__(self, db: Database, connection: Connection, state: State, analyser: Analyser) -> None:
        self.db, self._connection, self.before, self._analyser = db, connection, state, analyser
        self._arrays = state.arrays
        self._next, self._documents, self._passages = state.next_key, state.documents, state.passages
        self._length, self._names, self._changed = state.length, dict(state.names), False
        """Digests of the documents that this write has put."""
        self._terms: list[tuple[Terms, Floats, NDArray[np.int32]]] = []
        """Terms that came (1) and went (−1) and are not counted yet, with what each adds to a score at most."""
        self._waiting = 0
        self._failed = False
        self.is_open = True

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A change that stops half way spoils the whole write: it can then only be dropped."""
        if not self.is_open or self._failed:
            raise StoreError("this write is over or has failed; start a new one with `with backend.write() as writer:`")
        self._failed = True
        with self.db.errors():
            yield
        self._failed = False

    def _run(self, statement: str, *values: Any) -> list[Any]:
        cursor = self._connection.execute(statement, values, binary=bool(values))
        return cursor.fetchall() if cursor.description else []

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Digests of the ids that exist."""
        with self._step():
            rows = self._run("SELECT id, digest FROM documents WHERE id = ANY(%s)", escaped_ids(ids))
        return {unescape(id): digest for id, digest in rows}

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists."""
        # 1. check everything before anything is written
        stored = as_stored(documents)
        rows = rows_of(self._arrays, stored, arrays)
        if not rows:
            return
        with self._step():
            self._remove([row.id for row in rows])
            # 2. documents; the key of each is its first passage's
            first = np.cumsum([0, *(len(one.passages) for one in stored)]).tolist()
            passages: list[tuple[int, int, int]] = []  # place in the arrays, key, key of the document
            copied = []
            for place, row in enumerate(rows):
                count = len(stored[place].passages)
                passages += [(first[place] + number, self._next + number, self._next) for number in range(count)]
                texts = (row.metadata, row.fields, row.payload, row.digest, row.passages)
                copied.append((
                    Int8(self._next), escape(row.id), escape(row.text), jsonb(escaped_json(row.metadata)),
                    escape(row.source), Int4(count), jsonb(values_text(row.values)), *texts,
                ))  # fmt: skip
                for name in {name for name, _ in row.values}:
                    self._names[name] = self._names.get(name, 0) + 1
                self._next += count
            self._copy("documents", copied)
            # 3. words of passages
            words, lengths = pack(self._analyser, [text for one in stored for text in one.words()])
            self._documents, self._passages = self._documents + len(rows), self._passages + len(passages)
            self._length += sum(lengths)
            sizes, every = np.array([len(entries) for entries in words]), np.concatenate(words)
            norm = norms(np.array(lengths), max(1.0, self._length / self._passages))
            counts = (every & np.uint64(MAX_COUNT)).astype(np.float32)
            impacts_of = np.split(counts / (counts + np.repeat(norm, sizes)), np.cumsum(sizes)[:-1])
            self._copy("words", [
                (
                    Int8(key), Int8(owner), Int4(length), integers(terms_of(entries)),
                    sparse_vector((entries >> np.uint64(COUNT_BITS)) % np.uint64(DIMENSIONS), impacts), packed(entries),
                )
                for (_, key, owner), entries, length, impacts in zip(passages, words, lengths, impacts_of, strict=True)
            ])  # fmt: skip
            self._count(every, np.concatenate(impacts_of), 1)
            # 4. arrays of passages
            columns = [_column_of(spec, arrays, np.array([at for at, *_ in passages])) for spec in self._arrays]
            fields = [one for column in columns for one in column]
            keyed = ((Int8(key), Int8(owner)) for _, key, owner in passages)
            self._copy("passages", [(*keys, *own) for keys, *own in zip(keyed, *fields, strict=True)])
            self._changed = True

    def _copy(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
            for row in rows:
                copy.write_row(row)

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents; returns the ids that were there."""
        with self._step():
            return self._remove(ids)

    def _remove(self, ids: Sequence[str]) -> list[str]:
        """Delete documents with their passages and words, and take them out of the counts that the state keeps."""
        unique = list(dict.fromkeys(ids))
        gone = 'DELETE FROM documents WHERE id = ANY(%s) RETURNING id, key, "values"'
        rows = self._run(gone, escaped_ids(unique))
        if not rows:
            return []
        keys = [key for _, key, _ in rows]
        self._run("DELETE FROM passages WHERE document = ANY(%s)", keys)
        words = self._run("DELETE FROM words WHERE document = ANY(%s) RETURNING length, entries", keys)
        self._documents, self._passages = self._documents - len(rows), self._passages - len(words)
        self._length -= sum(length for length, _ in words)
        gone_terms = unpacked(b"".join(entries for _, entries in words))
        self._count(gone_terms, np.zeros(len(gone_terms), np.float32), -1)
        for _, _, values in rows:
            for name in (unescape(name) for name, held in values.items() if held):
                self._names[name] = max(0, self._names.get(name, 0) - 1)
        removed = {unescape(id) for id, *_ in rows}
        self._changed = True
        return [id for id in unique if id in removed]

    def note(self, name: str, value: str) -> None:
        """Keep a short text with the documents."""
        with self._step():
            self._run("DELETE FROM notes WHERE name = %s", escape(name))
            self._run("INSERT INTO notes VALUES (%s, %s)", escape(name), escape(value))
            self._changed = True

    def remove_counts(self) -> None:
        """Remove the counts of terms that no passage has any more."""
        with self._step():
            gone = self._run("DELETE FROM counts WHERE passages = 0 RETURNING true")
            self._changed = self._changed or bool(gone)

    def _count(self, entries: Entries, impacts: Floats, sign: int) -> None:
        """Count terms that came or went, now or before the commit."""
        self._terms.append((entries >> np.uint64(COUNT_BITS), impacts, np.full(len(entries), sign, np.int32)))
        self._waiting += len(entries)
        if self._waiting > MOST_COUNTED:
            self._count_waiting()

    def _count_waiting(self) -> None:
        """Bring the table of counts up to date."""
        if not self._waiting:
            return
        terms, impacts, signs = (np.concatenate(parts) for parts in zip(*self._terms, strict=True))
        order = np.argsort(terms, kind="stable")
        terms = terms[order]
        first = np.flatnonzero(np.concatenate([[True], terms[1:] != terms[:-1]]))
        counted, most = np.add.reduceat(signs[order], first), np.maximum.reduceat(impacts[order], first)
        added = (
            "INSERT INTO counts SELECT * FROM unnest(%s::bigint[], %s::integer[], %s::real[]) ON CONFLICT (term) DO "
            "UPDATE SET passages = counts.passages + excluded.passages, most = greatest(counts.most, excluded.most)"
        )
        for start in range(0, len(first), UPSERTED):
            part = slice(start, start + UPSERTED)
            numbers = terms[first[part]].astype(np.int64).tolist()
            self._run(added, numbers, counted[part].tolist(), most[part].tolist())
        self._terms, self._waiting = [], 0

    def prepare(self) -> State | None:
        """Settle what the commit needs; returns the new state, or ``None`` where nothing has changed."""
        with self._step():
            if not self._changed:
                return None
            self._count_waiting()
            names = {name: count for name, count in self._names.items() if count}
            indexed, analysed = self._make_indexes(), self.before.analysed
            if not analysed / 2 <= self._passages <= max(100, 2 * analysed):
                self._run("ANALYZE documents, passages, words, counts")
                analysed = self._passages
            state = self.before.model_copy(update={
                "generation": self.before.generation + 1, "next_key": self._next, "documents": self._documents,
                "passages": self._passages, "length": self._length, "names": names, "indexed": indexed,
                "analysed": analysed,
            })  # fmt: skip
            self._run("UPDATE state SET value = %s", state_text(state))
            return state

    def _make_indexes(self) -> tuple[str, ...]:
        """Make the indexes for which there is enough now: built at once they take less time than grown."""
        indexes: dict[str, str] = {}
        if self._passages >= INDEX_WORDS:
            indexes["words_terms"] = "words USING gin (terms)"
            indexes["documents_values"] = 'documents USING gin ("values")'
        if self._passages > SMALL and self.db.options.exact is not True:
            for spec in self._arrays:
                for name, kind, operator in (
                    vector_columns(spec) if max(spec.shape[-1:], default=0) <= MOST_INDEXED else ()
                ):
                    cast = name if kind == "halfvec" else f"({name}::halfvec({spec.shape[-1]}))"
                    kind_of = "halfvec_l1_ops" if operator == "<+>" else "halfvec_ip_ops"
                    indexes[f"graph_{name}"] = f"passages USING hnsw ({cast} {kind_of})"
        made = [name for name in indexes if name not in self.before.indexed]
        if made:
            self._run(f"SET LOCAL maintenance_work_mem = '{MEMORY}'")
        for name in made:
            self._run(f"CREATE INDEX {name} ON {indexes[name]}")
        return (*self.before.indexed, *made)


def _column_of(spec: ArraySpec, arrays: Mapping[str, Stored], places: NDArray[np.int64]) -> list[Sequence[bytes]]:
    """Fields of an array in the rows of passages, in the order of the table's columns."""
    array, columns = arrays[spec.name], list[Sequence[bytes]]()
    searched = vector_columns(spec)
    if searched:
        numbers = as_floats(np.asarray(array)[places])
        if spec.scales is not None:
            numbers = numbers * np.asarray(arrays[spec.scales])[places][..., None]
        parts = [numbers] if numbers.ndim == 2 else [numbers[:, part] for part in range(numbers.shape[1])]
        columns += [[vector(row, kind) for row in part] for part, (_, kind, _) in zip(parts, searched, strict=True)]
    if spec.searched == "lists":
        lists = np.asarray(array)[places]
        columns.append([integers(np.atleast_1d(row).reshape(-1).astype(np.int64)) for row in lists])
    if not is_vector(spec):
        rows = (array.row(at) if isinstance(array, Ragged) else array[at] for at in places.tolist())
        columns.append([np.ascontiguousarray(row, np.dtype(spec.dtype).newbyteorder("<")).tobytes() for row in rows])
    return columns
