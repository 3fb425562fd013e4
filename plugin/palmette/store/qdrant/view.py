"""Reading a Qdrant collection: candidates by the engine, scores by the code that serves folders."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Ragged, Rows
from palmette.config import parse_json
from palmette.errors import CorruptIndexError, InputError, NotFoundError
from palmette.lexical.bm25 import PAIR, matches_of, norms, weights
from palmette.lexical.packed import SPARSE, from_texts, impacts, parts_of, scores_of, sparse
from palmette.lexical.query import QueryTerms, query_terms
from palmette.search.flat import ExactEngine
from palmette.search.plan import ArraySpec, Candidates, Score, SearchPlan, View, WordMatches, find_array, stack_rows
from palmette.search.view import ArraySegment, execute
from palmette.store.backend import PAGE
from palmette.store.filters import Filter, Within, matches, names, unknown_name
from palmette.store.local.database import stored_of
from palmette.store.qdrant.client import Collection
from palmette.store.qdrant.filters import to_qdrant
from palmette.store.qdrant.state import State
from palmette.types import Document, Passage, StoredDocument

WORDS = "words"
"""Sparse vector of words and pairs, and the payload field of the same in full."""
PROBE = 0xFFFFFFFF
"""Term that the state alone has: its rarity tells the number of points (see ``_holding``)."""
SMALL = 20_000
"""Documents up to which every vector is compared."""
KEPT = 8192
"""Points that a view remembers."""
BEST = 8
"""Points that may answer most of a query's words."""
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
Request = Callable[[bool], Any]
"""Makes the engine's request; its argument limits it to visible points."""


def field_of(spec: ArraySpec) -> str:
    """Payload field of an array."""
    return f"array_{spec.name}"


def _keys_of(answers: Sequence[Sequence[Any]]) -> Keys:
    """Keys of all points in some answers, ascending."""
    return np.array(sorted({point.id for points in answers for point in points}), np.int64)


def _decoded(text: str) -> bytes | None:
    """Content of a base64 text; ``None`` for another text."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def _decoded_size(text: str) -> int:
    """Bytes that a base64 text stands for."""
    return len(text) // 4 * 3 - text.count("=", len(text) - 2)


class QdrantView(View):
    """The documents of one commit that pass a filter; what it has read, it remembers."""

    def __init__(self, db: Collection, state: State, filter: Filter | None) -> None:
        self.db, self.state, self.filter = db, state, filter
        self.generation, self.total = state.generation, state.passages
        self._numbers: dict[int, int] = {}  # of passages within their documents, by key
        self._specs = {spec.name: spec for spec in db.arrays}
        self._points: dict[int, dict[str, Any]] = {}
        self._expected: tuple[SearchPlan, int, Keys] | None = None
        self._matched: dict[tuple[str, int], Keys] = {}
        stamp = (self.generation, state.dead)
        if db.memo.get("stamp") != stamp:
            db.memo = {"stamp": stamp}
        self._wall = filter.parts[0] if isinstance(filter, Within) else None
        # Statistics behind a wall count its own documents.
        self._memo: dict[object, Any] = db.memo.setdefault(("wall", self._wall), {})
        self._careful = bool(state.pending or state.dead)  # invisible points are about
        if filter is not None and self.total:
            self._check_names(filter)
        self._must = [] if filter is None else [to_qdrant(self.db.m, filter)]
        self._behind = [] if self._wall is None else [to_qdrant(self.db.m, self._wall)]

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
        """Raise for a metadata name that no document has; one behind a wall is told of no others."""
        walled = isinstance(filter, Within)
        for outer, level in filter.levels() if isinstance(filter, Within) else [(None, filter)]:
            among = self._visible(*([] if outer is None else [to_qdrant(self.db.m, outer)]))
            known = self._remember("names", outer, read=partial(self._facet, "n", among, 10_000))
            for name in names(level):
                if known and name not in known:
                    near = [] if walled else get_close_matches(name, map(str, known), 1)
                    raise unknown_name(name, "".join(f" Did you mean {other!r}?" for other in near))

    def _counted(self) -> tuple[Keys, int]:
        """Keys of the documents behind the wall, and the number of words in all of them."""

        def count() -> tuple[Keys, int]:
            points = list(self._scroll(self._visible(*self._behind), ("length",)))
            return _keys_of([points]), sum(self._field(point, "length") for point in points)

        counted: tuple[Keys, int] = self._remember("behind", read=count)
        return counted

    def wall_keys(self) -> Keys | None:
        """Keys of all documents behind the wall."""
        return None if self._wall is None else self._counted()[0]

    @property
    def _documents(self) -> int:
        """Number of documents that statistics are counted on."""
        return self.total if self._wall is None else len(self._counted()[0])

    @property
    def _length(self) -> int:
        """Number of words in these documents."""
        return int(self.state.length) if self._wall is None else self._counted()[1]

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
        return _keys_of([points])

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
        return {id: seen["keys"] for id, seen in self.look_up(list(ids)).items()}

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Keys of passages' documents."""
        wanted = np.asarray(keys, np.int64).reshape(-1)
        unknown = [key for key in wanted.tolist() if key not in self._numbers]
        for key, payload in zip(unknown, self.points(unknown, ("number",)), strict=True):
            self._numbers[key] = payload["number"]
        return wanted - np.array([self._numbers[key] for key in wanted.tolist()], np.int64)

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
        wanted, known, needed = [int(key) for key in keys], self._points, set(include)
        if len(known) > KEPT:
            known.clear()
        unknown = [key for key in dict.fromkeys(wanted) if key not in known or needed - known[key].keys()]
        fields = [*SEEN, *include, *also, *(() if self.filter is None else ("metadata",))]
        for start in range(0, len(unknown), PAGE):
            self._keep(map(self._checked, self.db("retrieve", unknown[start : start + PAGE], with_payload=fields)))
        for key in unknown:
            payload = known.get(key, {})
            if not self._shows(payload) or not self._passes(key, payload):
                raise NotFoundError(f"key {key} is not in this view: it was never there, or fails its filter")
            if missing := needed - payload.keys():
                raise self._damaged(key, f"it has no {min(missing)}")
        return [known[key] for key in wanted]

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
        distinct, found = list(dict.fromkeys(first)), dict[int, StoredDocument]()
        for key, payload in zip(distinct, self.points(distinct, WHOLE), strict=True):
            try:
                found[key] = stored_of(*(payload[name] for name in WHOLE))
            except (CorruptIndexError, RecursionError) as error:  # RecursionError: JSON that is nested too deeply
                raise self._damaged(key, f"document {payload['id']!r:.40} is not what was written") from error
        return [found[key] for key in first]

    def parts(self, keys: Sequence[int]) -> list[tuple[Document, Passage]]:
        """Passages as documents with their places; their ragged arrays are read along, which hits read next."""
        wanted = [int(key) for key in keys]
        self.points(wanted, [field_of(spec) for spec in self._specs.values() if spec.ragged], also=WHOLE)
        found = []
        for key, first, one in zip(wanted, self.document_keys(wanted).tolist(), self.stored(wanted), strict=True):
            if not 0 <= key - first < len(one.passages):
                raise self._damaged(key, "its document has no such passage")
            found.append((one.part(key - first), one.passages[key - first]))
        return found

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """Passages as documents."""
        return [document for document, _ in self.parts(keys)]

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids in the order of ``keys``."""
        return [str(payload["id"]) for payload in self.points(keys, ("id",))]

    def note(self, name: str) -> str | None:
        """Text that a writer noted of all documents; none behind a wall."""
        return self.state.notes.get(name) if self._wall is None else None

    def _fields(self, arrays: Sequence[str], *, ragged: bool = False) -> list[str]:
        return [field_of(find_array(self._specs, name, ragged=ragged)) for name in arrays]

    def rows(self, array: str, keys: Sequence[int] | Keys) -> NDArray[np.generic]:
        """Rows of a stored array."""
        return self._read(find_array(self._specs, array), keys).values

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array."""
        return self._read(find_array(self._specs, array, ragged=True), keys)

    def _read(self, spec: ArraySpec, keys: Sequence[int] | Keys) -> Ragged:
        other = self._specs.get(spec.aligned or "")
        fields = [field_of(one) for one in (spec, other) if one is not None]
        payloads = self.points(keys, fields)
        contents = [_decoded(payload[fields[0]]) for payload in payloads]
        width = np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
        sizes = np.array([-1 if content is None else len(content) for content in contents], np.int64)
        wrong = (sizes % width != 0) if spec.ragged else (sizes != width)
        if other is not None:
            other_width = np.dtype(other.dtype).itemsize * math.prod(other.shape)
            wrong |= sizes * other_width != width * np.array(
                [_decoded_size(one[fields[1]]) for one in payloads], np.int64
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

    def _request(self, using: str, vector: Any, limit: int, include: Sequence[str], *must: Any) -> Request:
        """Search of a vector among the documents that meet all of some conditions."""
        m, options, one_term, probe = self.db.m, self.db.options, False, False
        if isinstance(vector, dict):
            one_term, probe = len(vector) == 1, PROBE in vector
            vector = m.SparseVector(indices=list(vector), values=list(vector.values()))

        def make(visible: bool) -> Any:
            where = m.Filter(must=list(must)) if must else None
            where = self._visible(*must) if visible and not probe else where
            params: dict[str, Any] = {}
            if self.db.has_indexes:
                exact = self._documents <= SMALL if options.exact is None else options.exact
                params = {"exact": exact, "hnsw_ef": options.ef}
            if one_term and (visible or self._behind or self.state.removed):
                # The engine counts documents that this view shows, and the state.
                counted = m.Filter(should=[self._visible(*self._behind), self.db.where(born={"lte": 0})])
                params["idf"] = m.IdfCorpusParams(corpus=counted)
            search_params = m.SearchParams(**params) if params else None
            return m.QueryRequest(
                query=vector,
                using=using,
                limit=limit,
                filter=where,
                params=search_params,
                with_payload=[*SEEN, *include],
            )

        return make

    def _search(self, requests: Sequence[Request]) -> list[list[Any]]:
        """Search in one request; where invisible points came up, again without them."""
        answers = [[]] if not requests else self._answers(requests)
        if not self._careful and not all(self._shows(point.payload) for points in answers for point in points):
            self._careful = True
            answers = self._answers(requests)
        for points in answers:
            self._keep(points)
        return answers

    def _answers(self, requests: Sequence[Request]) -> list[list[Any]]:
        answers = self.db("query_batch_points", [make(self._careful) for make in requests])
        return [[self._checked(point) for point in answer.points] for answer in answers]

    def expect(self, plan: SearchPlan | None, k: int, texts: Sequence[str], arrays: Sequence[str]) -> None:
        """Fetch the candidates of one question by meaning and by words, with what scores them, in one request."""
        if len(texts) > 1 or (plan is not None and len(plan.first.queries) != plan.group):
            return
        plan = None if plan is None or plan.only is not None else plan
        read = [*self._fields(arrays, ragged=True), *([WORDS] if texts else ())]
        read += self._fields(plan.arrays if plan else ())
        by_meaning = [] if plan is None or not len(self) else self._plan_requests(plan, k, read)
        by_words, unknown = self._word_requests(texts[0], k, read) if texts else ([], [])
        answers = self._search([*by_meaning, *by_words])
        if plan is not None:
            self._expected = plan, k, _keys_of(answers[: len(by_meaning)])
        if by_words:
            self._take_words(texts[0], k, unknown, answers[len(by_meaning) :])

    def _plan_requests(self, plan: SearchPlan, k: int, read: Sequence[str] = ()) -> list[Request]:
        first = plan.first
        include = read or self._fields(plan.arrays)
        depth = max(1, min(max(k, plan.fetch or 0), len(self)))
        depth += 16 + depth // 8  # half precision ranks nearly as full precision does
        requests = []
        queries, width = first.queries, self._specs[first.array].shape[-1]
        if first.prefix:  # zeros leave the other columns out
            queries = np.pad(queries, ((0, 0), (0, max(0, width - queries.shape[1]))))
        for row, query in enumerate(queries.tolist()):
            must = list(self._must)
            if plan.only is not None:
                must.append(self.db.where(keys=plan.only.tolist()))
            if plan.lists is not None:
                chosen = plan.lists.chosen[row]
                numbers = chosen[chosen >= 0].tolist() or [-1]
                must.append(self.db.equals(f"list_{plan.lists.array}", *numbers))
            requests += [self._request(name, query, depth, include, *must) for name in self._vectors(first)]
        return requests

    def _vectors(self, score: Score) -> list[str]:
        """Vectors that a score compares: the best by any field's is among the best of that field."""
        if score.part_weights is not None:
            return [f"{score.array}.{part}" for part in np.flatnonzero(score.part_weights)]
        if score.metric == "inner_product":
            return [score.array]
        known, width = self.db.folds[score.array], self._specs[score.array].shape[0]
        if score.fold not in known:
            levels = [(width // fold).bit_length() - 1 for fold in (*known, score.fold)]
            raise InputError(
                f"{self.db.url} was created for levels {', '.join(map(str, levels[:-1]))}, not {levels[-1]}: copy it "
                f"to a new collection with ?levels={levels[-1]} at the end of its URL"
            )
        return [f"{score.array}.{score.fold}"]

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find candidates, and rank them from their stored arrays as a folder does."""
        if (count := len(plan.first.queries) // plan.group) > 1:  # one question after the other
            each = [self.candidates(plan.one_query(row), k) for row in range(count)]
            rows = [
                (one.keys[row], one.scores[row], {name: array[row] for name, array in one.evidence.items()})
                for one in each
                for row in range(plan.group)
            ]
            return stack_rows(rows, each[0])
        if self._expected is not None and self._expected[0] is plan and self._expected[1] == k:
            keys = self._expected[2]
        elif plan.only is not None and len(plan.only) <= PAGE:
            keys = plan.only
        else:
            keys = _keys_of(self._search(self._plan_requests(plan, k)) if len(self) else [])
        arrays = {name: self.rows(name, keys) for name in plan.arrays}
        segments = [(ArraySegment(keys, arrays), None)] if len(keys) else []
        ranked = execute(plan, k, segments, ExactEngine(), self)
        visited = float(len(self) if plan.only is None else len(plan.only))
        if plan.lists is not None:
            sizes, chosen = np.append(self.list_sizes(plan.lists.array), 0), plan.lists.chosen
            chosen = np.where((chosen >= 0) & (chosen < len(sizes)), chosen, len(sizes) - 1)
            visited = min(visited, float(sizes[chosen].sum(axis=1).mean()))
        return replace(ranked, visited=visited, approximate=self._documents > SMALL)

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best documents by words, or score some."""
        query = query_terms(self.db.analyser, text)
        weight = self._memo.get(("weights", text))
        unread = weight is None or (only is None and (text, k) not in self._matched)
        if query.terms and self.total and unread:
            requests, unknown = self._word_requests(text, max(k, 1), (WORDS,))
            self._take_words(text, k, unknown, self._search(requests))
            weight = self._memo["weights", text]
        keys = self._matched.get((text, k), np.empty(0, np.int64)) if only is None else only
        scores = self._scores(query, np.zeros(len(query.terms), np.float32) if weight is None else weight, keys)
        if only is None:
            order = np.lexsort((keys, -scores))
            order = order[scores[order] > 0][:k]
            keys, scores = keys[order], scores[order]
        holding = [self._memo.get(("holding", term), 0.0) for term in (*query.terms, *query.skipped)]
        return matches_of(query, keys, scores, holding, self._documents)

    def word_parts(self, text: str, key: int) -> Floats:
        """[T] what each word of a text, and each pair, adds to a document's score."""
        self.words(text, 0, only=np.array([key]))  # weighs the words
        query = query_terms(self.db.analyser, text)
        none = np.zeros(len(query.terms), np.float32)
        parts: Floats = parts_of(query, self._memo.get(("weights", text), none), *self._texts([key]))[0]
        return parts

    def _entries(self, keys: Sequence[int] | Keys, payloads: Sequence[Mapping[str, Any]]) -> list[str]:
        """Texts of documents' words; raises for one that is damaged, since texts are decoded on end."""
        texts = [payload[WORDS] for payload in payloads]
        if any(len(text) % ENTRY for text in texts) or _decoded("".join(texts)) is None:
            bad = [len(text) % ENTRY > 0 or _decoded(text) is None for text in texts]
            raise self._damaged(keys[bad.index(True)], "its words are cut off")
        return texts

    def _texts(self, keys: Sequence[int] | Keys) -> tuple[list[str], Floats]:
        """Words of some documents, and the norms of their lengths."""
        payloads = self.points(keys, ("length", WORDS))
        mean = max(1.0, self._length / max(1, self._documents))
        norm = norms(np.array([payload["length"] for payload in payloads]), mean)
        return self._entries(keys, payloads), norm

    def _scores(self, query: QueryTerms, weight: Floats, keys: Keys) -> Floats:
        """[n] what all terms of a query add to the score of documents."""
        return scores_of(query, weight, *self._texts(keys))

    def _word_requests(self, text: str, k: int, read: Sequence[str]) -> tuple[list[Request], list[int]]:
        """Searches for the words of a query, and the terms whose number of documents the last of them tell.

        The first search finds candidates. With a filter or phrases, a second finds the best of all documents, which
        set the scale. Then comes one search for each term whose number of documents is not known yet.
        """
        query = query_terms(self.db.analyser, text)
        if not query.terms or not self.total:
            return [], []
        vector = sparse(query.terms, [1.0] * query.singles + [PAIR] * (len(query.terms) - query.singles))
        depth = k + 16 + k // 8
        phrases = sparse(sorted(query.required), [1.0] * len(query.required))
        candidates = self._request(WORDS, phrases or vector, 4 * depth if phrases else depth, read, *self._must)
        unknown = [term for term in (*query.terms, *query.skipped) if ("holding", term) not in self._memo]
        single = [self._request(WORDS, {term >> SPARSE: 1.0}, 1, (WORDS, "norm")) for term in unknown]
        best = [self._request(WORDS, vector, BEST, (WORDS,), *self._behind)] if phrases or self._must else []
        return [candidates, *best, *single], unknown

    def _take_words(self, text: str, k: int, unknown: Sequence[int], answers: Sequence[Sequence[Any]]) -> None:
        """Take in the answers to ``_word_requests``: candidates, documents with each term, weights of the terms."""
        query, memo = query_terms(self.db.analyser, text), self._memo
        self._matched[text, k], searches = _keys_of(answers[:1]), len(answers) - len(unknown)
        for term, hits in zip(unknown, answers[searches:], strict=True):
            memo["holding", term] = self._holding(hits[0], term >> SPARSE) if hits else 0.0
        holding = [memo["holding", term] for term in (*query.terms, *query.skipped)]
        weight, reach = weights(query, holding, self._documents)
        total = max(float(weight.sum()), 1e-12)
        scaled = np.asarray(weight / total, np.float32)
        top = _keys_of([answers[searches - 1][:BEST]])
        best = self._scores(query._replace(required=frozenset()), scaled, top)
        factor = 1 / max(reach / total, *best.tolist(), 1e-12)
        memo["weights", text] = np.asarray(scaled.astype(np.float64) * factor, np.float32)

    def _holding(self, hit: Any, place: int) -> float:
        """Number of documents with a term, read back from the score of one of them.

        The engine counts documents, but tells no counts. Among N points, n of them with the term, its score of a
        point is the term's IDF times what the point stores:

            score = impact · ln((N + 1) / (n + ½))        so        n = (N + 1) · exp(−score / impact) − ½

        ``PROBE`` is a term of the state alone (n = 1, impact 1), and so tells N = 1.5 · exp(score) − 1. Example:
        three documents and the state make N = 4, and the probe's score is ln(5 / 1.5) = 1.204. A term of two
        documents has the IDF ln(5 / 2.5) = 0.693; one that stores the impact 0.8 scores 0.5545, and
        5 · exp(−0.5545 / 0.8) − ½ = 2 documents have the term.

        A shard counts its own points: its number is multiplied by documents / documents of the shard.
        """
        [payload] = self.points([hit.id], (WORDS, "norm"))
        impact = impacts(from_texts(self._entries([hit.id], [payload])), payload["norm"]).get(place, 0.0)
        if not impact > 0:
            raise self._damaged(hit.id, f"it is found by term {place}, which it does not have")

        def count() -> float:
            [hits] = self._answers([self._request(WORDS, {PROBE: 1.0}, 1, ())])
            if not hits:
                raise CorruptIndexError(f"the state of {self.db.url} has lost its words: copy the index anew")
            return 1.5 * float(np.exp(hits[0].score)) - 1

        points = float(self._remember("points", read=count))
        documents = max(0.0, (points + 1) * float(np.exp(-hit.score / impact)) - 0.5)
        shards = self._documents / max(1.0, round(points) - 1)
        return min((round(documents) if documents < 1e5 else documents) * max(1.0, shards), float(self._documents))
