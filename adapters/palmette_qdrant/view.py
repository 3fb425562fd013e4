"""Searching a Qdrant collection: the engine finds candidates, the code that serves folders scores them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from palmette.arrays import Floats, Keys, Rows
from palmette.config import parse_json
from palmette.errors import CorruptIndexError, InputError, NotFoundError
from palmette.lexical.bm25 import PAIR, QueryTerms, norms, query_terms
from palmette.lexical.packed import SPARSE, from_texts, impacts, sparse
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.engine_view import MOST_LISTS, NO_KEYS, EngineView
from palmette.store.filters import Filter, Scoped, matches
from palmette.store.local.database import stored_of
from palmette.store.protocols import PAGE, StoredDocument, find_array
from palmette.types import Document, Passage
from palmette_qdrant.client import Collection
from palmette_qdrant.filters import NAMES, to_qdrant
from palmette_qdrant.state import State

WORDS = "words"
"""Sparse vector of words and pairs, and the payload field of the same in full."""
PROBE = 0xFFFFFFFF
"""Term that the state alone has: its rarity tells the number of points (see ``_document_frequency``)."""
KEPT = 8192
"""Points that a view remembers, and facts that views of one scope share."""
SCOPES = 64
"""Scopes of which views share facts."""
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
SMALL = 20_000
"""Documents up to which every vector is compared."""
BEST = 8
"""Points that may answer most of a query's words."""
Request = Callable[[bool], Any]
"""Makes the engine's request; its argument limits it to visible points."""


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


class QdrantView(EngineView):
    """The documents of one commit that pass a filter; what it has read of points, it remembers."""

    def __init__(self, db: Collection, state: State, filter: Filter | None) -> None:
        self.db, self.state, self.filter, self.analyser = db, state, filter, db.analyser
        self.generation, self.total = state.generation, state.passages
        self._numbers: dict[int, int] = {}  # of passages within their documents, by key
        self._specs = {spec.name: spec for spec in db.arrays}
        self._points: dict[int, dict[str, Any]] = {}
        self._passed: set[int] = set()  # keys of points that were found to pass the filter
        self._matched: dict[tuple[str, int], Keys] = {}
        stamp = (self.generation, state.dead)
        memo = db.memo  # a view of another commit may put its own there at any moment
        self._scope = filter.parts[0] if isinstance(filter, Scoped) else None
        full = len(memo) > SCOPES or len(memo.get(("scope", self._scope), ())) > KEPT
        if full or memo.get("stamp") != stamp:  # open views keep theirs
            memo = db.memo = {"stamp": stamp}
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
        names: dict[str, int] = self._remember("names", outer, read=partial(self._facet, NAMES, among, 10_000))
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
        of = "" if key is None else f"point {key} of "
        return CorruptIndexError(f"{of}{self.db.url} is damaged ({reason!s:.120}): copy the index anew")

    def points(
        self, keys: Sequence[int] | Keys, include: Sequence[str], also: Sequence[str] = (), *, outside: bool = False
    ) -> list[dict[str, Any]]:
        """Payloads in the order of ``keys``, with these fields at least; ``also`` these, of points that have them.

        Points that fail the filter raise, except for statistics, which read words ``outside`` it.
        """
        passage_keys, known, needed = [int(key) for key in keys], self._points, set(include)
        if len(known) > KEPT:
            known.clear()
            self._passed.clear()
        unchecked = set[int]() if outside or self.filter is None else set(passage_keys) - self._passed
        own = {"metadata"} if unchecked else set[str]()
        unknown = [
            key
            for key in dict.fromkeys(passage_keys)
            if key not in known or (needed | (own if key in unchecked else set())) - known[key].keys()
        ]
        fields = [*SEEN, *include, *also, *own]
        for start in range(0, len(unknown), PAGE):
            self._keep(map(self._checked, self.db("retrieve", unknown[start : start + PAGE], with_payload=fields)))
        for key in dict.fromkeys([*unknown, *unchecked]):
            payload = known.get(key, {})
            if not self._shows(payload) or (key in unchecked and not self._passes(key, payload)):
                raise NotFoundError(f"key {key} is not in this view: it was never there, or fails its filter")
            if missing := needed - payload.keys():
                raise self._damaged(key, f"it has no {min(missing)}")
        self._passed |= unchecked
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

    # -- searching -------------------------------------------------------------------------------------------

    def _request(self, using: str, vector: Any, limit: int, include: Sequence[str], *must: Any) -> Request:
        """Search of a vector among the documents that meet all of some conditions."""
        m, options, one_term, probe = self.db.m, self.db.options, False, False
        if isinstance(vector, dict):
            one_term, probe = len(vector) == 1, PROBE in vector
            vector = m.SparseVector(indices=list(vector), values=list(vector.values()))

        def make(visible: bool) -> Any:
            """Build a request, either over the documents that this view shows or over all."""
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
                with_payload=[*SEEN, *include, *(() if self.filter is None else ("metadata",))],
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
            self._expected = plan, k, keys_of_points(answers[: len(by_meaning)])
        if by_words:
            self._take_words(texts[0], k, unknown, answers[len(by_meaning) :])

    def _plan_requests(self, plan: SearchPlan, k: int, read: Sequence[str] = ()) -> list[Request]:
        """Turn a plan into requests: one for each query vector, and for each vector name that it compares."""
        first = plan.first
        include = read or self._fields(plan.arrays)
        depth = max(1, min(max(k, plan.fetch or 0), len(self)))
        depth += 16 + depth // 8  # half precision ranks nearly as full precision does
        requests = []
        for row, query in enumerate(first.queries.tolist()):
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

    def _find(self, plan: SearchPlan, k: int) -> Keys:
        if plan.only is not None and len(plan.only) <= PAGE:
            return plan.only
        return keys_of_points(self._search(self._plan_requests(plan, k)))

    def _weigh(self, text: str, query: QueryTerms, k: int, find: bool) -> tuple[Floats, list[float], int, Keys]:
        """Read weights and candidates that :meth:`expect` has fetched, or fetch them now."""
        weight = self._memo.get(("weights", text))
        if query.terms and self.total and (weight is None or (find and (text, k) not in self._matched)):
            requests, unknown = self._word_requests(text, max(k, 1), (WORDS,))
            self._take_words(text, k, unknown, self._search(requests))
            weight = self._memo["weights", text]
        frequencies = [self._memo.get(("document_frequency", term), 0.0) for term in (*query.terms, *query.skipped)]
        none = np.zeros(len(query.terms), np.float32)
        found = self._matched.get((text, k), NO_KEYS)
        return none if weight is None else weight, frequencies, self._documents, found

    def _entries(self, keys: Sequence[int] | Keys, payloads: Sequence[Mapping[str, Any]]) -> list[str]:
        """Texts of documents' words; raises for one that is damaged, since texts are decoded on end."""
        texts = [payload[WORDS] for payload in payloads]
        if any(len(text) % ENTRY for text in texts) or decoded("".join(texts)) is None:
            bad = [len(text) % ENTRY > 0 or decoded(text) is None for text in texts]
            raise self._damaged(keys[bad.index(True)], "its words are cut off")
        return texts

    def _texts(self, query: QueryTerms, keys: Sequence[int] | Keys, outside: bool = False) -> tuple[list[str], Floats]:
        payloads = self.points(keys, ("length", WORDS), outside=outside)
        mean = max(1.0, self._length / max(1, self._documents))
        norm = norms(np.array([payload["length"] for payload in payloads]), mean)
        return self._entries(keys, payloads), norm

    def _word_requests(self, text: str, k: int, read: Sequence[str]) -> tuple[list[Request], list[int]]:
        """Searches for the words of a query, and the terms whose number of documents the last of them tell.

        The first search finds candidates. With a filter or phrases, a second finds the best of all documents, which
        set the scale. Then comes one search for each term whose number of documents is not known yet.
        """
        query = query_terms(self.analyser, text)
        if not query.terms or not self.total:
            return [], []
        vector = sparse(query.terms, [1.0] * query.singles + [PAIR] * (len(query.terms) - query.singles))
        depth = k + 16 + k // 8
        phrases = sparse(sorted(query.required), [1.0] * len(query.required))
        candidates = self._request(WORDS, phrases or vector, 4 * depth if phrases else depth, read, *self._must)
        unknown = [term for term in (*query.terms, *query.skipped) if ("document_frequency", term) not in self._memo]
        single = [self._request(WORDS, {term >> SPARSE: 1.0}, 1, (WORDS, "norm")) for term in unknown]
        best = [self._request(WORDS, vector, BEST, (WORDS,), *self._behind)] if phrases or self._must else []
        return [candidates, *best, *single], unknown

    def _take_words(self, text: str, k: int, unknown: Sequence[int], answers: Sequence[Sequence[Any]]) -> None:
        """Take in the answers to ``_word_requests``: candidates, documents with each term, weights of the terms."""
        query, memo = query_terms(self.analyser, text), self._memo
        self._matched[text, k], searches = keys_of_points(answers[:1]), len(answers) - len(unknown)
        for term, hits in zip(unknown, answers[searches:], strict=True):
            memo["document_frequency", term] = self._document_frequency(hits[0], term >> SPARSE) if hits else 0.0
        frequencies = [memo["document_frequency", term] for term in (*query.terms, *query.skipped)]
        top = keys_of_points([answers[searches - 1][:BEST]])
        memo["weights", text] = self._scaled(query, frequencies, self._documents, lambda *_: top)

    def _document_frequency(self, hit: Any, place: int) -> float:
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
        [payload] = self.points([hit.id], (WORDS, "norm"), outside=True)
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
