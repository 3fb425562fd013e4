"""The searches of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from palmette import telemetry
from palmette.arrays import Keys
from palmette.errors import InputError, NotFoundError, shown
from palmette.index.context import TOKENS, Expand, check_expand, expand_hits
from palmette.index.folder import check_count, check_ids
from palmette.index.grouping import Distinct, GroupBy, Shown, fold
from palmette.index.results import Boost, FilterLike, Query, QueryList, Ranking, SearchResult, read_queries
from palmette.model import Model
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.score import DEFAULT, Lexical, Units, noted_units
from palmette.ranking.units import UNITS, measured_on, units_for
from palmette.search.plan import View
from palmette.store.backend import Backend
from palmette.store.filters import Filter, parse_filter
from palmette.types import Explanation, Hit

WALLS = 4096
"""Walls whose units are remembered."""


class Searching:
    """The searching half of :class:`palmette.Index`: documents under one model."""

    def __init__(self, model: Model, backend: Backend) -> None:
        self.model = model
        self.backend = backend
        self._sentences = model.sentences and stores_sentences(backend)
        self._measured: dict[tuple[str, int], Units] = {}  # by variant of the options and number of documents
        self._measured_within: dict[tuple[Filter | None, str], tuple[Keys, Units]] = {}

    @overload
    def search(self, query: str, k: int = 10, **how: Any) -> list[Hit]: ...

    @overload
    def search(self, query: QueryList, k: int = 10, **how: Any) -> list[list[Hit]]: ...

    def search(
        self,
        query: Query | QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        threshold: float | None = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        group_by: GroupBy | None = None,
        distinct: Distinct = False,
        expand: Expand | None = None,
        expand_tokens: int = TOKENS,
        explain: bool = False,
        **options: Any,
    ) -> list[Hit] | list[list[Hit]]:
        """Find the ``k`` best passages, best first.

        Args:
            query: A text; or several texts, or encoder embeddings [Q, d], for a list of results each, in one pass. A
                tuple among several texts is one query, the mean of what the model makes of its texts.
            k: How many; fewer come back only when fewer match.
            filter: Conditions on metadata, applied before ranking: ``{"lang": "en", "year": {"$gte": 2020}}``.
            threshold: Leave out hits whose probability is less.
            lexical: How much words count beside meaning, 0 (not at all) … 1 (words alone), or ``"auto"`` for what the
                model has learned, else one half.
            sentences: Whether the best sentence counts beside the method's score, where the index stores sentences.
                ``lexical=0, sentences=False`` ranks as the method alone does.
            boost: Log-odds added by metadata, among the best hundred of each ranking: ``{"date":
                recency(half_life="90d"), "kind": {"guide": 0.5}}``. See :mod:`palmette.ranking.boost`.
            group_by: ``"document"`` for the ``k`` best documents, each by its best passage; two more are its
                :attr:`Hit.others`.
            distinct: Show passages of the same text once, and name the others in :attr:`Hit.copies`; ``"near"`` for
                those that share four fifths of their words in a row.
            expand: Widen hits (:attr:`Hit.around`, :attr:`Hit.text`) to the ``"neighbours"`` of a passage, its
                ``"section"`` or ``"document"``, as far as ``expand_tokens`` reach.
            expand_tokens: Tokens of a hit with what is around it.
            explain: Explain every hit now, from the very state that was searched; otherwise :meth:`Hit.explain`
                does so when asked, if the document is still the same.
            options: The method's own, such as ``level=`` for a tree.
        """
        single = isinstance(query, str)
        given: Any = threshold
        if given is not None and (
            isinstance(given, bool)
            or not isinstance(given, int | float | np.number)
            or given != given
            or (isinstance(given, int) and abs(given) > 10**300)  # no float
        ):
            raise InputError(f"threshold must be a number or None, got {shown(threshold)}")
        queries = [query] if isinstance(query, str) else query
        if isinstance(queries, Sequence) and not queries:
            return []
        k, counted = check_count("k", k), sentences and self._sentences
        chosen, budget = Shown.of(group_by, distinct), check_expand(expand, expand_tokens)
        place = str(getattr(self, "path", None) or "an index in memory")
        with telemetry.searching(self.model.method, place, queries) as tell:
            batch = read_queries(self.model, queries, options, lexical, counted, boost)
            with self.backend.read(parse_filter(filter)) as view:
                if chosen:
                    found, copies = chosen.search(batch, view, k, self._units)
                    results = found.to_hits(view, self.backend, threshold, explain, copies)
                else:
                    results = batch.search(view, k, self._units).to_hits(view, self.backend, threshold, explain)
                if group_by:
                    results = [fold(hits, k) for hits in results]
                if expand:
                    count = self.model.encoder.count_tokens
                    results = [expand_hits(view, hits, expand, budget, count) for hits in results]
            tell(results)
        return results[0] if single else results

    def rank(
        self,
        queries: QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        **options: Any,
    ) -> Ranking:
        """Rank documents by id and score only, for evaluation: :meth:`search` without the documents' texts.

        A document counts once, by its best passage.
        """
        if isinstance(queries, Sequence) and not queries:
            return Ranking([], [], 0.0)
        k, counted = check_count("k", k), sentences and self._sentences
        batch = read_queries(self.model, queries, options, lexical, counted, boost)
        with self.backend.read(parse_filter(filter)) as view:
            most = k
            while True:
                found = batch.search(view, most, self._units)
                best = found.best_passages(view)  # [Q, n]
                done = (best.sum(axis=1) >= k) | ((found.found.keys >= 0).sum(axis=1) < most)
                if most >= len(view) or done.all():
                    return found.ranking(view, best, k)
                most *= 4

    def _units(self, options: Any, view: View) -> Units:
        """Units of meaning: noted with the documents, or of another variant, measured on all documents once."""
        if view.wall_keys() is not None:
            return self._units_within(options, view)
        variant, noted = self.model.lexical_key(options) or "", view.note(UNITS)
        whole = None if noted is None else noted_units(noted)
        if whole is not None and not variant:
            return whole
        documents = whole.documents if whole else max(1, len(view))
        key = (variant, documents)
        if key not in self._measured:
            with self.backend.read() as everything:  # whatever filter this search has
                self._measured[key] = units_for(self.model, options, everything, self._sentences)
        return self._measured[key].model_copy(update={"documents": documents})

    def _units_within(self, options: Any, view: View) -> Units:
        """Units of the documents behind a wall: of the training, or measured on these documents alone."""
        key, keys = self.model.lexical_key(options) or "", view.wall_keys()
        assert keys is not None
        place, some = (getattr(self.backend, "within", None), key), measured_on(keys)
        known = self._measured_within.get(place)
        if known is None or (known[0] is not keys and not np.array_equal(measured_on(known[0]), some)):
            if len(view) < len(keys):  # a search's own filter lies within the wall
                with self.backend.read() as whole:
                    return self._units_within(options, whole)
            known = keys, units_for(self.model, options, view, self._sentences, some)
            if len(self._measured_within) >= WALLS:
                self._measured_within.clear()
        self._measured_within[place] = keys, known[1]
        return known[1].model_copy(update={"documents": max(1, len(keys))})

    def explain(
        self,
        query: Query,
        id: str,
        *,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        **options: Any,
    ) -> Explanation:
        """Explain the score of a document's best passage, whether or not a search would return it."""
        given = np.atleast_2d(query)[:1] if isinstance(query, np.ndarray) else [query]
        [id] = check_ids([id])
        model, wanted = self.model, sentences and self._sentences
        batch = read_queries(model, given, options, lexical, wanted, boost)
        with self.backend.read() as view:
            passages = view.keys_of([id]).get(id)
            if passages is None:
                raise NotFoundError(f"there is no document {shown(id)} in this index")
            keys, evidence = np.array(passages), batch.evidence(self._units, view)
            scoring = model.scoring_options(batch.options)
            plan = model.plan(batch.arrays, len(keys), scoring, view).one_query(0).among(keys)
            found = model.execute(view, plan, len(keys), scoring).one_query(0)
            if batch.calibration is not None:
                found = evidence.score(view, 0, found.keys[0], found.scores[0])
            return SearchResult(batch, evidence, found).explain(view, self.backend, 0, int(found.scores[0].argmax()))
