"""The searching half of :class:`palmette.Index`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, overload

import numpy as np

from palmette.errors import InputError, shown
from palmette.evidence import DEFAULT, UNITS, Calibration, Lexical, Units, stores_sentences
from palmette.index.folder import check_ids
from palmette.index.search import (
    FilterLike,
    Query,
    QueryBatch,
    QueryList,
    Ranking,
    check_count,
    explain,
    read_queries,
)
from palmette.model import Model
from palmette.search.plan import View
from palmette.store.backend import Backend
from palmette.store.filters import parse_filter
from palmette.threads import run_in_thread
from palmette.types import Explanation, Hit


@lru_cache(64)
def _noted_units(text: str) -> Units:
    """Read the units that an index notes with its documents."""
    return Units.from_dict(json.loads(text))


class Searching:
    """Searches of documents under one model."""

    model: Model
    backend: Backend
    _measured: dict[str, Units]

    @overload
    def search(
        self,
        query: str,
        k: int = 10,
        *,
        filter: FilterLike = None,
        threshold: float | None = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        explain: bool = False,
        **options: Any,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        query: QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        threshold: float | None = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        explain: bool = False,
        **options: Any,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        query: Query | QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        threshold: float | None = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        explain: bool = False,
        **options: Any,
    ) -> list[Hit] | list[list[Hit]]:
        """Find the ``k`` best documents, best first.

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
        k, batch = check_count("k", k), self._read(queries, options, lexical, sentences)
        with self.backend.read(parse_filter(filter)) as view:
            results = batch.search(view, k, self._units).to_hits(view, self.backend, threshold, explain)
        return results[0] if single else results

    def rank(
        self,
        queries: QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        **options: Any,
    ) -> Ranking:
        """Rank documents by id and score only, for evaluation: :meth:`search` without the documents' texts."""
        if isinstance(queries, Sequence) and not queries:
            return Ranking([], [], 0.0)
        k, batch = check_count("k", k), self._read(queries, options, lexical, sentences)
        with self.backend.read(parse_filter(filter)) as view:
            return batch.search(view, k, self._units).ranking(view)

    def _read(
        self, queries: QueryList, options: dict[str, Any], lexical: Lexical, sentences: bool
    ) -> QueryBatch:
        stored = self.model.sentences and stores_sentences(self.backend)
        return read_queries(self.model, queries, options, lexical, bool(sentences) and stored)

    def _units(self, calibration: Calibration, options: Any, view: View) -> Units:
        """Units of meaning: of the training, or as they were noted with the documents, or measured now."""
        key, noted = self.model.lexical_key(options) or "", view.note(UNITS)
        whole = None if noted is None else _noted_units(noted)
        if whole is not None and not key:
            return whole
        if key not in self._measured:
            sentences = self.model.sentences and stores_sentences(self.backend)
            self._measured[key] = self.model.units(calibration, view, sentences, options)
        return self._measured[key].replace(documents=whole.documents if whole else max(1, len(view)))

    async def asearch(self, query: Any, k: int = 10, **how: Any) -> Any:
        """:meth:`search` off the event loop; searches that arrive together share one encoding pass."""
        return await run_in_thread(partial(self.search, query, k, **how))

    def explain(
        self, query: Query, id: str, *, lexical: Lexical = DEFAULT, sentences: bool = True, **options: Any
    ) -> Explanation:
        """Explain a document's score for a query, whether or not a search would return it."""
        given = np.atleast_2d(query)[:1] if isinstance(query, np.ndarray) else [query]
        [id] = check_ids([id])
        return explain(self._read(given, options, lexical, sentences), self.backend, id, self._units)
