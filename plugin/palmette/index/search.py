"""Searches, rankings and explanations of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args, overload

import numpy as np

from palmette.arrays import Keys
from palmette.config import check_choice, check_count
from palmette.errors import InputError, NotFoundError, shown
from palmette.index.context import TOKENS, Expand, expand_hits
from palmette.index.grouping import Copies, Distinct, GroupBy, Selection, fold
from palmette.index.inputs import check_ids
from palmette.index.results import Boost, Query, QueryList, Ranking, SearchResult, read_queries
from palmette.machine import telemetry
from palmette.methods.base import Model
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.score import DEFAULT, Lexical, Units, noted_units
from palmette.ranking.units import UNITS, measured_on, units_for
from palmette.store.filters import Filter, FilterLike
from palmette.store.protocols import Backend, View
from palmette.types import Explanation, Hit

WALLS = 4096
"""Largest number of filtered indexes (:meth:`palmette.Index.filtered`) whose units are remembered."""

LARGEST_INTEGER = 10**300
"""Largest integer as a threshold; floats end at about 1.8 · 10³⁰⁸."""


class Searching:
    """The searching half of :class:`palmette.Index`: documents under one model."""

    def __init__(self, model: Model, backend: Backend) -> None:
        self.model = model
        self.backend = backend
        self._sentences = model.sentences and stores_sentences(backend)
        self._measured: dict[tuple[str, int], Units] = {}  # by variant of the options and number of documents
        self._measured_within: dict[tuple[Filter | None, str], tuple[Keys, Units]] = {}

    @overload
    def search(self, query: str, k: int = 10, **options: Any) -> list[Hit]: ...

    @overload
    def search(self, query: QueryList, k: int = 10, **options: Any) -> list[list[Hit]]: ...

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
            query: One text; or a list of texts, or encoder embeddings [Q, d], for one list of hits per query. A tuple
                of texts within the list is one query, the mean of the vectors of its texts.
            k: Number of hits; fewer are returned only when fewer passages match.
            filter: Conditions on metadata, applied before ranking: ``{"lang": "en", "year": {"$gte": 2020}}``.
            threshold: Least probability of a hit.
            lexical: Weight of words beside meaning, from 0 (meaning alone) to 1 (words alone), or ``"auto"`` for the
                weight that the model has learned, else one half.
            sentences: Whether the best sentence counts beside the method's score, where the index stores sentences.
                ``lexical=0, sentences=False`` ranks as the method alone does.
            boost: Log-odds added by metadata, among the best hundred of each ranking: ``{"date":
                recency(half_life="90d"), "kind": {"guide": 0.5}}``. See :mod:`palmette.ranking.boost`.
            group_by: ``"document"`` for the ``k`` best documents, each by its best passage; up to two further
                passages are the :attr:`Hit.others` of the hit.
            distinct: Return passages of equal text once, and cite the others in :attr:`Hit.copies`; ``"near"`` also
                merges passages that share four fifths of their word trigrams.
            expand: Widen hits (:attr:`Hit.around`, :attr:`Hit.text`) to the ``"neighbours"`` of a passage, its
                ``"section"`` or its ``"document"``, up to ``expand_tokens``.
            expand_tokens: Largest number of tokens of a hit with the text around it.
            explain: Explain every hit now, from the state that was searched; otherwise :meth:`Hit.explain` computes
                the explanation when it is called, if the document has not changed.
            options: The method's search options, such as ``level=`` for a tree.
        """
        single = isinstance(query, str)
        _check_threshold(threshold)
        queries = [query] if isinstance(query, str) else query
        if isinstance(queries, Sequence) and not queries:
            return []
        k, token_budget = check_count("k", k), check_count("expand_tokens", expand_tokens)
        if expand is not None:
            check_choice("expand", expand, get_args(Expand))
        plain = group_by is None and distinct is False
        selection = None if plain else Selection.of(group_by, distinct)
        location = str(getattr(self, "path", None) or "an index in memory")
        with telemetry.searching(self.model.method, location, queries) as record:
            batch = read_queries(self.model, queries, options, lexical, sentences and self._sentences, boost)
            with self.backend.read(filter) as view:
                copies: list[Copies] = []
                if selection is not None:
                    result, copies = selection.search(batch, view, k, self._units)
                else:
                    result = batch.search(view, k, self._units)
                results = result.to_hits(view, self.backend, threshold, explain, copies)
                if group_by:
                    results = [fold(hits, k) for hits in results]
                if expand:
                    count_tokens = self.model.encoder.count_tokens
                    results = [expand_hits(view, hits, expand, token_budget, count_tokens) for hits in results]
            record(results)
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
        k = check_count("k", k)
        batch = read_queries(self.model, queries, options, lexical, sentences and self._sentences, boost)
        with self.backend.read(filter) as view:
            ranked = k  # passages; several of them may be of one document
            while True:
                result = batch.search(view, ranked, self._units)
                best = result.best_passages(view)  # [Q, n]
                exhausted = (result.candidates.keys >= 0).sum(axis=1) < ranked
                if ranked >= len(view) or ((best.sum(axis=1) >= k) | exhausted).all():
                    return result.ranking(view, best, k)
                ranked *= 4

    def _units(self, options: Any, view: View) -> Units:
        """Units of meaning for the options of a search.

        The index stores the units of the default options with its documents. Those of another variant of the options
        are measured on all documents when a search first needs them.
        """
        if view.wall_keys() is not None:
            return self._units_within(options, view)
        variant, note = self.model.lexical_key(options) or "", view.note(UNITS)
        stored = None if note is None else noted_units(note)
        if stored is not None and not variant:
            return stored
        documents = stored.documents if stored else max(1, len(view))
        key = (variant, documents)
        if key not in self._measured:
            with self.backend.read() as unfiltered:
                self._measured[key] = units_for(self.model, options, unfiltered, self._sentences)
        return self._measured[key].model_copy(update={"documents": documents})

    def _units_within(self, options: Any, view: View) -> Units:
        """Units of meaning of a filtered index: learned in training, or measured on the documents it shows."""
        variant, keys = self.model.lexical_key(options) or "", view.wall_keys()
        assert keys is not None
        wall, sample = (getattr(self.backend, "within", None), variant), measured_on(keys)
        remembered = self._measured_within.get(wall)  # all keys behind the wall when it was measured, and its units
        if remembered is None or (remembered[0] is not keys and not np.array_equal(measured_on(remembered[0]), sample)):
            if len(view) < len(keys):  # the search has a filter of its own, which must not change the units
                with self.backend.read() as unfiltered:
                    return self._units_within(options, unfiltered)
            remembered = keys, units_for(self.model, options, view, self._sentences, sample)
            if len(self._measured_within) >= WALLS:
                self._measured_within.clear()
        self._measured_within[wall] = keys, remembered[1]
        return remembered[1].model_copy(update={"documents": max(1, len(keys))})

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
        queries = np.atleast_2d(query)[:1] if isinstance(query, np.ndarray) else [query]
        [id] = check_ids([id])
        model = self.model
        batch = read_queries(model, queries, options, lexical, sentences and self._sentences, boost)
        with self.backend.read() as view:
            passages = view.keys_of([id]).get(id)
            if passages is None:
                raise NotFoundError(f"there is no document {shown(id)} in this index")
            keys, evidence = np.array(passages), batch.evidence(self._units, view)
            scoring = model.scoring_options(batch.options)
            plan = model.plan(batch.arrays, len(keys), scoring, view).one_query(0).among(keys)
            candidates = model.execute(view, plan, len(keys), scoring).one_query(0)
            if batch.calibration is not None:
                candidates = evidence.score(view, 0, candidates.keys[0], candidates.scores[0])
            result, best = SearchResult(batch, evidence, candidates), int(candidates.scores[0].argmax())
            return result.explain(view, self.backend, 0, best)


def _check_threshold(threshold: Any) -> None:
    """Raise for a threshold that is no number, or an integer too large for a float."""
    if threshold is None:
        return
    is_number = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not is_number or threshold != threshold or (isinstance(threshold, int) and abs(threshold) > LARGEST_INTEGER):
        raise InputError(f"threshold must be a number or None, got {shown(threshold)}")
