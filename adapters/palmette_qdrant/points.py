"""Reading the points of a Qdrant collection: which of them count, and what they hold."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Keys, Ragged, Rows
from palmette.config import parse_json
from palmette.errors import CorruptIndexError, NotFoundError
from palmette.search.plan import ArraySpec, SearchPlan
from palmette.store.filters import Filter, Scoped, matches, names_in, unknown_name
from palmette.store.local.database import stored_of
from palmette.store.protocols import PAGE, StoredDocument, View, find_array
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
MOST_LISTS = 1_000_000
"""Lists that an array can name."""
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


def decoded_size(text: str) -> int:
    """Bytes that a base64 text stands for."""
    return len(text) // 4 * 3 - text.count("=", len(text) - 2)


class PointReader(View):
    """Reads the points of one commit that pass a filter; what it has read, it remembers."""

    def __init__(self, db: Collection, state: State, filter: Filter | None) -> None:
        self.db, self.state, self.filter = db, state, filter
        self.generation, self.total = state.generation, state.passages
        self._numbers: dict[int, int] = {}  # of passages within their documents, by key
        self._specs = {spec.name: spec for spec in db.arrays}
        self._points: dict[int, dict[str, Any]] = {}
        self._expected: tuple[SearchPlan, int, Keys] | None = None
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

    def _check_names(self, filter: Filter) -> None:
        """Raise for a metadata name that no document has; one in a scope is told of no others."""
        scoped = isinstance(filter, Scoped)
        for outer, level in filter.levels() if isinstance(filter, Scoped) else [(None, filter)]:
            among = self._visible(*([] if outer is None else [to_qdrant(self.db.m, outer)]))
            known = self._remember("names", outer, read=partial(self._facet, "n", among, 10_000))
            for name in names_in(level):
                if known and name not in known:
                    near = [] if scoped else get_close_matches(name, map(str, known), 1)
                    raise unknown_name(name, "".join(f" Did you mean {other!r}?" for other in near))

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

    def rows(self, array: str, keys: Sequence[int] | Keys) -> NDArray[np.generic]:
        """Rows of a stored array."""
        return self._read(find_array(self._specs, array), keys).values

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array."""
        return self._read(find_array(self._specs, array, ragged=True), keys)

    def _read(self, spec: ArraySpec, keys: Sequence[int] | Keys) -> Ragged:
        """Read a stored array of passages from their payloads, with sizes and values checked."""
        other = self._specs.get(spec.aligned or "")
        fields = [field_of(array) for array in (spec, other) if array is not None]
        payloads = self.points(keys, fields)
        contents = [decoded(payload[fields[0]]) for payload in payloads]
        width = np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
        sizes = np.array([-1 if content is None else len(content) for content in contents], np.int64)
        wrong = (sizes % width != 0) if spec.ragged else (sizes != width)
        if other is not None:
            other_width = np.dtype(other.dtype).itemsize * math.prod(other.shape)
            wrong |= sizes * other_width != width * np.array(
                [decoded_size(payload[fields[1]]) for payload in payloads], np.int64
            )
        if wrong.any() or (sizes < 0).any():
            key = keys[int((wrong | (sizes < 0)).argmax())]
            raise self._damaged(key, f"its {spec.name} has another number of rows than was written")
        values = np.frombuffer(bytearray().join(filter(None, contents)), spec.dtype).reshape(-1, *spec.shape)
        rows = Ragged(values, np.concatenate([[0], np.cumsum(sizes // width)]))
        self._check_values(spec, keys, rows)
        return rows

    def _check_values(self, spec: ArraySpec, keys: Sequence[int] | Keys, rows: Ragged) -> None:
        """Raise for a document whose numbers palmette does not write."""
        values = rows.values
        good = np.isfinite(values) if values.dtype.kind == "f" else np.ones_like(values, bool)
        if spec.among is not None:
            good &= (values >= spec.among[0]) & (values <= spec.among[1])
        if not good.all():
            row = int(good.all(axis=tuple(range(1, good.ndim))).argmin())
            key = keys[int(np.searchsorted(rows.starts, row, side="right")) - 1]
            raise self._damaged(key, f"its {spec.name} holds NaN, infinity or a number out of range")

    def list_sizes(self, array: str) -> Rows:
        """Number of documents in each list."""
        field = f"list_{find_array(self._specs, array).name}"
        read = partial(self._facet, field, self._where(), MOST_LISTS)
        counts = self._remember("lists", array, self.filter, read=read)
        if not all(isinstance(number, int) and 0 <= number < MOST_LISTS for number in counts):
            raise CorruptIndexError(f"{self.db.url} is damaged: {array} names lists outside 0 … {MOST_LISTS - 1}")
        sizes = np.zeros(1 + max(counts, default=-1), np.int64)
        sizes[list(counts)] = list(counts.values())
        return sizes
