"""Documents and arrays in a Qdrant collection, behind the same seam as a folder.

A document is a point whose key is ``write << 32 | place``. Its payload holds what a folder would, to the bit; its
vectors, in half precision, are what the engine finds candidates by, which the code that serves folders then scores.
Point 0 is the state: its ``generation`` is the last write that counts, and setting it is the commit. A view of
generation g shows points that were ``born`` by then and had not ``died``. Points from 1 on hold the model's checkpoint.
"""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from palmette.errors import CorruptIndexError, InputError, ModelMismatchError, NotFoundError, StoreError
from palmette.search.plan import ArraySpec
from palmette.store.backend import PAGE, Backend, BackendStats
from palmette.store.filters import Filter, parse_filter
from palmette.store.filters_qdrant import field_name
from palmette.store.qdrant_client import FORMAT, KIND, STATE, Collection
from palmette.store.qdrant_view import PROBE, WORDS, QdrantView
from palmette.store.qdrant_writer import QdrantWriter, vectors_of
from palmette.types import Document

PIECE = 1 << 20
"""Characters of a piece of the checkpoint."""


class QdrantBackend(Backend):
    """A collection as the storage of an index: many readers, one writer at a time, on whichever machines."""

    engine = "qdrant"

    def __init__(self, db: Collection, state: Mapping[str, Any], lock_timeout: float) -> None:
        db.describe(state)
        self.db, self.url, self.lock_timeout = db, db.url, lock_timeout
        self.fingerprint, self.language, self.arrays = str(state["fingerprint"]), state["language"], db.arrays
        self.tenant = state.get("tenant")
        self._writing, self.is_open = threading.Lock(), True

    @classmethod
    def create(
        cls,
        url: str,
        arrays: Sequence[ArraySpec],
        *,
        fingerprint: str,
        language: str | None,
        tenant: str | None = None,
        model: Path | None = None,
    ) -> None:
        """Create an empty collection, with the checkpoint of a folder. The state comes last, and makes it an index."""
        db = Collection(url)
        try:
            if db("collection_exists"):
                raise InputError(f"{db.url} exists: choose another name, or Index.open it")
            m, options, (dense, folds) = db.m, db.options, vectors_of(arrays, db.options.levels)
            tenant = options.tenant if tenant is None else tenant
            vectors = {
                name: m.VectorParams(size=size, distance=metric, datatype=m.Datatype.FLOAT16)
                for name, (size, metric) in dense.items()
            }
            words = {WORDS: m.SparseVectorParams(modifier=m.Modifier.IDF)}
            copies: dict[str, Any] = {}
            if not db.embedded:
                copies = {"shard_number": options.shards, "replication_factor": options.replicas}
            db("create_collection", vectors_config=vectors, sparse_vectors_config=words, **copies)
            fixed = {"id": "keyword", "born": "integer", "died": "integer", "n": "keyword"}
            fixed |= {f"list_{spec.name}": "integer" for spec in arrays if spec.searched == "lists"}
            for name, kind in fixed.items():
                db.index(name, kind)
            if tenant is not None:
                db.index(field_name(tenant), "keyword", tenant=True)
            pieces = [] if model is None else [piece for file in model.iterdir() for piece in _pieces(file)]
            for place, piece in enumerate(pieces, 1):
                db("upsert", [m.PointStruct(id=place, vector={}, payload=piece)])
            specs = [{**spec.layout, "searched": spec.searched, "scales": spec.scales} for spec in arrays]
            state = {
                "kind": KIND, "format": FORMAT, "fingerprint": fingerprint, "arrays": specs, "language": language,
                "folds": folds, "pieces": len(pieces), "notes": {}, "commits": [],
                "indexed": [tenant] if tenant else [], "tenant": tenant, "lease": "", "until": 0.0,
                "born": 0, "generation": 0, "writes": 0, "documents": 0, "length": 0, "dead": 0,
                "dirty": False, "removed": False,
            }  # fmt: skip
            probe = m.SparseVector(indices=[PROBE], values=[1.0])
            db("upsert", [m.PointStruct(id=STATE, vector={WORDS: probe}, payload=state)])
        finally:
            db.client.close()

    @classmethod
    def open(cls, url: str, *, fingerprint: str | None = None, lock_timeout: float = 10.0) -> Self:
        """Open a collection."""
        db = Collection(url)
        try:
            if not db("collection_exists"):
                raise NotFoundError(f"there is no index at {db.url}: no such collection; create it first")
            state = db.state()
            if fingerprint not in (None, state["fingerprint"]):
                raise ModelMismatchError(
                    f"{db.url} was built by the model {state['fingerprint']}, but the model given is {fingerprint}; "
                    "open it with the model that built it, or build a new index with this one"
                )
            if state["lease"] and db.embedded:  # its only process was killed
                db("set_payload", {"lease": ""}, [STATE])
        except BaseException:
            db.client.close()
            raise
        return cls(db, state, lock_timeout)

    @staticmethod
    def exists(url: str) -> bool:
        """Whether there is such a collection."""
        db = Collection(url)
        try:
            return bool(db("collection_exists"))
        finally:
            db.client.close()

    def save_model(self, folder: Path) -> None:
        """Write the checkpoint that lies in the collection to a folder."""
        files: dict[str, str] = {}
        for place in range(1, 1 + self.state()["pieces"]):
            [point] = self.db("retrieve", [place])
            files[point.payload["file"]] = files.get(point.payload["file"], "") + point.payload["data"]
        for name, text in files.items():
            (folder / Path(name).name).write_bytes(b64decode(text))

    def state(self) -> dict[str, Any]:
        """Read the state."""
        if not self.is_open:
            raise StoreError(f"the index {self.db.url} is closed; open it again")
        return self.db.state()

    @contextmanager
    def read(self, filter: Filter | None = None) -> Iterator[QdrantView]:
        """Open a view of the last commit."""
        yield QdrantView(self.db, self.state(), parse_filter(filter))

    @contextmanager
    def write(self) -> Iterator[QdrantWriter]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""
        with self._writing:
            writer = QdrantWriter(self.db, self.lock_timeout)
            try:
                yield writer
            except BaseException:
                with suppress(StoreError):
                    writer.drop()
                raise
            writer.commit()

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return documents by id."""
        with self.read() as view:
            keys = {id: one["key"] for id, one in view.look_up(ids).items()}
            found = dict(zip(keys, view.documents(list(keys.values())), strict=True))
        return [found.get(id) for id in ids]

    def stats(self) -> BackendStats:
        """Return counts; sizes are the server's to tell."""
        state = self.state()
        return BackendStats(state["documents"], 0, 1, state["dead"], self.db.url, self.engine)

    def compact(self) -> None:
        """Remove deleted documents at once, also those that open views still show."""
        if self.state()["dead"]:
            with self.write() as writer:
                writer.sweep(writer.generation)

    def verify(self) -> None:
        """Count the documents, and compare each with its digest."""
        with self.read() as view:
            keys = view.keys().tolist()
            if len(keys) != len(view):
                raise CorruptIndexError(f"{self.db.url} has {len(keys)} of {len(view)} documents: copy it anew")
            for start in range(0, len(keys), PAGE):
                view.documents(keys[start : start + PAGE])  # raises for another content

    def alias(self, name: str) -> None:
        """Let ``name`` mean this collection from now on, in one step, whatever it meant before."""
        m, known = self.db.m, self.db("get_aliases", collection=False).aliases
        gone = [m.DeleteAliasOperation(delete_alias=m.DeleteAlias(alias_name=name))]
        made = m.CreateAlias(collection_name=self.db.name, alias_name=name)
        replaced = gone if any(one.alias_name == name for one in known) else []
        new = m.CreateAliasOperation(create_alias=made)
        self.db("update_collection_aliases", [*replaced, new], collection=False)

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        self.db.client.close()


def _pieces(file: Path) -> Iterator[dict[str, str]]:
    text = b64encode(file.read_bytes()).decode()
    for start in range(0, max(1, len(text)), PIECE):
        yield {"file": file.name, "data": text[start : start + PIECE]}
