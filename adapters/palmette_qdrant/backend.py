"""Documents and arrays in a Qdrant collection, behind the same seam as a folder.

A passage is a point whose key is ``write << 32 | place``; those of a document follow each other, and the first holds
the whole document. Payloads hold what a folder would, to the bit; vectors, in half precision, are what the engine finds
candidates by, which the code that serves folders then scores.
Point 0 is the state (``state.py``); points from 1 on hold the model's checkpoint.
"""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from palmette.errors import CorruptIndexError, InputError, LockedError, NotFoundError, StoreError
from palmette.search.plan import ArraySpec
from palmette.store.filters import FilterLike, parse_filter
from palmette.store.protocols import PAGE, BackendStats, StorageEngine, check_built_by
from palmette_qdrant.client import Collection, parse_url
from palmette_qdrant.filters import field_name
from palmette_qdrant.state import DRAFT, FORMAT, KIND, STATE, State
from palmette_qdrant.view import PROBE, WORDS, QdrantView
from palmette_qdrant.writer import QdrantWriter, vectors_of

INDEXED_FIELDS = {
    "id": "keyword", "number": "integer", "source": "keyword", "born": "integer", "died": "integer", "n": "keyword",
    "lease": "keyword", "beat": "integer", "watched": "integer", "writes": "integer",
}  # fmt: skip
"""Payload fields that conditions name, and the kind of their index."""
PIECE = 1 << 20
"""Characters of a piece of the checkpoint."""


class QdrantBackend(StorageEngine):
    """A collection as the storage of an index: many readers, one writer at a time, on whichever machines."""

    engine = "qdrant"

    def __init__(self, db: Collection, state: State, lock_timeout: float) -> None:
        db.describe(state)
        self.db, self.url, self.lock_timeout = db, db.url, lock_timeout
        self.fingerprint, self.language, self.arrays = state.fingerprint, state.language, db.arrays
        self.tenant, self.passages = state.tenant, state.cut
        self._writing, self.is_open = threading.Lock(), True

    @staticmethod
    def check_url(url: str) -> None:
        """Raise ConfigError for a URL that names no collection, StoreError for one that holds a key."""
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
        """Create an empty collection, with the checkpoint of a folder. The state comes last, and makes it an index.

        A ``draft`` is no index before ``publish``.
        """
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
            lists = {f"list_{spec.name}": "integer" for spec in arrays if spec.searched == "lists"}
            for name, kind in {**INDEXED_FIELDS, **lists}.items():
                db.index(name, kind)
            if tenant is not None:
                db.index(field_name(tenant), "keyword", tenant=True)
            pieces = [] if model is None else [piece for file in sorted(model.iterdir()) for piece in _pieces(file)]
            for place, piece in enumerate(pieces, 1):
                db("upsert", [m.PointStruct(id=place, vector={}, payload=piece)])
            cut = None if passages is None else dict(passages)
            state = State(
                kind=DRAFT if draft else KIND, format=FORMAT, fingerprint=fingerprint, arrays=tuple(arrays),
                language=language, tenant=tenant, cut=cut, folds=folds, pieces=len(pieces), notes={},
                indexed=[tenant] if tenant else [],
                lease="", beat=0, watched=0, writes=0, pending=False, abandoned=[],
                generation=0, ages=[], documents=0, passages=0, length=0, dead=0, removed=False,
            )  # fmt: skip
            probe = m.SparseVector(indices=[PROBE], values=[1.0])
            db("upsert", [m.PointStruct(id=STATE, vector={WORDS: probe}, payload=state.model_dump(mode="json"))])
        finally:
            db.client.close()

    @classmethod
    def open(cls, url: str, *, fingerprint: str | None = None, lock_timeout: float = 10.0, draft: bool = False) -> Self:
        """Open a collection."""
        db = Collection(url, draft=draft)
        try:
            if not db("collection_exists"):
                raise NotFoundError(f"there is no index at {db.url}: no such collection; create it first")
            state = db.state()
            check_built_by(db.url, state.fingerprint, fingerprint)
            if state.lease and db.embedded:  # the only process that could hold it was killed
                db.update_state({"lease": ""}, lease=state.lease)
            return cls(db, state, lock_timeout)
        except BaseException:
            db.client.close()
            raise

    @staticmethod
    def exists(url: str) -> bool:
        """Return whether there is such a collection."""
        db = Collection(url)
        try:
            return bool(db("collection_exists"))
        finally:
            db.client.close()

    def publish(self) -> None:
        """Make an index of a draft."""
        self.db.update_state({"kind": KIND}, lease="")
        self.db.kind = KIND
        self.state()

    def discard(self) -> None:
        """Delete a draft."""
        self.db("delete_collection")

    def save_model(self, folder: Path) -> None:
        """Write the checkpoint that lies in the collection to a folder."""
        files: dict[str, list[str]] = {}
        try:
            for place in range(1, 1 + self.state().pieces):
                [point] = self.db("retrieve", [place])
                files.setdefault(Path(point.payload["file"]).name, []).append(point.payload["data"])
            for name, texts in files.items():
                (folder / name).write_bytes(b64decode("".join(texts)))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise CorruptIndexError(
                f"the model in {self.url} is damaged ({error!r:.80}): give the model that built the index"
            ) from error

    def state(self) -> State:
        """Read the state."""
        if not self.is_open:
            raise StoreError(f"the index {self.db.url} is closed; open it again")
        return self.db.state()

    @contextmanager
    def read(self, filter: FilterLike = None) -> Iterator[QdrantView]:
        """Open a view of the last commit."""
        yield QdrantView(self.db, self.state(), parse_filter(filter))

    @contextmanager
    def write(self) -> Iterator[QdrantWriter]:
        """Begin a change: committed as a whole on a clean exit, dropped as a whole on an exception."""
        if not self._writing.acquire(timeout=self.lock_timeout):
            raise LockedError(f"{self.url} is being written by another thread; retry, or give a longer lock_timeout")
        try:
            writer = QdrantWriter(self.db, self.lock_timeout)
            try:
                yield writer
                writer.commit()
            except BaseException as error:
                counts = False
                with suppress(StoreError):
                    counts = writer.drop()
                if not (counts and isinstance(error, StoreError)):  # only the answer to its commit was lost
                    raise
            finally:
                writer.is_open = False
        finally:
            self._writing.release()

    def stats(self) -> BackendStats:
        """Return counts; sizes are the server's to tell."""
        state = self.state()
        sizes = {"bytes": 0, "segments": 1, "reclaimable": state.dead, "log": 0}
        return BackendStats(state.documents, state.passages, self.db.url, **sizes)

    def compact(self) -> None:
        """Remove what is invisible at once: also deleted documents that open views still show."""
        state = self.state()
        if state.dead or state.abandoned:
            with self.write() as writer:
                writer.remove_abandoned()
                writer.remove_dead(writer.lease.state.generation)

    def verify(self) -> None:
        """Count the documents, and compare each with its digest."""
        with self.read() as view:
            keys = view.keys().tolist()
            if len(keys) != len(view):
                raise CorruptIndexError(f"{self.db.url} has {len(keys)} of {len(view)} passages: copy it anew")
            for start in range(0, len(keys), PAGE):
                view.documents(keys[start : start + PAGE])  # raises for another content

    def alias(self, name: str) -> None:
        """Let ``name`` mean this collection from now on, in one step, whatever it meant before."""
        m, aliases = self.db.m, self.db("get_aliases", collection=False).aliases
        operations: list[Any] = []
        if any(known.alias_name == name for known in aliases):
            operations.append(m.DeleteAliasOperation(delete_alias=m.DeleteAlias(alias_name=name)))
        alias = m.CreateAlias(collection_name=self.db.name, alias_name=name)
        operations.append(m.CreateAliasOperation(create_alias=alias))
        self.db("update_collection_aliases", operations, collection=False)

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        self.db.client.close()


def _pieces(file: Path) -> Iterator[dict[str, str]]:
    """Payloads of the points that hold a file."""
    text = b64encode(file.read_bytes()).decode()
    for start in range(0, max(1, len(text)), PIECE):
        yield {"file": file.name, "data": text[start : start + PIECE]}
