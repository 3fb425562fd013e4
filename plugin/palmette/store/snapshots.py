"""The arrays that belong to a state of the database, shared by all who read that state."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import StoreError
from palmette.search.block import Block
from palmette.search.listing import Listing
from palmette.search.probe import ArraySpec, Keys
from palmette.store.conditions import Filter, Narrowed
from palmette.store.database import read_meta
from palmette.store.matching import Matcher
from palmette.store.segments import Segment, damaged
from palmette.store.select import check_names, select_keys

__all__ = ["RETRIES", "Snapshot", "Snapshots"]

RETRIES = 100  # times a reader may be overtaken by writers that merge segments away under it
_KEYS_KEPT = 1 << 23  # keys remembered for recent filters: 64 MiB


class Snapshot:
    """The arrays of one generation, shared by all views of it."""

    def __init__(self, generation: int, segments: Sequence[Segment], dead: Keys) -> None:
        self.generation, self.segments = generation, segments
        kept = [
            segment.keys if not len(dead) else np.setdiff1d(segment.keys, dead, True) for segment in segments
        ]
        self.keys: Keys = np.concatenate([np.empty(0, np.int64), *kept])
        self._rows = [None if len(k) == s.count else s.rows(k) for k, s in zip(kept, segments, strict=True)]
        self._filtered: OrderedDict[Filter, Keys] = OrderedDict()
        self._lock = threading.Lock()

    def select(self, connection: sqlite3.Connection, filter: Filter | None) -> Keys:
        """The keys that pass; recent filters are remembered, since requests repeat them (a tenant, say)."""
        if filter is None:
            return self.keys
        with self._lock:
            if filter in self._filtered:
                self._filtered.move_to_end(filter)
                return self._filtered[filter]
        self._check(connection, filter)
        keys = select_keys(connection, filter, self.keys)
        with self._lock:
            self._filtered[filter] = keys
            while sum(map(len, self._filtered.values())) > _KEYS_KEPT and len(self._filtered) > 1:
                self._filtered.popitem(last=False)
        return keys

    def _check(self, connection: sqlite3.Connection, filter: Filter) -> None:
        """Refuse names that nothing has: nothing in the view, where the index is narrowed."""
        match filter:
            case Narrowed((within, asked)):
                visible = self.select(connection, Narrowed((within,)))
                if len(visible):
                    check_names(connection, asked, visible)
            case Narrowed((within,)):
                if len(self.keys):
                    check_names(connection, within, hint=False)
            case _:
                if len(self.keys):
                    check_names(connection, filter)

    @cached_property
    def matcher(self) -> Matcher:
        """Search by words."""
        return Matcher(self.segments, self._rows)

    def rows(self, keys: Keys) -> list[NDArray[np.int64] | None]:
        """Where the keys of a view lie in each segment; ``None`` for all of its rows."""
        if keys is self.keys:
            return self._rows
        return [segment.rows(keys) for segment in self.segments]

    def blocks(
        self, keys: Keys, name: str, fold: int | tuple[int, ...]
    ) -> Iterator[tuple[Block, NDArray[np.int64] | None]]:
        """The segments that hold some of these keys, and the rows to look at."""
        for segment, alive in zip(self.segments, self._rows, strict=True):
            rows = alive if keys is self.keys else segment.rows(keys)
            if rows is None or len(rows):
                everything = rows is None or len(rows) == segment.count
                yield segment.block(name, fold), None if everything else rows

    def listings(self, keys: Keys, name: str) -> Iterator[tuple[Segment, Listing, NDArray[np.int64] | None]]:
        """The segments that hold some of these keys, their lists, and the rows to look at."""
        for segment, alive in zip(self.segments, self._rows, strict=True):
            rows = alive if keys is self.keys else segment.rows(keys)
            if rows is None or len(rows):
                everything = rows is None or len(rows) == segment.count
                yield segment, segment.listing(name), None if everything else rows

    def segments_with(self, keys: Keys) -> Iterator[tuple[Segment, NDArray[np.int64] | None]]:
        """The segments that hold some of these keys of a view, and the rows to look at (``None`` for all)."""
        for segment, alive in zip(self.segments, self._rows, strict=True):
            rows = alive if keys is self.keys else segment.rows(keys)
            if rows is None or len(rows):
                yield segment, None if rows is None or len(rows) == segment.count else rows

    def places(self, keys: Keys) -> Iterator[tuple[Segment, NDArray[np.int64], slice]]:
        """Where rising keys (all present, some perhaps more than once) lie: rows, and which of ``keys`` they are."""
        start = 0
        for segment in self.segments:
            stop = int(np.searchsorted(keys, segment.keys[-1], side="right"))
            if stop > start:
                yield segment, segment.rows(keys[start:stop]), slice(start, stop)
            start = stop

    def take(self, name: str, keys: Keys, out: NDArray[Any]) -> None:
        """Copy the rows of ``keys`` (any order, all present) into ``out``."""
        if (keys[1:] >= keys[:-1]).all():
            for segment, rows, places in self.places(keys):
                segment.array(name).take(rows, axis=0, out=out[places], mode="clip")  # others copy twice
            return
        order = np.argsort(keys, kind="stable")
        for segment, rows, places in self.places(keys[order]):
            out[order[places]] = segment.array(name)[rows]


class Snapshots:
    """The latest snapshot, and the way to one that fits a connection's read transaction."""

    def __init__(self, folder: Path, arrays: Sequence[ArraySpec]) -> None:
        self.folder, self.arrays = folder, arrays
        self._latest: Snapshot | None = None
        self._loading, self._pid = threading.Lock(), os.getpid()

    def forget(self) -> None:
        """Let go of the latest arrays."""
        self._latest = None

    def begin(self, connection: sqlite3.Connection) -> Snapshot:
        """Start a read transaction, and get the arrays that belong to it."""
        if self._pid != os.getpid():  # forked: a thread that is not here may have held the lock
            self._pid, self._loading, self._latest = os.getpid(), threading.Lock(), None
        overtaken = -1
        for _ in range(RETRIES):
            connection.execute("BEGIN")
            generation = int(read_meta(connection, "generation"))
            try:
                return self._arrays_of(connection, generation)
            except FileNotFoundError as error:
                connection.rollback()
                if generation == overtaken:
                    raise damaged(Path(error.filename), "a segment file", "no file") from error
                overtaken = generation
        raise StoreError(f"{self.folder} is being rewritten faster than it can be read; retry")

    def _arrays_of(self, connection: sqlite3.Connection, generation: int) -> Snapshot:
        snapshot = self._latest
        if snapshot is not None and snapshot.generation == generation:
            return snapshot
        with self._loading:
            snapshot = self._latest
            if snapshot is None or snapshot.generation != generation:
                dead = np.fromiter(
                    (key for (key,) in connection.execute("SELECT key FROM dead ORDER BY key")), np.int64
                )
                snapshot = Snapshot(generation, self.segments(connection), dead)
                if self._latest is None or self._latest.generation < generation:
                    self._latest = snapshot
        return snapshot

    def segments(self, connection: sqlite3.Connection) -> list[Segment]:
        """The segments that this transaction sees, reusing those that are open."""
        known = {segment.name: segment for segment in self._latest.segments} if self._latest else {}
        rows = connection.execute("SELECT name, count, files FROM segments ORDER BY position").fetchall()
        return [
            known.get(name) or Segment(self.folder, name, count, json.loads(files), self.arrays)
            for name, count, files in rows
        ]
