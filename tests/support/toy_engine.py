"""A storage engine in a dict of this process: the least that the contract asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette import Document
from palmette.arrays import Floats, Keys, Ragged, Rows, Stored
from palmette.errors import ConfigError, InputError, LockedError, ModelMismatchError, NotFoundError, StoreError
from palmette.lexical.analyser import analyser_of
from palmette.lexical.bm25 import WordSearcher, WordSource, query_terms
from palmette.lexical.postings import PostingsBuilder
from palmette.search.flat import ExactEngine
from palmette.search.plan import ArraySpec, Candidates, SearchPlan, WordMatches
from palmette.store.filters import Filter, FilterLike, Scoped, flatten, matches, names_in, parse_filter, unknown_name
from palmette.store.local.writer import rows_of
from palmette.store.memory import ArraySegment, execute
from palmette.store.protocols import BackendStats, StorageEngine, StoredDocument, View, as_stored, find_array


@dataclass(frozen=True)
class State:
    """What a commit left: documents by the key of their first passage, rows of arrays by key."""

    documents: dict[int, StoredDocument] = field(default_factory=dict)
    rows: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    next_key: int = 0


STORES: dict[str, Any] = {}


class ToyEngine(StorageEngine):
    """Indexes in ``STORES``."""

    engine = "toy"

    def __init__(self, url: str, store: Any, lock_timeout: float) -> None:
        self.url, self.lock_timeout, self._store, self._open = url, lock_timeout, store, True
        self.arrays, self.fingerprint, self.language = store.arrays, store.fingerprint, store.language
        self.tenant, self.passages = store.tenant, store.passages

    @staticmethod
    def check_url(url: str) -> None:
        if not url.partition("://")[2]:
            raise ConfigError(f"{url!r} names no index: write toy://name")

    @staticmethod
    def exists(url: str) -> bool:
        return url in STORES

    @classmethod
    def create(cls, url: str, arrays: Sequence[ArraySpec], *, model: Path | None = None, **how: Any) -> None:
        if url in STORES:
            raise InputError(f"{url} exists")
        files = {} if model is None else {file.name: file.read_bytes() for file in model.iterdir()}
        given = {"arrays": tuple(arrays), "tenant": None, "passages": None, "draft": False, **how}
        STORES[url] = SimpleNamespace(model=files, state=State(), lock=threading.Lock(), **given)

    @classmethod
    def open(cls, url: str, *, fingerprint: str | None = None, lock_timeout: float = 10.0, draft: bool = False) -> Self:
        store = STORES.get(url)
        if store is None or store.draft != draft:
            raise NotFoundError(f"there is no index at {url}")
        if fingerprint not in (None, store.fingerprint):
            raise ModelMismatchError(f"{url} was built by {store.fingerprint}, not by {fingerprint}")
        return cls(url, store, lock_timeout)

    def publish(self) -> None:
        self._store.draft = False

    def discard(self) -> None:
        del STORES[self.url]

    def save_model(self, folder: Path) -> None:
        for name, content in self._store.model.items():
            (folder / name).write_bytes(content)

    def _state(self) -> State:
        if not self._open:
            raise StoreError(f"{self.url} is closed; open it again")
        return self._store.state

    @contextmanager
    def read(self, filter: FilterLike = None) -> Iterator[ToyView]:
        yield ToyView(self._state(), self.arrays, self.language, parse_filter(filter))

    @contextmanager
    def write(self) -> Iterator[ToyWriter]:
        if not self._store.lock.acquire(timeout=self.lock_timeout):
            raise LockedError(f"{self.url} is being written; retry")
        try:
            writer = ToyWriter(self._state(), self.arrays)
            yield writer
            self._store.state, writer.state = writer.state, State()  # a writer kept for longer changes nothing
        finally:
            self._store.lock.release()

    def stats(self) -> BackendStats:
        state = self._state()
        return BackendStats(len(state.documents), len(state.rows), self.url, 0, 1, 0, 0)

    def verify(self) -> None:
        pass  # nothing lies on a disk, and nothing is kept that was deleted

    compact = verify

    def close(self) -> None:
        self._open = False


class ToyWriter:
    """A copy of the last commit."""

    def __init__(self, state: State, arrays: tuple[ArraySpec, ...]) -> None:
        self.state = replace(state, documents=dict(state.documents), rows=dict(state.rows), notes=dict(state.notes))
        self._arrays = arrays

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        every = [one.document for one in self.state.documents.values()]
        return {document.key: document.digest for document in every if document.key in ids}

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        fresh = rows_of(self._arrays, stored := as_stored(documents), arrays)
        passages = range(sum(len(one.passages) for one in stored))
        given = {name: arrays[name] for name in arrays}
        rows = [{n: a.row(at) if isinstance(a, Ragged) else a[at] for n, a in given.items()} for at in passages]
        self.delete([row.id for row in fresh])  # from here on nothing fails
        key = self.state.next_key
        self.state.rows.update(enumerate(rows, key))
        for one in stored:
            self.state.documents[key] = one
            key += len(one.passages)
        self.state = replace(self.state, next_key=key)

    def delete(self, ids: Sequence[str]) -> list[str]:
        keys = {one.document.key: key for key, one in self.state.documents.items()}
        gone = [id for id in dict.fromkeys(ids) if id in keys]
        for id in gone:
            for key in range(keys[id], keys[id] + len(self.state.documents.pop(keys[id]).passages)):
                del self.state.rows[key]
        return gone

    def note(self, name: str, value: str) -> None:
        self.state.notes[name] = value


class ToyView(View):
    """One commit; everything is compared with everything."""

    def __init__(self, state: State, arrays: Sequence[ArraySpec], language: str | None, filter: Filter | None) -> None:
        self._state, self._specs, self._analyser = state, {spec.name: spec for spec in arrays}, analyser_of(language)
        self._scope = filter.parts[0] if isinstance(filter, Scoped) else None
        if filter is not None and state.documents:
            for outer, level in filter.levels() if isinstance(filter, Scoped) else [(None, filter)]:
                within = [one.document.metadata for one in self._passing(outer).values()]
                known = {name for metadata in within for name, values in flatten(metadata).items() if values}
                for name in set(names_in(level)).difference(known):
                    raise unknown_name(name, "")
        self._documents, self._scoped = self._passing(filter), self._passing(self._scope)
        self._keys = self._keys_in(self._documents)
        self._owners = {key: first for first, own in self._ranges(self._documents) for key in own}

    def _passing(self, filter: Filter | None) -> dict[int, StoredDocument]:
        every = self._state.documents.items()
        return {key: one for key, one in every if matches(filter, one.document.metadata, one.document.key)}

    @staticmethod
    def _ranges(documents: Mapping[int, StoredDocument]) -> list[tuple[int, range]]:
        return [(key, range(key, key + len(one.passages))) for key, one in documents.items()]

    def _keys_in(self, documents: Mapping[int, StoredDocument]) -> Keys:
        return np.array([key for _, own in self._ranges(documents) for key in own], np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Keys:
        return self._keys.copy()

    def scope_keys(self) -> Keys | None:
        return None if self._scope is None else self._keys_in(self._scoped)

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        order = np.asarray(keys, np.int64).reshape(-1).tolist()
        for key in order:
            if key not in self._owners:
                raise NotFoundError(f"key {key} is not in this view")
        return np.array([self._owners[key] for key in order], np.int64)

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        return [self._documents[key] for key in self.document_keys(keys).tolist()]

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        found = {self._documents[key].document.key: own for key, own in self._ranges(self._documents)}
        return {id: found[id] for id in ids if id in found}

    def ids_of_source(self, source: str) -> dict[str, str]:
        own = [one.document for one in self._documents.values() if source and one.source == source]
        return {document.key: document.digest for document in own}

    def note(self, name: str) -> str | None:
        return self._state.notes.get(name) if self._scope is None else None

    def rows(self, array: str, keys: Sequence[int] | Keys) -> NDArray[np.generic]:
        spec, given = find_array(self._specs, array), self._given(array, keys)
        return np.array(given, spec.dtype).reshape(-1, *spec.shape)

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        spec, given = find_array(self._specs, array, ragged=True), self._given(array, keys)
        joined = np.concatenate([np.empty((0, *spec.shape), spec.dtype), *given])
        return Ragged(joined, np.cumsum([0, *map(len, given)]).astype(np.int64))

    def _given(self, array: str, keys: Sequence[int] | Keys) -> list[NDArray[Any]]:
        self.document_keys(keys)  # or raise
        return [self._state.rows[key][array] for key in np.asarray(keys, np.int64).reshape(-1).tolist()]

    def list_sizes(self, array: str) -> Rows:
        return np.bincount(self.rows(array, self._keys).reshape(-1).astype(np.int64))

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        keys = self._keys if plan.only is None else plan.only
        segment = ArraySegment(keys, {name: self.rows(name, keys) for name in plan.arrays})
        return execute(plan, k, [(segment, None)] if len(keys) else [], ExactEngine())

    def _words(self) -> WordSearcher:
        builder = PostingsBuilder(self._analyser)
        builder.add([text for one in self._scoped.values() for text in one.words()])
        return WordSearcher([WordSource(self._keys_in(self._scoped), builder.collected())] if self._scoped else [])

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        query, searcher = query_terms(self._analyser, text), self._words()
        if only is not None:
            self.document_keys(only)  # or raise
            return searcher.matches(query, only, searcher.scores(query, only))
        keys, scores = searcher.best(query, searcher.rows(self._keys), k)
        return searcher.matches(query, keys, scores)

    def word_parts(self, text: str, key: int) -> Floats:
        self.document_keys([key])  # or raise
        return self._words().parts(query_terms(self._analyser, text), key)
