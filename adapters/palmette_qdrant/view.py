"""Searching a Qdrant collection: candidates by the engine, scores by the code that serves folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats, Keys
from palmette.errors import CorruptIndexError, InputError
from palmette.lexical.bm25 import PAIR, QueryTerms, norms, query_terms
from palmette.lexical.packed import SPARSE, from_texts, impacts, sparse
from palmette.search.plan import Score, SearchPlan
from palmette.store.engine_view import NO_KEYS
from palmette.store.protocols import PAGE
from palmette_qdrant.points import ENTRY, PROBE, SEEN, WORDS, PointReader, decoded, keys_of_points

SMALL = 20_000
"""Documents up to which every vector is compared."""
BEST = 8
"""Points that may answer most of a query's words."""
Request = Callable[[bool], Any]
"""Makes the engine's request; its argument limits it to visible points."""


class QdrantView(PointReader):
    """The documents of one commit that pass a filter."""

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

    def _find(self, plan: SearchPlan, k: int) -> Keys:
        if plan.only is not None and len(plan.only) <= PAGE:
            return plan.only
        return keys_of_points(self._search(self._plan_requests(plan, k)))

    def _is_exact(self, plan: SearchPlan) -> bool:
        return self._documents <= SMALL

    def _weigh(self, text: str, query: QueryTerms, k: int, find: bool) -> tuple[Floats, list[float], int, Keys]:
        weight = self._memo.get(("weights", text))
        if query.terms and self.total and (weight is None or (find and (text, k) not in self._matched)):
            requests, unknown = self._word_requests(text, max(k, 1), (WORDS,))
            self._take_words(text, k, unknown, self._search(requests))
            weight = self._memo["weights", text]
        holding = [self._memo.get(("holding", term), 0.0) for term in (*query.terms, *query.skipped)]
        none = np.zeros(len(query.terms), np.float32)
        found = self._matched.get((text, k), NO_KEYS)
        return none if weight is None else weight, holding, self._documents, found

    def _entries(self, keys: Sequence[int] | Keys, payloads: Sequence[Mapping[str, Any]]) -> list[str]:
        """Texts of documents' words; raises for one that is damaged, since texts are decoded on end."""
        texts = [payload[WORDS] for payload in payloads]
        if any(len(text) % ENTRY for text in texts) or decoded("".join(texts)) is None:
            bad = [len(text) % ENTRY > 0 or decoded(text) is None for text in texts]
            raise self._damaged(keys[bad.index(True)], "its words are cut off")
        return texts

    def _texts(self, query: QueryTerms, keys: Sequence[int] | Keys) -> tuple[list[str], Floats]:
        payloads = self.points(keys, ("length", WORDS))
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
        unknown = [term for term in (*query.terms, *query.skipped) if ("holding", term) not in self._memo]
        single = [self._request(WORDS, {term >> SPARSE: 1.0}, 1, (WORDS, "norm")) for term in unknown]
        best = [self._request(WORDS, vector, BEST, (WORDS,), *self._behind)] if phrases or self._must else []
        return [candidates, *best, *single], unknown

    def _take_words(self, text: str, k: int, unknown: Sequence[int], answers: Sequence[Sequence[Any]]) -> None:
        """Take in the answers to ``_word_requests``: candidates, documents with each term, weights of the terms."""
        query, memo = query_terms(self.analyser, text), self._memo
        self._matched[text, k], searches = keys_of_points(answers[:1]), len(answers) - len(unknown)
        for term, hits in zip(unknown, answers[searches:], strict=True):
            memo["holding", term] = self._holding(hits[0], term >> SPARSE) if hits else 0.0
        holding = [memo["holding", term] for term in (*query.terms, *query.skipped)]
        top = keys_of_points([answers[searches - 1][:BEST]])
        memo["weights", text] = self._scaled(query, holding, self._documents, lambda *_: top)

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
