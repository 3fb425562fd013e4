"""Reading a Qdrant collection: candidates by the engine, scores by the code that serves folders."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Ragged, Rows
from palmette.errors import InputError, NotFoundError
from palmette.lexical.bm25 import PAIR, QueryTerms, matches_of, norms, query_terms, weights
from palmette.lexical.packed import SPARSE, from_texts, impacts, parts_of, sparse
from palmette.search.flat import ExactEngine
from palmette.search.plan import (
    ArraySpec,
    Candidates,
    Score,
    SearchPlan,
    View,
    WordMatches,
    add_words,
    find_array,
    stack_rows,
)
from palmette.search.view import ArraySegment, execute
from palmette.store.backend import PAGE
from palmette.store.database import document_of
from palmette.store.filters import Filter, Within, matches, names, unknown_name
from palmette.store.filters_qdrant import to_qdrant
from palmette.store.qdrant_client import Collection
from palmette.types import Document

WORDS, PROBE = "words", 0xFFFFFFFF
"""Sparse vector of words and pairs; the word that the state alone has, whose rarity tells how many points there are."""
SMALL = 20_000
"""Documents up to which every vector is compared."""
KEPT = 8192
"""Points that a view remembers."""
BEST = 8
"""Points that may answer most of a query's words."""
SEEN = ("born", "died", "id", "digest", "length")
DOCUMENT = ("text", "metadata", "fields", "payload")
Ask = Callable[[bool], Any]
"""Makes a request, of visible points only if that is asked for."""


def field_of(spec: ArraySpec) -> str:
    """Payload field of an array."""
    return f"array_{spec.name}"


def _keys_of(found: Sequence[Sequence[Any]]) -> Keys:
    return np.array(sorted({one.id for points in found for one in points}), np.int64)


class QdrantView(View):
    """The documents of one commit that pass a filter; what it has read, it remembers."""

    def __init__(self, db: Collection, state: Mapping[str, Any], filter: Filter | None) -> None:
        self.db, self.state, self.filter = db, state, filter
        self.generation, self.total = int(state["generation"]), int(state["documents"])
        self._specs = {spec.name: spec for spec in db.arrays}
        self._points: dict[int, dict[str, Any]] = {}
        self._expected: tuple[SearchPlan, int, Keys] | None = None
        self._matched: dict[tuple[str, int], Keys] = {}
        stamp = (self.generation, state["dead"])
        if db.memo.get("stamp") != stamp:
            db.memo = {"stamp": stamp}
        self._memo = db.memo
        self._careful = bool(state["dirty"] or state["dead"])  # invisible points are about
        if filter is not None and self.total:
            self._check_names(filter)
        self._must = [] if filter is None else [to_qdrant(self.db.m, filter)]

    def _visible(self, *more: Any) -> Any:
        m, upto = self.db.m, self.generation
        born = self.db.where(*more, born={"gte": 1, "lte": upto})
        return m.Filter(must=[born], must_not=[self.db.where(died={"lte": upto})])

    def _where(self, *more: Any) -> Any:
        """Filter of the visible documents that pass."""
        return self._visible(*more, *self._must)

    def _shows(self, payload: Mapping[str, Any]) -> bool:
        return bool(1 <= payload.get("born", 0) <= self.generation < payload.get("died", self.generation + 1))

    def _remember(self, *key: Any, read: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = read()
        return self._memo[key]

    def _facet(self, field: str, where: Any, most: int) -> dict[Any, int]:
        found = self.db("facet", field, facet_filter=where, limit=most, exact=True)
        return {hit.value: hit.count for hit in found.hits}

    def _check_names(self, filter: Filter) -> None:
        """Raise for a metadata name that no document has; one behind a filter is told of no others."""
        outer = Within(filter.parts[:1]) if isinstance(filter, Within) else None
        asked = filter.parts[-1] if isinstance(filter, Within) and len(filter.parts) > 1 else filter
        among = self._visible(*([] if outer is None or asked is filter else [to_qdrant(self.db.m, outer)]))
        known = self._remember("names", outer, asked is filter, read=lambda: self._facet("n", among, 10_000))
        for name in names(asked):
            if known and name not in known:
                near = [] if outer else get_close_matches(name, [str(one) for one in known], 1)
                raise unknown_name(name, "".join(f" Did you mean {one!r}?" for one in near))

    def __len__(self) -> int:
        if self.filter is None or not self.total:
            return self.total
        return int(self._remember("count", self.filter, read=lambda: self.db("count", self._where()).count))

    def _scroll(self, where: Any, include: Sequence[str]) -> Iterator[Any]:
        after: Any = None
        while True:
            found, after = self.db("scroll", where, limit=PAGE, offset=after, with_payload=list(include))
            yield from found
            if after is None:
                return

    def keys(self) -> Keys:
        """All keys that pass, ascending."""
        return _keys_of([list(self._scroll(self._where(), ("born",)))])

    def look_up(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Key, digest and length of the documents of some ids."""
        pages = [self.db.equals("id", *ids[start : start + PAGE]) for start in range(0, len(ids), PAGE)]
        found = [one for page in pages for one in self._scroll(self._where(page), SEEN)]
        return {str(one.payload["id"]): {**one.payload, "key": one.id} for one in found}

    def key_of(self, id: str) -> int | None:
        """Key of a document that passes."""
        return self.look_up([id]).get(id, {}).get("key")

    def points(self, keys: Sequence[int] | Keys, include: Sequence[str]) -> list[dict[str, Any]]:
        """Payloads in the order of ``keys``, with these fields at least."""
        wanted, known, needed = [int(key) for key in keys], self._points, set(include)
        if len(known) > KEPT:
            known.clear()
        unknown = [key for key in dict.fromkeys(wanted) if key not in known or needed - known[key].keys()]
        fields = [*SEEN, *include, *(() if self.filter is None else ("metadata",))]
        for start in range(0, len(unknown), PAGE):
            self._keep(self.db("retrieve", unknown[start : start + PAGE], with_payload=fields))
        for key in unknown:
            one = known.get(key, {})
            shown = self._shows(one)
            if not shown or not matches(self.filter, json.loads(one.get("metadata", "{}")), one["id"]):
                raise NotFoundError(f"key {key} is not in this view: it was never there, or fails its filter")
        return [known[key] for key in wanted]

    def _keep(self, found: Sequence[Any]) -> None:
        for one in found:
            self._points.setdefault(one.id, {}).update(one.payload)

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """Documents; with their ragged arrays, of which the places of sentences are asked for next."""
        ragged = [field_of(spec) for spec in self._specs.values() if spec.ragged]
        found, columns = self.points(keys, (*DOCUMENT, *ragged)), ("id", *DOCUMENT, "digest")
        return [document_of(*(one[name] for name in columns)) for one in found]

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids in the order of ``keys``."""
        return [str(one["id"]) for one in self.points(keys, ("id",))]

    def note(self, name: str) -> str | None:
        """Text that a writer noted."""
        return None if (found := self.state["notes"].get(name)) is None else str(found)

    def _fields(self, arrays: Sequence[str], *, ragged: bool = False) -> list[str]:
        return [field_of(find_array(self._specs, name, ragged=ragged)) for name in arrays]

    def rows(self, array: str, keys: Sequence[int] | Keys) -> NDArray[np.generic]:
        """Rows of a stored array."""
        return self._read(find_array(self._specs, array), keys).values

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array."""
        return self._read(find_array(self._specs, array, ragged=True), keys)

    def _read(self, spec: ArraySpec, keys: Sequence[int] | Keys) -> Ragged:
        given = (b64decode(one[field_of(spec)]) for one in self.points(keys, (field_of(spec),)))
        parts = [np.frombuffer(part, spec.dtype).reshape(-1, *spec.shape) for part in given]
        values = np.concatenate([np.empty((0, *spec.shape), spec.dtype), *parts])
        return Ragged(values, np.cumsum([0, *map(len, parts)]))

    def list_sizes(self, array: str) -> Rows:
        """Number of documents in each list."""
        field = f"list_{find_array(self._specs, array).name}"
        read = partial(self._facet, field, self._where(), 1_000_000)
        found = self._remember("lists", array, self.filter, read=read)
        sizes = np.zeros(1 + max(found, default=-1), np.int64)
        sizes[list(found)] = list(found.values())
        return sizes

    def _ask(self, using: str, vector: Any, limit: int, include: Sequence[str], *must: Any) -> Ask:
        """Search of a vector among the documents that meet all of some conditions."""
        m, options, rarity, probe = self.db.m, self.db.options, False, False
        if isinstance(vector, dict):
            rarity, probe = len(vector) == 1, PROBE in vector
            vector = m.SparseVector(indices=list(vector), values=list(vector.values()))

        def request(visible: bool) -> Any:
            where = m.Filter(must=list(must)) if must else None
            where = self._visible(*must) if visible and not probe else where
            how: dict[str, Any] = {}
            if self.db.has_indexes:
                exact = self.total <= SMALL if options.exact is None else options.exact
                how = {"exact": exact, "hnsw_ef": options.ef}
            if rarity and (visible or self.state["removed"]):  # of visible documents, and the state
                counted = m.Filter(should=[self._visible(), self.db.where(born={"lte": 0})])
                how["idf"] = m.IdfCorpusParams(corpus=counted)
            params = m.SearchParams(**how) if how else None
            what: dict[str, Any] = {"filter": where, "params": params, "with_payload": [*SEEN, *include]}
            return m.QueryRequest(query=vector, using=using, limit=limit, **what)

        return request

    def _search(self, asked: Sequence[Ask]) -> list[list[Any]]:
        """Search in one request; where invisible points came up, again without them."""
        found = [[]] if not asked else self._answers(asked)
        if not self._careful and not all(self._shows(one.payload) for points in found for one in points):
            self._careful = True
            found = self._answers(asked)
        for points in found:
            self._keep(points)
        return found

    def _answers(self, asked: Sequence[Ask]) -> list[list[Any]]:
        answers = self.db("query_batch_points", [make(self._careful) for make in asked])
        return [answer.points for answer in answers]

    def expect(self, plan: SearchPlan | None, k: int, texts: Sequence[str], arrays: Sequence[str]) -> None:
        """Fetch the candidates of one question by meaning and by words, with what scores them, in one request."""
        if len(texts) > 1 or (plan is not None and len(plan.first.queries) != plan.group):
            return
        plan = None if plan is None or plan.only is not None else plan
        read = [*self._fields(arrays, ragged=True), *([WORDS] if texts else ())]
        read += self._fields(plan.arrays if plan else ())
        first = [] if plan is None or not len(self) else self._plan_asks(plan, k, read)
        second, unknown = self._word_asks(texts[0], k, read) if texts else ([], [])
        found = self._search([*first, *second])
        if plan is not None:
            self._expected = plan, k, _keys_of(found[: len(first)])
        if second:
            self._take_words(texts[0], k, unknown, found[len(first) :])

    def _plan_asks(self, plan: SearchPlan, k: int, read: Sequence[str] = ()) -> list[Ask]:
        first = plan.first
        include = read or self._fields(plan.arrays)
        depth = max(1, min(max(k, plan.fetch or 0), len(self)))
        depth += 16 + depth // 8  # half precision ranks nearly as full precision does
        asked = []
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
            asked += [self._ask(name, query, depth, include, *must) for name in self._vectors(first)]
        return asked

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
            keys = _keys_of(self._search(self._plan_asks(plan, k)) if len(self) else [])
        arrays = {name: self.rows(name, keys) for name in plan.arrays}
        segments = [(ArraySegment(keys, arrays), None)] if len(keys) else []
        found = execute(plan, k, segments, ExactEngine(), self)
        visited = float(len(self) if plan.only is None else len(plan.only))
        if plan.lists is not None:
            sizes, chosen = np.append(self.list_sizes(plan.lists.array), 0), plan.lists.chosen
            chosen = np.where((chosen >= 0) & (chosen < len(sizes)), chosen, len(sizes) - 1)
            visited = min(visited, float(sizes[chosen].sum(axis=1).mean()))
        return replace(found, visited=visited, approximate=self.total > SMALL)

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best documents by words, or score some."""
        query = query_terms(self.db.analyser, text)
        weight = self._memo.get(("weights", text))
        unread = weight is None or (only is None and (text, k) not in self._matched)
        if query.terms and self.total and unread:
            asked, unknown = self._word_asks(text, max(k, 1), (WORDS,))
            self._take_words(text, k, unknown, self._search(asked))
            weight = self._memo["weights", text]
        keys = self._matched.get((text, k), np.empty(0, np.int64)) if only is None else only
        parts = self._parts(query, np.zeros(len(query.terms), np.float32) if weight is None else weight, keys)
        if only is None:
            scores = add_words(parts)
            order = np.lexsort((keys, -scores))
            order = order[scores[order] > 0][:k]
            keys, parts = keys[order], parts[order]
        holding = [self._memo.get(("rarity", term), 0.0) for term in (*query.terms, *query.skipped)]
        return matches_of(query, keys, parts, holding, self.total)

    def _parts(self, query: QueryTerms, weight: Floats, keys: Keys) -> Floats:
        points = self.points(keys, (WORDS,))
        mean = max(1.0, self.state["length"] / max(1, self.total))
        norm = norms(np.array([one["length"] for one in points]), mean)
        return parts_of(query, weight, [one[WORDS] for one in points], norm)

    def _word_asks(self, text: str, k: int, read: Sequence[str]) -> tuple[list[Ask], list[int]]:
        """Searches of candidates, of the best of all documents if these may be others, of words of unknown rarity."""
        query = query_terms(self.db.analyser, text)
        if not query.terms or not self.total:
            return [], []
        vector = sparse(query.terms, [1.0] * query.singles + [PAIR] * (len(query.terms) - query.singles))
        depth = k + 16 + k // 8
        phrases = sparse(sorted(query.required), [1.0] * len(query.required))
        first = self._ask(WORDS, phrases or vector, 4 * depth if phrases else depth, read, *self._must)
        unknown = [term for term in (*query.terms, *query.skipped) if ("rarity", term) not in self._memo]
        each = [self._ask(WORDS, {term >> SPARSE: 1.0}, 1, (WORDS, "norm")) for term in unknown]
        best = [self._ask(WORDS, vector, BEST, (WORDS,))] if phrases or self._must else []
        return [first, *best, *each], unknown

    def _take_words(self, text: str, k: int, unknown: Sequence[int], found: Sequence[Sequence[Any]]) -> None:
        """Take in candidates and rarities, and what the query's words weigh."""
        query, memo = query_terms(self.db.analyser, text), self._memo
        self._matched[text, k], searches = _keys_of(found[:1]), len(found) - len(unknown)
        for term, hits in zip(unknown, found[searches:], strict=True):
            memo["rarity", term] = 0.0
            if hits:  # its score is its rarity times what the document makes of it
                impact = impacts(from_texts([hits[0].payload[WORDS]]), hits[0].payload["norm"])
                memo["rarity", term] = self._holding(hits[0].score / impact[term >> SPARSE])
        holding = [memo["rarity", term] for term in (*query.terms, *query.skipped)]
        weight, reach = weights(query, holding, self.total)
        total = max(float(weight.sum()), 1e-12)
        scaled = np.asarray(weight / total, np.float32)
        top = _keys_of([found[searches - 1][:BEST]])
        best = add_words(self._parts(query._replace(required=frozenset()), scaled, top))
        factor = 1 / max(reach / total, *best.tolist(), 1e-12)
        memo["weights", text] = np.asarray(scaled.astype(np.float64) * factor, np.float32)

    def _holding(self, rarity: float) -> float:
        """Number of documents with a word of this rarity, ln((N + 1) / (n + ½)), where N are counted."""

        def count() -> float:
            [[one]] = self._answers([self._ask(WORDS, {PROBE: 1.0}, 1, ())])
            return 1.5 * float(np.exp(one.score)) - 1

        counted = float(self._remember("counted", read=count))
        found = max(0.0, (counted + 1) * float(np.exp(-rarity)) - 0.5)
        shards = self.total / max(1.0, round(counted) - 1)  # one of several counts its own documents
        return min((round(found) if found < 1e5 else found) * max(1.0, shards), float(self.total))
