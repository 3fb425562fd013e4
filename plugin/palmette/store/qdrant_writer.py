"""One change of a Qdrant collection."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from palmette.arrays import Ragged, Stored, as_floats, fold_columns
from palmette.errors import LockedError
from palmette.lexical.bm25 import norms
from palmette.lexical.packed import impacts, pack, to_text
from palmette.search.plan import ArraySpec
from palmette.store.database import Row
from palmette.store.filters_qdrant import field_name, plain
from palmette.store.qdrant_client import STATE, Collection
from palmette.store.qdrant_view import DOCUMENT, PROBE, WORDS, QdrantView, field_of
from palmette.store.writer import fresh_rows
from palmette.types import Document

GRACE = 60.0
"""Seconds that a deleted document stays for open views, and that a writer is waited for between two batches."""
BATCH, INDEXED = 64, 32
"""Points a request, metadata names that the engine indexes."""


class QdrantWriter:
    """One change: its points are invisible until the state counts it; a lease keeps other writers out."""

    def __init__(self, db: Collection, lock_timeout: float) -> None:
        self.db, self.token = db, uuid4().hex
        state = self._lock(lock_timeout)
        self.generation = int(state["generation"])
        self.number = max(self.generation, int(state["writes"])) + 1
        if state["dirty"]:  # an earlier writer was killed
            self._clean()
        self._set(writes=self.number, dirty=True, removed=state["removed"] or state["dirty"])
        self.view = QdrantView(db, state, None)
        self.documents, self.length = int(state["documents"]), int(state["length"])
        self.dead, self.commits = int(state["dead"]), state["commits"]
        self.notes, self.indexed = dict(state["notes"]), list(state["indexed"])
        self._known: dict[str, dict[str, Any] | None] = {}
        self._put: dict[str, dict[str, Any]] = {}
        self._changed, self._next = False, self.number << 32
        self.sweep(max((number for number, when in self.commits if when < time.time() - GRACE), default=0))

    def _lock(self, timeout: float) -> dict[str, Any]:
        db, deadline = self.db, time.time() + timeout
        while True:
            now = self._renewed = time.time()
            free = db.m.Filter(should=[db.equals("lease", ""), db.where(until={"lt": now})])
            db("set_payload", {"lease": self.token, "until": now + GRACE}, db.where(free, keys=[STATE]))
            state = self.db.state()
            if state["lease"] == self.token:
                return state
            if now > deadline:
                left = max(0.0, state["until"] - now)
                raise LockedError(
                    f"{db.url} is being written; retry (the lock of a killed writer ends in {left:.0f} s)"
                )
            time.sleep(0.05)

    def _set(self, **changes: Any) -> None:
        self.db("set_payload", changes, self.db.where(self.db.equals("lease", self.token), keys=[STATE]))

    def _clean(self) -> None:
        """Undo what a write that never committed left."""
        self.db("delete", self.db.where(born={"gt": self.generation}))
        self.db("delete_payload", ["died"], self.db.where(died={"gt": self.generation}))

    def sweep(self, upto: int) -> None:
        """Remove documents that died in a write up to this one."""
        gone = self.db.where(died={"lte": upto})
        if self.dead and upto and (count := self.db("count", gone).count):
            self.db("delete", gone)
            self.dead -= count

    def _look_up(self, ids: Sequence[str]) -> None:
        unknown = [id for id in dict.fromkeys(ids) if id not in self._known]
        self._known |= {**dict.fromkeys(unknown), **self.view.look_up(unknown)}

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Digests of the ids that exist."""
        self._look_up(ids)
        held = {id: self._put.get(id) or self._known[id] for id in ids}
        return {id: str(one["digest"]) for id, one in held.items() if one is not None}

    def put(self, documents: Sequence[Document], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists."""
        put = {id: self._put[id]["digest"] for one in documents if (id := one.key) in self._put}
        rows = fresh_rows(self.db.arrays, documents, arrays, put)
        if not rows:
            return
        self._renew()
        self.delete([row.id for row in rows.values()])
        entries, lengths = pack(self.db.analyser, [documents[place].all_text for place in rows])
        self.documents, self.length = self.documents + len(rows), self.length + sum(lengths)
        self._changed, points, m = True, [], self.db.m
        norm = norms(np.array(lengths), max(1.0, self.length / self.documents)).tolist()
        for (place, row), words, length, one in zip(rows.items(), entries, lengths, norm, strict=True):
            impact = impacts(words, one)
            impact[PROBE - 1] = 1.0  # documents without words count too
            self._index(row)
            vectors, payload = _split(self.db, arrays, place)
            vectors[WORDS] = m.SparseVector(indices=list(impact), values=list(impact.values()))
            own = {"digest": row.digest, "length": length}
            self._put[row.id] = {"key": self._next, **own}
            payload |= {name: getattr(row, name) for name in ("id", *DOCUMENT)} | own | _metadata(row)
            payload |= {"born": self.number, "norm": one, WORDS: to_text(words)}
            points.append(m.PointStruct(id=self._next, vector=vectors, payload=payload))
            self._next += 1
        for start in range(0, len(points), BATCH):
            self.db("upsert", points[start : start + BATCH])

    def _index(self, row: Row) -> None:
        """Have metadata names indexed by the type of their first value."""
        for name, value in row.values:
            if name not in self.indexed and len(self.indexed) < INDEXED:
                kind = {str: "keyword", int: "integer"}.get(type(plain(value)), "float")
                self.db.index(field_name(name), kind)
                self.indexed.append(name)

    def _renew(self) -> None:
        if time.time() > self._renewed + GRACE / 3:
            self._renewed = time.time()
            self._set(until=self._renewed + GRACE)
            if self.db.state()["lease"] != self.token:
                raise LockedError(f"{self.db.url}: another writer took over while this one paused; start again")

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove documents; returns the ids that were there."""
        self._look_up(ids)
        own = {id: self._put.pop(id) for id in ids if id in self._put}
        old = {id: one for id in ids if (one := self._known[id]) is not None}
        if own:
            self.db("delete", [one["key"] for one in own.values()])
        if old:
            self.db("set_payload", {"died": self.number}, [one["key"] for one in old.values()])
        self._known |= dict.fromkeys(old)
        self.documents -= len(own) + len(old)
        self.length -= sum(one["length"] for one in (*own.values(), *old.values()))
        self.dead, self._changed = self.dead + len(old), self._changed or bool(own or old)
        return [id for id in dict.fromkeys(ids) if id in own or id in old]

    def note(self, name: str, value: str) -> None:
        """Keep a short text with the documents."""
        self.notes[name], self._changed = value, True

    def commit(self) -> None:
        """Count this write, in one update of the state."""
        changes: dict[str, Any] = {"dead": self.dead, "indexed": self.indexed, "lease": "", "dirty": False}
        if self.dead:  # an engine's own rarities count what is gone for a while
            changes["removed"] = True
        if self._changed:
            changes |= {"generation": self.number, "documents": self.documents, "length": self.length}
            changes |= {"notes": self.notes, "commits": [*self.commits, [self.number, time.time()]][-64:]}
        self._set(**changes)
        if self._changed and self.number not in (number for number, _ in self.db.state()["commits"]):
            raise LockedError(f"{self.db.url}: another writer took over, and this one was not committed; start again")

    def drop(self) -> None:
        """Undo the change."""
        self._clean()
        self._set(lease="", dirty=False, removed=True)


def _metadata(row: Row) -> dict[str, Any]:
    """Values by field, and the names that there are."""
    values: dict[str, list[Any]] = {}
    for name, value in row.values:
        values.setdefault(field_name(name)[2:], []).append(plain(value))
    parts = [name.split(".") for name in {name for name, _ in row.values}]
    return {"m": values, "n": sorted({".".join(part[:n]) for part in parts for n in range(1, len(part) + 1)})}


def _split(db: Collection, arrays: Mapping[str, Stored], place: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Vectors that the engine ranks a document by, and the payload of its arrays."""
    vectors: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    for spec in db.arrays:
        given = arrays[spec.name]
        stored = given.row(place) if isinstance(given, Ragged) else given[place]
        payload[field_of(spec)] = b64encode(np.ascontiguousarray(stored).tobytes()).decode()
        if spec.searched == "lists":
            payload[f"list_{spec.name}"] = stored.tolist()
        if spec.searched not in ("inner_product", "overlap"):
            continue
        row = as_floats(np.asarray(stored))
        if spec.scales is not None:
            row = row * np.asarray(arrays[spec.scales][place])[..., None]  # type: ignore[index]
        if spec.searched == "overlap":
            folded = ((fold, fold_columns(row[None], fold)[0]) for fold in db.folds[spec.name])
            vectors |= {f"{spec.name}.{fold}": one.tolist() for fold, one in folded}
        elif row.ndim == 1:
            vectors[spec.name] = row.tolist()
        else:
            vectors |= {f"{spec.name}.{part}": one.tolist() for part, one in enumerate(row)}
    return vectors, payload


def vectors_of(
    arrays: Sequence[ArraySpec], levels: Sequence[int]
) -> tuple[dict[str, tuple[int, str]], dict[str, list[int]]]:
    """Sizes and metrics of the engine's vectors, and the folds of each array of distributions."""
    dense: dict[str, tuple[int, str]] = {}
    folds: dict[str, list[int]] = {}
    for spec in arrays:
        if spec.searched == "inner_product":
            parts = range(spec.shape[0]) if len(spec.shape) > 1 else None
            named = [spec.name] if parts is None else [f"{spec.name}.{part}" for part in parts]
            dense |= dict.fromkeys(named, (spec.shape[-1], "Dot"))
        elif spec.searched == "overlap":
            width = spec.shape[0]
            folds[spec.name] = [1, *(width >> level for level in levels if width >> level > 1)]
            dense |= {f"{spec.name}.{fold}": (width // fold, "Manhattan") for fold in folds[spec.name]}
    return dense, folds
