"""One change of a Qdrant collection."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from palmette.arrays import Ragged, Stored, as_floats, fold_columns
from palmette.errors import StoreError
from palmette.lexical.bm25 import norms
from palmette.lexical.packed import impacts, pack, to_text
from palmette.search.plan import ArraySpec
from palmette.store.filters import plain_number
from palmette.store.local.database import DatabaseRow
from palmette.store.local.writer import rows_of
from palmette.store.protocols import PAGE, StoredDocument, as_stored
from palmette.types import Document
from palmette_qdrant.client import Collection
from palmette_qdrant.filters import METADATA, NAMES, escaped_name, field_name
from palmette_qdrant.lease import Lease
from palmette_qdrant.view import PROBE, WHOLE, WORDS, QdrantView, field_of

BATCH = 64
"""Points that one request inserts."""
INDEXED = 32
"""Metadata names that the engine indexes."""
PLACE_BITS = 32
"""Bits of a key that number the points of one write; the bits above are the write's number."""


class QdrantWriter:
    """One change: its points are invisible until the state counts its number; a lease keeps other writers out."""

    def __init__(self, db: Collection, lock_timeout: float) -> None:
        self.db, self.lease = db, Lease(db, lock_timeout)
        state, self.number = self.lease.state, self.lease.number
        self.view = QdrantView(db, state, None)
        self.documents, self.passages = state.documents, state.passages
        self.length, self.dead = state.length, state.dead
        self.notes, self.indexed = dict(state.notes), list(state.indexed)
        self._stored: dict[str, dict[str, Any] | None] = {}
        """Visible documents by id, as far as this write has looked them up."""
        self._put: dict[str, dict[str, Any]] = {}
        """Documents that this write has put, by id."""
        self._next, self._changed, self.is_open = self.number << PLACE_BITS, False, True
        try:
            if state.abandoned and state.abandoned[-1] == self.number - 1:  # the last writer was killed
                self.remove_abandoned()
            self.remove_dead(self.lease.expired())
        except BaseException:
            self.drop()
            raise

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A change that stops half way spoils the whole write: it can then only be dropped."""
        if not self.is_open:
            raise StoreError("this write is over or has failed; start a new one with `with backend.write() as writer:`")
        self.is_open = False
        yield
        self.is_open = True

    def remove_abandoned(self) -> None:
        """Remove what writes that never count have left behind; it is invisible, and takes room."""
        if numbers := self.lease.state.abandoned:
            self.db("delete", self.db.where(self.db.equals("born", *numbers)))
            self.db("delete_payload", ["died"], self.db.where(self.db.equals("died", *numbers)))

    def remove_dead(self, upto: int) -> None:
        """Remove documents that died in a committed write up to this one."""
        if not self.dead or not upto:
            return
        abandoned = self.view.abandoned("died")
        self.db("delete", self.db.where(died={"lte": upto}, must_not=abandoned))
        left = self.db.where(died={"lte": self.lease.state.generation}, must_not=abandoned)
        self.dead = int(self.db("count", left).count)

    def _look_up(self, ids: Sequence[str]) -> None:
        unknown = [id for id in dict.fromkeys(ids) if id not in self._stored]
        self._stored |= {**dict.fromkeys(unknown), **self.view.look_up(unknown)}

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Digests of the ids that exist."""
        with self._step():
            self._look_up(ids)
        entries = {id: self._put.get(id) or self._stored[id] for id in ids}
        return {id: str(entry["digest"]) for id, entry in entries.items() if entry is not None}

    def put(self, documents: Sequence[Document | StoredDocument], arrays: Mapping[str, Stored]) -> None:
        """Insert documents, replacing those whose id exists."""
        stored_documents = as_stored(documents)
        rows = rows_of(self.db.arrays, stored_documents, arrays)
        if not rows:
            return
        with self._step():
            self._remove([row.id for row in rows])
            first = np.cumsum([0, *(len(stored_document.passages) for stored_document in stored_documents)]).tolist()
            passages = [
                (place, number) for place, one in enumerate(stored_documents) for number in range(len(one.passages))
            ]
            words, lengths = pack(self.db.analyser, [text for one in stored_documents for text in one.words()])
            self.documents, self.passages = self.documents + len(rows), self.passages + len(passages)
            self.length += sum(lengths)
            self._changed = True
            length_norms = norms(np.array(lengths), max(1.0, self.length / self.passages)).tolist()
            points, m = [], self.db.m
            for (place, number), entries, length, norm in zip(passages, words, lengths, length_norms, strict=True):
                row, impact = rows[place], impacts(entries, norm)
                impact[PROBE - 1] = 1.0  # passages without words count too
                vectors, payload = _split(self.db, arrays, first[place] + number)
                vectors[WORDS] = m.SparseVector(indices=list(impact), values=list(impact.values()))
                if number == 0:
                    self._index(row)
                    self._put[row.id] = {"keys": [], "digest": row.digest, "length": 0}
                    payload |= {name: getattr(row, name) for name in WHOLE}
                own = self._put[row.id]
                own["keys"].append(self._next)
                own["length"] += length
                payload |= {
                    "id": row.id,
                    "metadata": row.metadata,
                    "digest": row.digest,
                    "number": number,
                    "length": length,
                }
                payload |= _metadata(row) | {"born": self.number, "norm": norm, WORDS: to_text(entries)}
                points.append(m.PointStruct(id=self._next, vector=vectors, payload=payload))
                self._next += 1
            for start in range(0, len(points), BATCH):
                self.db("upsert", points[start : start + BATCH], update_mode=m.UpdateMode.INSERT_ONLY)

    def _index(self, row: DatabaseRow) -> None:
        """Have metadata names indexed by the type of their first value."""
        for name, value in row.values:
            if name not in self.indexed and len(self.indexed) < INDEXED:
                kind = {str: "keyword", int: "integer"}.get(type(plain_number(value)), "float")
                self.db.index(field_name(name), kind)
                self.indexed.append(name)

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Mark documents as deleted; returns the ids that were there."""
        with self._step():
            return self._remove(ids)

    def _remove(self, ids: Sequence[str]) -> list[str]:
        """Note this write's number as ``died`` in the points of documents; they are visible until it commits."""
        self.lease.renew()
        self._look_up(ids)
        entries = {id: entry for id in ids if (entry := self._put.pop(id, None) or self._stored[id]) is not None}
        if not entries:
            return []
        self._changed = True
        later = self.db.where(died={"gte": self.number})
        keys = [key for entry in entries.values() for key in entry["keys"]]
        for start in range(0, len(keys), PAGE):
            batch = self.db.where(keys=keys[start : start + PAGE], must_not=[later])
            self.db("set_payload", {"died": self.number}, batch)
        self._stored |= dict.fromkeys(entries)
        self.documents, self.passages = self.documents - len(entries), self.passages - len(keys)
        self.length -= sum(entry["length"] for entry in entries.values())
        self.dead += len(keys)
        return list(entries)

    def note(self, name: str, value: str) -> None:
        """Keep a short text with the documents."""
        with self._step():
            self.notes[name], self._changed = value, True

    def commit(self) -> None:
        """Count this write, in one update of the state."""
        with self._step():
            changes: dict[str, Any] = {"dead": self.dead, "indexed": self.indexed}
            if self.dead:  # the engine's own word counts include the dead
                changes["removed"] = True
            if not self._changed:
                self.lease.release(changes)
                return
            changes |= {
                "documents": self.documents,
                "passages": self.passages,
                "length": self.length,
                "notes": self.notes,
            }
            self.lease.commit(changes)

    def drop(self) -> bool:
        """Undo the change; returns whether it counts all the same, since its commit came through."""
        if not self._changed:
            self.lease.release()
            return False
        state = self.lease.abandon()
        if self.number in state.abandoned:
            self.db("delete", self.db.where(self.db.equals("born", self.number)))
            self.db("delete_payload", ["died"], self.db.where(self.db.equals("died", self.number)))
        return state.is_committed(self.number)


def _metadata(row: DatabaseRow) -> dict[str, Any]:
    """Payload of a document's metadata, for filters.

    ``{"author": {"name": "Ada"}}`` → ``{"m": {"author_x2e_name": ["Ada"]}, "n": ["author", "author.name"]}``
    """
    values: dict[str, list[Any]] = {}
    for name, value in row.values:
        values.setdefault(escaped_name(name), []).append(plain_number(value))
    parts = [name.split(".") for name in {name for name, _ in row.values}]
    return {METADATA: values, NAMES: sorted({".".join(part[:n]) for part in parts for n in range(1, len(part) + 1)})}


def _split(db: Collection, arrays: Mapping[str, Stored], place: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Vectors that the engine ranks a document by, and the payload of its arrays."""
    vectors: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    for spec in db.arrays:
        array = arrays[spec.name]
        stored = array.row(place) if isinstance(array, Ragged) else array[place]
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
            vectors |= {f"{spec.name}.{fold}": vector.tolist() for fold, vector in folded}
        elif row.ndim == 1:
            vectors[spec.name] = row.tolist()
        else:
            vectors |= {f"{spec.name}.{part}": part_row.tolist() for part, part_row in enumerate(row)}
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
