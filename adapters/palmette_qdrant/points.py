"""Reading the points of a Qdrant collection: which of them count, and what they hold."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from palmette.arrays import Keys, Rows
from palmette.config import parse_json
from palmette.errors import CorruptIndexError, NotFoundError
from palmette.search.plan import ArraySpec
from palmette.store.engine_view import MOST_LISTS, EngineView
from palmette.store.filters import Filter, Scoped, matches
from palmette.store.local.database import stored_of
from palmette.store.protocols import PAGE, StoredDocument, find_array
from palmette.types import Document, Passage
from palmette_qdrant.client import Collection
from palmette_qdrant.filters import to_qdrant
from palmette_qdrant.state import State

WORDS = "words"
"""Sparse vector of words and pairs, and the payload field of the same in full."""
PROBE = 0xFFFFFFFF
"""Term that the state alone has: its rarity tells the number of points (see ``_holding``)."""
KEPT = 8192
"""Points that a view remembers."""
ENTRY = 8
"""Characters of a word in the text of a document's words."""
SEEN = ("born", "died", "id", "digest", "length", "number")
"""Payload fields that every read includes."""
DOCUMENT = ("text", "metadata", "fields", "payload")
"""Payload fields of a document's content, which its first point has."""
WHOLE = ("id", *DOCUMENT, "digest", "passages", "source")
"""Payload fields of a document, in the order of a folder's columns."""
KINDS: dict[str, type] = {"born": int, "died": int, "length": int, "norm": float, "number": int}
"""Types of payload fields that are read; every other one is a text."""


def field_of(spec: ArraySpec) -> str:
    """Payload field of an array."""
    return f"array_{spec.name}"


def keys_of_points(answers: Sequence[Sequence[Any]]) -> Keys:
    """Keys of all points in some answers, ascending."""
    return np.array(sorted({point.id for points in answers for point in points}), np.int64)


def decoded(text: str) -> bytes | None:
    """Content of a base64 text; ``None`` for another text."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


class PointReader(EngineView):
    """Reads the points of one commit that pass a filter; what it has read, it remembers."""

    def __init__(self, db: Collection, state: State, filter: Filter | None) -> None:
        self.db, self.state, self.filter, self.analyser = db, state, filter, db.analyser
        self.generation, self.total = state.generation, state.passages
        self._numbers: dict[int, int] = {}  # of passages within their documents, by key
        self._specs = {spec.name: spec for spec in db.arrays}
        self._points: dict[int, dict[str, Any]] = {}
        self._matched: dict[tuple[str, int], Keys] = {}
        stamp = (self.generation, state.dead)
        memo = db.memo  # a view of another commit may put its own there at any moment
        if memo.get("stamp") != stamp:
            memo = db.memo = {"stamp": stamp}
        self._scope = filter.parts[0] if isinstance(filter, Scoped) else None
        # Statistics in a scope count its own documents.
        self._memo: dict[object, Any] = memo.setdefault(("scope", self._scope), {})
        self._careful = bool(state.pending or state.dead)  # invisible points are about
        if filter is not None and self.total:
            self._check_names(filter)
        self._must = [] if filter is None else [to_qdrant(self.db.m, filter)]
        self._behind = [] if self._scope is None else [to_qdrant(self.db.m, self._scope)]

    def abandoned(self, field: str) -> list[Any]:
        """Condition on the number in a field: an abandoned write's, which the generation alone would show."""
        numbers = [number for number in self.state.abandoned if number <= self.generation]
        return [self.db.equals(field, *numbers)] if numbers else []

    def _visible(self, *more: Any) -> Any:
        """Filter of the points that this view shows (``State.shows``)."""
        upto = self.generation
        died = self.db.where(died={"lte": upto}, must_not=self.abandoned("died"))
        return self.db.where(*more, born={"gte": 1, "lte": upto}, must_not=[died, *self.abandoned("born")])

    def _where(self, *more: Any) -> Any:
        """Filter of the visible documents that pass."""
        return self._visible(*more, *self._must)

    def _shows(self, payload: Mapping[str, Any]) -> bool:
        return self.state.shows(payload.get("born", 0), payload.get("died"))

    def _remember(self, *key: Any, read: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = read()
        return self._memo[key]

    def _facet(self, field: str, where: Any, most: int) -> dict[Any, int]:
        """Values of a field, and how many points have each."""
        answer = self.db("facet", field, facet_filter=where, limit=most, exact=True)
        return {hit.value: hit.count for hit in answer.hits}

    def _names(self, outer: Filter | None) -> list[str]:
        among = self._visible(*([] if outer is None else [to_qdrant(self.db.m, outer)]))
        names: dict[str, int] = self._remember("names", outer, read=partial(self._facet, "n", among, 10_000))
        return list(map(str, names))

    def _counted(self) -> tuple[Keys, int]:
        """Keys of the documents in the scope, and the number of words in all of them."""

        def count() -> tuple[Keys, int]:
            points = list(self._scroll(self._visible(*self._behind), ("length",)))
            return keys_of_points([points]), sum(self._field(point, "length") for point in points)

        counted: tuple[Keys, int] = self._remember("behind", read=count)
        return counted

    def scope_keys(self) -> Keys | None:
        """Keys of all documents in the scope."""
        return None if self._scope is None else self._counted()[0]

    @property
    def _documents(self) -> int:
        """Number of documents that statistics are counted on."""
        return self.total if self._scope is None else len(self._counted()[0])

    @property
    def _length(self) -> int:
        """Number of words in these documents."""
        return int(self.state.length) if self._scope is None else self._counted()[1]

    def __len__(self) -> int:
        if self.filter is None or not self.total:
            return self.total
        return int(self._remember("count", self.filter, read=lambda: self.db("count", self._where()).count))

    def _scroll(self, where: Any, include: Sequence[str]) -> Iterator[Any]:
        offset: Any = None
        while True:
            points, offset = self.db("scroll", where, limit=PAGE, offset=offset, with_payload=list(include))
            yield from map(self._checked, points)
            if offset is None:
                return

    def keys(self) -> Keys:
        """All keys that pass, ascending."""
        points = list(self._scroll(self._where(), ("born", "number")))
        self._numbers |= {point.id: self._field(point, "number") for point in points}
        return keys_of_points([points])

    def look_up(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Keys of the passages, digest and length of the documents of some ids."""
        pages = [self.db.equals("id", *ids[start : start + PAGE]) for start in range(0, len(ids), PAGE)]
        points = [point for page in pages for point in self._scroll(self._where(page), SEEN)]
        entries: dict[str, dict[str, Any]] = {}
        for point in sorted(points, key=lambda point: point.id):
            own = {"keys": [], "digest": self._field(point, "digest"), "length": 0}
            entry = entries.setdefault(self._field(point, "id"), own)
            if self._field(point, "number") != len(entry["keys"]):
                raise self._damaged(point.id, "its document has lost a passage")
            entry["keys"].append(point.id)
            entry["length"] += self._field(point, "length")
        return entries

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Keys of the passages of the documents of some ids that pass."""
        return {id: entry["keys"] for id, entry in self.look_up(list(ids)).items()}

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Keys of passages' documents."""
        passage_keys = np.asarray(keys, np.int64).reshape(-1)
        unknown = [key for key in passage_keys.tolist() if key not in self._numbers]
        for key, payload in zip(unknown, self.points(unknown, ("number",)), strict=True):
            self._numbers[key] = payload["number"]
        return passage_keys - np.array([self._numbers[key] for key in passage_keys.tolist()], np.int64)

    def count_documents(self) -> int:
        """Number of documents that pass."""
        if self.filter is None or not self.total:
            return int(self.state.documents)
        first = self._where(self.db.equals("number", 0))
        return int(self._remember("documents", self.filter, read=lambda: self.db("count", first).count))

    def ids_of_source(self, source: str) -> dict[str, str]:
        """Ids and digests of the documents of a source that pass."""
        points = self._scroll(self._where(self.db.equals("source", source)), ("id", "digest"))
        return {self._field(point, "id"): self._field(point, "digest") for point in points}

    def _checked(self, point: Any) -> Any:
        """Return a point of an answer; raise where its key or payload is of another type than palmette writes."""
        if type(point.id) is not int or type(point.payload) is not dict:
            raise self._damaged(point.id, "it was not written by palmette")
        for name, value in point.payload.items():
            if type(value) is not KINDS.get(name, str) and not (name == "norm" and type(value) is int):
                raise self._damaged(point.id, f"its {name} is a {type(value).__name__}")
        return point

    def _field(self, point: Any, name: str) -> Any:
        if name not in point.payload:
            raise self._damaged(point.id, f"it has no {name}")
        return point.payload[name]

    def _damaged(self, key: object, reason: object) -> CorruptIndexError:
        return CorruptIndexError(f"point {key} of {self.db.url} is damaged ({reason!s:.120}): copy the index anew")

    def points(
        self, keys: Sequence[int] | Keys, include: Sequence[str], also: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Payloads in the order of ``keys``, with these fields at least; ``also`` these, of points that have them."""
        passage_keys, known, needed = [int(key) for key in keys], self._points, set(include)
        if len(known) > KEPT:
            known.clear()
        unknown = [key for key in dict.fromkeys(passage_keys) if key not in known or needed - known[key].keys()]
        fields = [*SEEN, *include, *also, *(() if self.filter is None else ("metadata",))]
        for start in range(0, len(unknown), PAGE):
            self._keep(map(self._checked, self.db("retrieve", unknown[start : start + PAGE], with_payload=fields)))
        for key in unknown:
            payload = known.get(key, {})
            if not self._shows(payload) or not self._passes(key, payload):
                raise NotFoundError(f"key {key} is not in this view: it was never there, or fails its filter")
            if missing := needed - payload.keys():
                raise self._damaged(key, f"it has no {min(missing)}")
        return [known[key] for key in passage_keys]

    def _passes(self, key: int, payload: Mapping[str, Any]) -> bool:
        if self.filter is None:
            return True
        try:
            metadata = parse_json(payload.get("metadata", "{}"))
            return matches(self.filter, metadata, payload.get("id", ""))
        except (TypeError, ValueError, AttributeError) as error:
            raise self._damaged(key, error) from error

    def _keep(self, points: Iterable[Any]) -> None:
        for point in points:
            self._points.setdefault(point.id, {}).update(point.payload)

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Whole documents that passages belong to."""
        first = self.document_keys(keys).tolist()
        distinct, documents = list(dict.fromkeys(first)), dict[int, StoredDocument]()
        for key, payload in zip(distinct, self.points(distinct, WHOLE), strict=True):
            try:
                documents[key] = stored_of(*(payload[name] for name in WHOLE))
            except (CorruptIndexError, RecursionError) as error:  # RecursionError: JSON that is nested too deeply
                raise self._damaged(key, f"document {payload['id']!r:.40} is not what was written") from error
        return [documents[key] for key in first]

    def parts(self, keys: Sequence[int]) -> list[tuple[Document, Passage]]:
        """Passages as documents with their places; their ragged arrays are read along, which hits read next."""
        self.points(keys, [field_of(spec) for spec in self._specs.values() if spec.ragged], also=WHOLE)
        return super().parts(keys)

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids in the order of ``keys``."""
        return [str(payload["id"]) for payload in self.points(keys, ("id",))]

    def note(self, name: str) -> str | None:
        """Text that a writer noted of all documents; none in a scope."""
        return self.state.notes.get(name) if self._scope is None else None

    def _fields(self, arrays: Sequence[str], *, ragged: bool = False) -> list[str]:
        return [field_of(find_array(self._specs, name, ragged=ragged)) for name in arrays]

    def _stored_bytes(self, spec: ArraySpec, keys: Sequence[int]) -> tuple[Rows, bytes]:
        """Read a stored array of passages from their payloads, with the array beside it, which is read next."""
        payloads = self.points(keys, [field_of(self._specs[name]) for name in (spec.name, spec.aligned) if name])
        contents = [decoded(payload[field_of(spec)]) for payload in payloads]
        if None in contents:
            raise self._damaged(keys[contents.index(None)], f"its {spec.name} is no base64")
        whole = [content for content in contents if content is not None]
        return np.array([len(content) for content in whole], np.int64), b"".join(whole)

    def _list_counts(self, array: str) -> dict[int, int]:
        read = partial(self._facet, f"list_{array}", self._where(), MOST_LISTS)
        counts: dict[int, int] = self._remember("lists", array, self.filter, read=read)
        return counts
