"""Reading a local index: one consistent state of rows, arrays and filter."""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.errors import EncodingError, InputError, NotFoundError, StoreError
from palmette.lexical.bm25 import asked
from palmette.lexical.tokens import Analyser
from palmette.search.block import Engine
from palmette.search.bridge import execute
from palmette.search.engine import top_k
from palmette.search.listing import ListedPart, Listing, added
from palmette.search.lists import nearest_listed
from palmette.search.parts import PartRows, best_parted, rescored
from palmette.search.plan import Candidates, SearchPlan
from palmette.search.probe import ArraySpec, Found, Keys, Parts, Probe, Shared
from palmette.store.database import storage_errors
from palmette.store.filters import Filter
from palmette.store.matching import as_found
from palmette.store.rows import COLUMNS, document_of
from palmette.store.segments import Segment
from palmette.store.select import rows_among
from palmette.store.snapshots import Snapshot
from palmette.types import Document

__all__ = ["LocalView"]


class LocalView:
    """One state of a local index, narrowed by a filter. Threads may share it while it is open."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        snapshot: Snapshot,
        filter: Filter | None,
        arrays: Sequence[ArraySpec],
        engine: Engine,
        folder: Path,
        analyser: Analyser,
    ) -> None:
        self._analyser = analyser
        self._connection, self._snapshot, self._engine, self._folder = connection, snapshot, engine, folder
        self._arrays = {spec.name: spec for spec in arrays}
        self._lock = threading.Lock()
        self._keys = snapshot.select(connection, filter)
        self.is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise StoreError("this view is closed: use it inside its `with backend.read() as view:` block")

    def _query(self, query: str, values: Sequence[str | int]) -> list[tuple[Any, ...]]:
        with self._lock, storage_errors(self._folder):
            self._check_open()
            return list(rows_among(self._connection, query, values))

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Keys:
        """All keys that pass the filter, ascending."""
        return self._keys.copy()

    def key_of(self, id: str) -> int | None:
        """The key of a document that passes the filter."""
        rows = self._query("SELECT key FROM documents WHERE id IN ({})", [id])
        return int(rows[0][0]) if rows and self._holds(np.array(rows[0])).all() else None

    def _holds(self, keys: Keys) -> NDArray[np.bool_]:
        if not len(self._keys):
            return np.zeros(len(keys), bool)
        first, last = self._keys[0], self._keys[-1]
        if last - first + 1 == len(self._keys):  # no gaps
            inside: NDArray[np.bool_] = (keys >= first) & (keys <= last)
            return inside
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        held: NDArray[np.bool_] = self._keys[places] == keys
        return held

    def _known(self, keys: Sequence[int]) -> Keys:
        self._check_open()
        wanted = np.asarray(keys, np.int64).reshape(-1)
        held = self._holds(wanted)
        if not held.all():
            raise NotFoundError(
                f"key {wanted[~held][0]} is not in this view: it was never there, or fails its filter"
            )
        return wanted

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """The documents under these keys, in this order."""
        wanted = self._known(keys).tolist()
        rows = self._query(f"SELECT key, {COLUMNS} FROM documents WHERE key IN ({{}})", wanted)
        found = {key: document_of(*row) for key, *row in rows}
        return [found[key] for key in wanted]

    def ids(self, keys: Sequence[int]) -> list[str]:
        """The ids of the documents under these keys, in this order."""
        wanted = self._known(keys).tolist()
        found: dict[int, str] = dict(self._query("SELECT key, id FROM documents WHERE key IN ({})", wanted))
        return [found[key] for key in wanted]

    def array(self, name: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array: [len(keys), *shape]."""
        wanted, spec = self._known(keys), self._spec(name)
        out: NDArray[np.generic] = np.empty((len(wanted), *spec.shape), spec.dtype)
        self._snapshot.take(name, wanted, out)
        return out

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array: [len(keys), *shape]."""
        return self.array(array, keys)

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        """Number of documents in each list: [L]."""
        return self.sizes(array)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """The ``k`` best documents of every row of a plan."""
        return execute(self, plan, k)

    def _spec(self, name: str) -> ArraySpec:
        if name not in self._arrays:
            raise InputError(
                f"this index stores no array {name!r} but {', '.join(self._arrays)}: an earlier version made it; "
                "index.copy_to(…) makes one that does"
            )
        return self._arrays[name]

    def within(self, keys: Keys) -> Self:
        """The same state, of these documents alone (rising keys)."""
        narrowed = copy.copy(self)
        narrowed._keys = self._known(keys.tolist())
        return narrowed

    def matching(self, texts: Sequence[str], k: int, floor: float = 0.0) -> Found:
        """The ``k`` best documents of every text by the words they share; those below ``floor`` may be missing."""
        self._check_open()
        rows = self._snapshot.rows(self._keys)
        found = [self._snapshot.matcher.best(asked(self._analyser, text), rows, k, floor) for text in texts]
        return as_found(found)

    def shared(self, text: str, keys: Sequence[int]) -> Shared:
        """The words of a text, and what each adds to the score of these documents."""
        query = asked(self._analyser, text)
        return Shared(query.words, self._snapshot.matcher.parts(query, self._known(keys)))

    def nearest_part(self, parts: Parts, k: int) -> Found:
        """The ``k`` best documents of every query by the best of their vectors."""
        self._check_parts(parts)
        pieces = [
            _part_rows(segment, parts, rows) for segment, rows in self._snapshot.segments_with(self._keys)
        ]
        return self.rescored(best_parted(pieces, parts, k).keys, parts, k)

    def rescored(self, keys: Keys, parts: Parts, k: int) -> Found:
        """The ``k`` best of some documents of every query [Q, n] (−1 for none), in the same way."""
        self._check_parts(parts)
        flat = keys.reshape(-1)
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] >= 0]
        self._known(flat[order].tolist())
        places = [
            (_part_rows(segment, parts, rows), order[places])
            for segment, rows, places in self._snapshot.places(flat[order])
        ]
        return rescored(places, keys, parts, k)

    def _check_parts(self, parts: Parts) -> None:
        self._check_open()
        shape = self._spec(parts.array).shape
        if shape != (len(parts.weights), parts.queries.shape[1]):
            raise InputError(
                f"array {parts.array!r} holds {shape} numbers per document; {len(parts.weights)} parts of "
                f"{parts.queries.shape[1]} numbers do not fit"
            )
        if parts.scales is not None and self._spec(parts.scales).shape != shape[:1]:
            raise InputError(f"array {parts.scales!r} holds no number for each of the {shape[0]} parts")

    def sizes(self, name: str) -> NDArray[np.int64]:
        """How many documents each list holds: [L], up to the last list that holds any."""
        self._check_open()
        sizes = np.zeros(0, np.int64)
        for _, listing, rows in self._listings(name):
            sizes = added(sizes, listing.sizes(rows))
        return sizes

    def _listings(self, name: str) -> Iterator[tuple[Segment, Listing, NDArray[np.int64] | None]]:
        return self._snapshot.listings(self._keys, self._spec(name).name)

    def nearest(self, probe: Probe, k: int) -> Found:
        """The ``k`` best documents of every query: [Q, min(k, len(self))]."""
        self._check_open()
        if k < 1:
            raise InputError(f"k must be at least 1, got {k!r}")
        spec = self._spec(probe.array)
        if len(spec.shape) != 1 or not probe.fits(spec.shape[0]):
            raise InputError(
                f"array {spec.name!r} holds {spec.shape} numbers per document; a probe of "
                f"{probe.queries.shape[1]} columns × fold {probe.fold} does not fit"
            )
        if probe.metric not in ("inner_product", "overlap"):
            raise InputError(f"unknown metric {probe.metric!r}. Metrics: inner_product, overlap")
        bad = ~np.isfinite(probe.queries).all(axis=1)
        if bad.any():
            raise EncodingError(
                f"query {int(bad.argmax())} of the probe holds NaN or infinity; check the encoder's output"
            )
        if probe.lists is not None:
            parts = [
                ListedPart(segment.block(spec.name, 1), listing, rows)
                for segment, listing, rows in self._listings(probe.lists.array)
            ]
            return nearest_listed(parts, probe.queries, probe.lists, int(k))
        blocks = list(self._snapshot.blocks(self._keys, spec.name, probe.fold))
        return top_k(blocks, probe.queries, probe.metric, int(k), self._engine, probe.rough)


def _part_rows(segment: Segment, parts: Parts, rows: NDArray[np.int64] | None) -> PartRows:
    data = segment.array(parts.array)
    scales = np.empty((len(data), 0), np.float32) if parts.scales is None else segment.array(parts.scales)
    return PartRows(segment.keys, data, scales, rows)
