"""Reranking: documents are scored without an index, exactly as an index of them would score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palmette.arrays import Floats, Keys
from palmette.errors import InputError, shown
from palmette.lexical.analyser import Analyser, analyser_of, check_language, check_query
from palmette.lexical.bm25 import WordCollection
from palmette.ranking.arrays import stored_arrays
from palmette.ranking.scales import score_scales_for
from palmette.ranking.score import Calibration, Evidence, Lexical, probability
from palmette.search.plan import Candidates, WordMatches
from palmette.store.memory import ArrayView
from palmette.types import Document


class DocumentsView(ArrayView):
    """Arrays and words of documents in memory."""

    def __init__(self, arrays: Mapping[str, Any], documents: Sequence[Document], analyser: Analyser) -> None:
        super().__init__(arrays, documents)
        self._collection = WordCollection(analyser, [document.all_text for document in documents])

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Score all documents, or ``only`` some, by the words of a text."""
        matches = self._collection.matches(text)
        return matches if only is None else replace(matches, scores=matches.scores[only], keys=only)


@dataclass(frozen=True)
class RankedDocuments:
    """Result of :func:`rank_documents`."""

    order: list[int]
    """Positions of the documents that a search returns, in its order."""
    scores: list[float]
    """Probability of each document, in the order of the argument; 0 for documents without a quoted phrase."""


def rank_documents(
    model: Any, query: str, documents: Sequence[Document], options: Any, *, lexical: Lexical, language: str | None
) -> RankedDocuments:
    """Rank documents as an exhaustive search of an index would; ``options`` are validated search options."""
    calibration, analyser = model.calibration(options, lexical), analyser_of(check_language(language))
    every: Any = documents
    if not isinstance(every, Sequence) or not all(isinstance(item, Document) for item in every):
        raise InputError(f"score takes a list of Documents, got {shown(every)}")
    if not documents:
        return RankedDocuments([], [])
    # documents of equal content are encoded once: in two places of a batch their last bits could differ
    places: dict[str, list[int]] = {}
    for place, document in enumerate(documents):
        places.setdefault(model.content_read(document), []).append(place)
    distinct = [documents[same[0]] for same in places.values()]
    view = DocumentsView(stored_arrays(model, distinct, model.sentences), distinct, analyser)
    ranked, logits = _rank_rows(model, query, view, options, calibration)
    rows, scores = list(places.values()), [0.0] * len(documents)
    for same, score in zip(rows, probability(logits).tolist(), strict=True):
        for place in same:
            scores[place] = score
    return RankedDocuments([place for row in ranked.tolist() for place in rows[row]], scores)


def _rank_rows(
    model: Any, query: str, view: DocumentsView, options: Any, calibration: Calibration | None
) -> tuple[Keys, Floats]:
    """Return the rows that a search returns, in its order, and the log-odds of all rows [N]."""
    texts = model.query_input([check_query(query)])
    arrays = model.encode_queries(texts, options)
    # 1. the query's evidence: words, score scales, and vectors to compare sentences with
    mix, score_scales = calibration or Calibration(words=0.0), score_scales_for(model, options, view, model.sentences)
    vectors = None
    if calibration is not None and model.sentences:
        vectors = model.sentence_queries(arrays, texts)
    else:
        score_scales = score_scales.replace(sentence=None)
    evidence = Evidence(mix, score_scales, [query] if mix.words else (), vectors)
    # 2. all rows by the method's score, and by all evidence
    scoring = model.scoring_options(options)
    every = _search_all(model, view, arrays, scoring)
    own = np.full(len(view), every.scores.min(initial=0.0), np.float32)  # rows that the method does not score come last
    own[every.keys[0]] = every.scores[0]
    logits = evidence.score(view, 0, view.keys(), own).scores[0]
    # 3. the rows that a search with these options returns, in its order
    ranked = (every if scoring == options else _search_all(model, view, arrays, options)).keys[0]
    if calibration is not None:  # else these options do not rank by score alone, and their order stays
        ranked = ranked[np.lexsort((ranked, -own[ranked], -logits[ranked]))]
        ranked = ranked[logits[ranked] > -np.inf]
    return ranked, logits


def _search_all(model: Any, view: DocumentsView, queries: Mapping[str, Any], options: Any) -> Candidates:
    """Compare one query with all rows that its plan allows, without lists."""
    plan = model.plan(queries, len(view), options, view)
    allowed = view.keys() if plan.only is None else plan.only
    candidates: Candidates = model.execute(view, plan.among(allowed), len(view), options).one_query(0)
    return candidates
