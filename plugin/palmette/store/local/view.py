"""Reading a local index: one consistent state of rows, arrays and filter."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import apsw
import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Mask, Ragged, Rows
from palmette.errors import NotFoundError, StoreError
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import PostingsOfSome, WordSearcher, WordSource, query_terms
from palmette.search.flat import ExactEngine
from palmette.search.lists import add_sizes
from palmette.search.plan import ArraySpec, Candidates, SearchPlan, WordMatches
from palmette.store.filters import Filter, Scoped, matches
from palmette.store.local.database import (
    DATABASE,
    DOCUMENT_COLUMNS,
    OpenedFolder,
    keys_of,
    parsed,
    read_number,
    rows_among,
    storage_errors,
    stored_of,
)
from palmette.store.local.filters import check_names, select_keys
from palmette.store.local.segments import Segment, damaged
from palmette.store.memory import execute
from palmette.store.protocols import StoredDocument, View, find_array

_T = TypeVar("_T")
_RETRIES = 100  # times a reader may be overtaken by writers that merge segments away under it
_KEYS_KEPT = 1 << 23  # keys remembered for recent filters: 64 MiB
_WORDS_KEPT = 1 << 22  # documents whose words are remembered for recent scopes: about 100 MiB


class Snapshot:
    """The arrays of one generation, shared by all views of it."""

    def __init__(self, generation: int, segments: Sequence[Segment], deleted: Keys) -> None:
        self.generation, self.segments = generation, segments
        for before, after in pairwise(segments):
            if before.keys[-1] >= after.keys[0]:
                raise damaged(after.path / "keys.npy", f"keys above {before.keys[-1]}", f"{after.keys[0]}")
        living = [np.setdiff1d(s.keys, deleted, True) if len(deleted) else s.keys for s in segments]
        self.keys: Keys = np.concatenate([np.empty(0, np.int64), *living])
        """Keys of passages."""
        self._alive = [None if len(k) == s.count else s.rows(k) for k, s in zip(living, segments, strict=True)]
        cut = any(segment.numbers.any() for segment in segments)
        numbers = (
            s.numbers if rows is None else s.numbers[rows] for s, rows in zip(segments, self._alive, strict=True)
        )
        self._heads = self.keys - np.concatenate([*numbers]) if cut else self.keys
        """For each passage the key of its document."""
        self._filtered: OrderedDict[Filter, Keys] = OrderedDict()
        self._scoped: OrderedDict[Filter, WordSearcher] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def first_keys(self) -> Keys:
        """Keys of all documents."""
        return self.keys if self._heads is self.keys else self.keys[self._heads == self.keys]

    def document_keys(self, keys: Keys) -> Keys:
        """Keys of the documents of passages that are all here."""
        return keys if self._heads is self.keys else self._heads[np.searchsorted(self.keys, keys)]

    def passages_of(self, key: int) -> range:
        """Keys of the passages of a document that is here."""
        return range(key, key + int(np.searchsorted(self._heads, key, "right") - np.searchsorted(self._heads, key)))

    def select(self, connection: apsw.Connection, filter: Filter) -> Keys:
        """Select the keys that pass; recent filters are remembered, since requests repeat them (a tenant, say)."""
        keys, passed = self.keys, Scoped((filter,))
        scoped = isinstance(filter, Scoped)
        levels = filter.levels() if isinstance(filter, Scoped) else [(None, filter)]
        for place, (_, level) in enumerate(levels):
            passed = Scoped((passed, level)) if place else Scoped((level,))
            known = self._known(self._filtered, passed)
            if known is None:
                if len(keys):  # in a scope only names that occur there are known, and told
                    check_names(connection, level, keys if place else None, hint=place > 0 or not scoped)
                documents = self.document_keys(keys)
                passing = select_keys(connection, level, keys if documents is keys else keys[documents == keys])
                known = passing if documents is keys else keys[np.isin(documents, passing)]
                self._keep(self._filtered, passed, known, _KEYS_KEPT)
            keys = known
        return keys

    def words_within(self, scope: Filter, keys: Keys) -> WordSearcher:
        """Search by words in a scope, where only its own documents, of these ``keys``, are counted."""
        searcher = self._known(self._scoped, scope)
        if searcher is None:
            rows_of_segments = ((segment, segment.rows(keys)) for segment in self.segments)
            sources = [
                WordSource(s.keys[rows], PostingsOfSome(s.words, rows)) for s, rows in rows_of_segments if len(rows)
            ]
            searcher = WordSearcher(sources)
            self._keep(self._scoped, scope, searcher, _WORDS_KEPT)
        return searcher

    def _known(self, cache: OrderedDict[Filter, _T], filter: Filter) -> _T | None:
        with self._lock:
            if filter in cache:
                cache.move_to_end(filter)
            return cache.get(filter)

    def _keep(self, cache: OrderedDict[Filter, Any], filter: Filter, value: Any, most: int) -> None:
        """Remember a value until the recent ones have more than ``most`` documents together."""
        with self._lock:
            cache[filter] = value
            while sum(map(len, cache.values())) > most and len(cache) > 1:
                cache.popitem(last=False)

    @cached_property
    def words(self) -> WordSearcher:
        """Search by words."""
        return WordSearcher(
            [WordSource(s.keys, s.words, alive) for s, alive in zip(self.segments, self._alive, strict=True)]
        )

    def rows(self, keys: Keys) -> list[Rows | None]:
        """Find the rows of a view's keys in each segment; ``None`` for all of a segment's rows."""
        return self._alive if keys is self.keys else [segment.rows(keys) for segment in self.segments]

    def segments_with(self, keys: Keys) -> Iterator[tuple[Segment, Rows | None]]:
        """Yield the segments that hold some of a view's keys, and the rows to search (``None`` for all)."""
        for segment, rows in zip(self.segments, self.rows(keys), strict=True):
            if rows is None or len(rows):
                yield segment, None if rows is None or len(rows) == segment.count else rows

    def locate(self, keys: Keys) -> Iterator[tuple[Segment, Rows, slice]]:
        """Find rising keys (all present, some perhaps repeated): segment, rows, and their places in ``keys``."""
        start = 0
        for segment in self.segments:
            stop = int(np.searchsorted(keys, segment.keys[-1], side="right"))
            if stop > start:
                yield segment, segment.rows(keys[start:stop]), slice(start, stop)
            start = stop

    def gather_ragged(self, name: str, keys: Keys) -> Ragged:
        """Copy the rows of one or more ``keys`` (any order, all present)."""
        order, parts = np.argsort(keys, kind="stable"), list[Ragged]()
        back = np.argsort(order)
        for segment, rows, _ in self.locate(keys[order]):
            alone = len(rows) == len(keys)
            parts.append(segment.arrays[name].take(rows[back] if alone else rows))
        return parts[0] if alone else Ragged.concatenate(parts).take(back)

    def gather(self, name: str, keys: Keys, out: NDArray[Any]) -> None:
        """Copy the rows of ``keys`` (any order, all present) into ``out``."""
        if (keys[1:] >= keys[:-1]).all():
            for segment, rows, places in self.locate(keys):
                segment.arrays[name].take(rows, axis=0, out=out[places], mode="clip")  # others copy twice
            return
        order = np.argsort(keys, kind="stable")
        for segment, rows, places in self.locate(keys[order]):
            out[order[places]] = segment.arrays[name][rows]


class Snapshots:
    """Shared by views and writers of an index: the latest snapshot, and reading and writing of arrays and words."""

    def __init__(
        self,
        opened: OpenedFolder,
        arrays: Sequence[ArraySpec],
        analyser: Analyser,
        engine: ExactEngine,
        *,
        durable: bool,
    ) -> None:
        self.opened, self.arrays, self.durable = opened, {spec.name: spec for spec in arrays}, durable
        self.folder = opened.path
        self.analyser, self.engine = analyser, engine
        self.latest: Snapshot | None = None
        self._loading, self._pid = threading.Lock(), os.getpid()

    def open_snapshot(self, connection: apsw.Connection, use: Callable[[Snapshot], object] | None = None) -> Snapshot:
        """Start a read transaction, and return the arrays that belong to it.

        Begins again where a writer has merged files away meanwhile, which ``use`` of them may be the first to miss.
        """
        if self._pid != os.getpid():  # forked: a thread that is not here may have held the lock
            self._pid, self._loading, self.latest = os.getpid(), threading.Lock(), None
        for _ in range(_RETRIES):
            connection.execute("BEGIN")
            generation = read_number(connection, "generation")
            snapshot = self.latest
            try:
                if snapshot is None or snapshot.generation != generation:
                    snapshot = self._load(connection, generation)
                if use is not None:
                    use(snapshot)
                return snapshot
            except FileNotFoundError as error:
                connection.execute("ROLLBACK")
                if read_number(connection, "generation") == generation:
                    self.opened.check()  # the file is missing in another index, which has been put in its place
                    raise damaged(Path(error.filename), "a segment file", "no file") from error
        raise StoreError(f"{self.folder} is being rewritten faster than it can be read; retry")

    def _load(self, connection: apsw.Connection, generation: int) -> Snapshot:
        with self._loading:
            snapshot = self.latest
            if snapshot is None or snapshot.generation != generation:
                deleted = keys_of(connection.execute("SELECT key FROM dead ORDER BY key"))
                snapshot = Snapshot(generation, self.segments(connection), deleted)
                if self.latest is None or self.latest.generation < generation:
                    self.latest = snapshot
        return snapshot

    def segments(self, connection: apsw.Connection) -> list[Segment]:
        """Return the segments that this transaction sees, reusing those that are open."""
        known = {segment.name: segment for segment in self.latest.segments} if self.latest else {}
        query = "SELECT name, count, files FROM segments ORDER BY position"
        rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
        return [
            known.get(name) or Segment(self.folder, name, count, parsed(files), self.arrays.values())
            for name, count, files in rows
        ]


class LocalView(View):
    """One state of a local index under a filter. Threads may share it while it is open."""

    def __init__(self, connection: apsw.Connection, shared: Snapshots, filter: Filter | None) -> None:
        self._connection, self._shared, self._filter = connection, shared, filter
        self._snapshot, self._lock = shared.open_snapshot(connection), threading.Lock()
        self._keys = self._snapshot.keys if filter is None else self._snapshot.select(connection, filter)
        self._scope = filter.parts[0] if isinstance(filter, Scoped) else None
        self._scope_keys = None if self._scope is None else self._snapshot.select(connection, Scoped((self._scope,)))
        self._pid = os.getpid()
        self.is_open, self._released = True, False

    def release(self) -> None:
        """End the read transaction, which keeps the log from being cut; the files of arrays are open already."""
        with self._lock, storage_errors(self._shared.folder):
            self._check_open()
            if not self._released:
                self._released = True
                self._connection.execute("ROLLBACK")

    def _check_open(self, *, documents: bool = False) -> None:
        """Raise unless arrays, or ``documents`` too, can be read."""
        if self._pid != os.getpid():
            raise StoreError("this view is open in the process that was forked: open another here")
        if not self.is_open:
            raise StoreError("this view is closed: use it inside its `with backend.read() as view:` block")
        if documents and self._released:  # the connection would read the latest state
            raise StoreError("this view has been released: only its arrays can be read")

    def _query(self, query: str, values: Sequence[str | int]) -> list[tuple[Any, ...]]:
        with self._lock, storage_errors(self._shared.folder):
            self._check_open(documents=True)
            return list(rows_among(self._connection, query, values))

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Keys:
        """All keys that pass the filter, ascending."""
        return self._keys.copy()

    def scope_keys(self) -> Keys | None:
        """Keys of all documents in the scope."""
        return self._scope_keys

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Keys of the passages of the documents of some ids that pass the filter."""
        rows = self._query("SELECT id, key FROM documents WHERE id IN ({})", list(ids))
        visible = self._holds(np.array([key for _, key in rows], np.int64)).tolist()
        return {id: self._snapshot.passages_of(key) for (id, key), passes in zip(rows, visible, strict=True) if passes}

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Keys of passages' documents."""
        return self._snapshot.document_keys(self._check_keys(keys))

    def count_documents(self) -> int:
        """Number of documents that pass the filter."""
        return int((self._snapshot.document_keys(self._keys) == self._keys).sum())

    def ids_of_source(self, source: str) -> dict[str, str]:
        """Ids and digests of the documents of a source that pass the filter."""
        query = "SELECT id, digest, key FROM documents WHERE source <> '' AND source IN ({})"
        rows = self._query(query, [source])
        visible = self._holds(np.array([key for *_, key in rows], np.int64)).tolist()
        return {id: digest for (id, digest, _), passes in zip(rows, visible, strict=True) if passes}

    def _holds(self, keys: Keys) -> Mask:
        after = np.searchsorted(self._keys, keys, side="right")
        inside: Mask = after > np.searchsorted(self._keys, keys)
        return inside

    def _check_keys(self, keys: Sequence[int] | Keys) -> Keys:
        self._check_open()
        checked = np.asarray(keys, np.int64).reshape(-1)
        visible = self._holds(checked)
        if not visible.all():
            raise NotFoundError(
                f"key {checked[~visible][0]} is not in this view: it was never there, or fails its filter"
            )
        return checked

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Whole documents of passages, in the order of ``keys``; each is read once."""
        owners = self.document_keys(keys).tolist()
        stored = {key: document for key, document, _ in self.scan(list(dict.fromkeys(owners)))}
        return [stored[key] for key in owners]

    def scan(self, keys: Sequence[int]) -> Iterator[tuple[int, StoredDocument, int]]:
        """Read documents by the keys of their first passages, each when the one before it is done with."""
        query, missing = f"SELECT key, {DOCUMENT_COLUMNS} FROM documents WHERE key IN ({{}})", set(keys)
        database = self._shared.folder / DATABASE
        with self._lock, storage_errors(self._shared.folder):
            self._check_open(documents=True)
            for key, *row in rows_among(self._connection, query, keys):
                missing.discard(key)
                stored = stored_of(*row)
                if self._filter and not matches(self._filter, stored.document.metadata, stored.document.key):
                    raise damaged(database, f"metadata of document {stored.document.key!r} that pass", "others")
                yield key, stored, sum(map(len, row)) - len(row[1])
        if missing:
            raise damaged(database, f"a row for document {min(missing)}", "none")

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids of passages' documents in the order of ``keys``."""
        owners = self.document_keys(keys).tolist()
        rows = self._query("SELECT key, id FROM documents WHERE key IN ({})", list(dict.fromkeys(owners)))
        ids = {key: str(id) for key, id in rows}
        if missing := set(owners).difference(ids):
            raise damaged(self._shared.folder / DATABASE, f"a row for document {min(missing)}", "none")
        return [ids[key] for key in owners]

    def note(self, name: str) -> str | None:
        """Text that a writer noted of all documents; none in a scope."""
        if self._scope is not None:
            return None
        rows = self._query("SELECT value FROM meta WHERE name IN ({})", [f"note {name}"])
        return str(rows[0][0]) if rows else None

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array: [len(keys), *shape]."""
        passage_keys, spec = self._check_keys(keys), find_array(self._shared.arrays, array)
        rows: NDArray[np.generic] = np.empty((len(passage_keys), *spec.shape), spec.dtype)
        self._snapshot.gather(array, passage_keys, rows)
        return rows

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array, of len(keys) documents."""
        passage_keys, spec = self._check_keys(keys), find_array(self._shared.arrays, array, ragged=True)
        if not len(passage_keys):
            return Ragged.empty(0, spec.shape, spec.dtype)
        return self._snapshot.gather_ragged(array, passage_keys)

    def list_sizes(self, array: str) -> Rows:
        """Number of documents in each list: [L], up to the last list that has any."""
        self._check_open()
        name, sizes = find_array(self._shared.arrays, array).name, np.zeros(0, np.int64)
        for segment, rows in self._snapshot.segments_with(self._keys):
            sizes = add_sizes(sizes, segment.list_order(name).sizes(rows))
        return sizes

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best documents by the words they share with a text; of ``only`` these, in their order."""
        self._check_open()
        query, searcher = query_terms(self._shared.analyser, text), self._searcher()
        if only is not None:
            return searcher.matches(query, only, searcher.scores(query, self._check_keys(only)))
        rows = self._snapshot.rows(self._keys) if self._scope is None else searcher.rows(self._keys)
        return searcher.matches(query, *searcher.best(query, rows, k))

    def word_parts(self, text: str, key: int) -> Floats:
        """[T] what each word of a text, and each pair, adds to a document's score."""
        return self._searcher().parts(query_terms(self._shared.analyser, text), int(self._check_keys([key])[0]))

    def _searcher(self) -> WordSearcher:
        if self._scope is None or self._scope_keys is None:
            return self._snapshot.words
        return self._snapshot.words_within(self._scope, self._scope_keys)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best documents of every row of a plan: [Q, min(k, len(self))]."""
        self._check_open()
        for name in plan.arrays:
            find_array(self._shared.arrays, name)
        keys = self._keys if plan.only is None else self._check_keys(plan.only)
        return execute(plan, k, list(self._snapshot.segments_with(keys)), self._shared.engine)
