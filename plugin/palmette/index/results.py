"""One search of an index: encoded queries, candidates, hits and their explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Mask, Rows, unit_rows
from palmette.errors import ConfigError, InputError, NotFoundError, shown
from palmette.index.marks import highlight
from palmette.lexical.analyser import analyser_of, check_query
from palmette.lexical.bm25 import searched_part
from palmette.machine import telemetry
from palmette.methods.base import VECTOR, Model, Queries
from palmette.ranking import reasons
from palmette.ranking.arrays import SENTENCES, SPANS
from palmette.ranking.boost import Boosts, parse_boost
from palmette.ranking.score import (
    BEST_SENTENCE,
    BEST_SENTENCE_NUMBER,
    BOOST,
    EXPECTED_WORD_SHARE,
    METHOD_SCORE,
    SPAN,
    WORD_SHARE,
    Calibration,
    Evidence,
    Lexical,
    ScoreScales,
    probability,
)
from palmette.ranking.second_stage import RERANK, RERANK_SCORE, SecondStage
from palmette.search.plan import Candidates
from palmette.store.protocols import Backend, View, read_array
from palmette.types import Document, Explanation, Highlights, Hit, Passage, SentenceVectors, cite

Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""One text, or several texts that make one query: the mean of their vectors."""
Query = Texts | Embeddings
QueryList = Sequence[Texts] | Embeddings
Boost = Mapping[str, Any] | Boosts | None
FindScales = Callable[[Any, View], ScoreScales]
"""A function from search options and a view to the units of a score scale that a search uses."""
RAW = (METHOD_SCORE, BEST_SENTENCE, WORD_SHARE, EXPECTED_WORD_SHARE, BOOST, RERANK, RERANK_SCORE)
"""Names of the evidence that a hit shows (:attr:`palmette.types.Hit.evidence`)."""


@dataclass(frozen=True)
class Ranking:
    """Ids and scores per query, best first, and the share of the documents that a query was compared with."""

    ids: list[list[str]]
    scores: list[list[float]]
    visited: float


@dataclass(frozen=True)
class QueryBatch:
    """Encoded queries with validated options."""

    model: Model
    arrays: Queries
    options: Any
    calibration: Calibration | None
    """Coefficients of the evidence; ``None`` where these options do not rank by score alone."""
    texts: Sequence[str] = ()
    """Text of each query; empty where queries are embeddings or means of several texts."""
    vectors: Floats | None = None
    """[Q, d] vectors to compare sentences with; ``None`` where sentences do not count."""
    boosts: Boosts | None = None
    """Log-odds by metadata, if any."""
    second: SecondStage | None = None
    """The reranker's judgements, if one is asked."""

    def search(self, view: View, k: int, measure: FindScales) -> SearchResult:
        """Find the ``k`` best documents of a view."""
        model, k = self.model, min(k, max(1, len(view)))
        plan = model.plan(self.arrays, k, self.options, view)
        evidence = self.evidence(measure, view)
        others = self.vectors, self.boosts, self.second
        adds_to_method = evidence.texts or any(other is not None for other in others)
        if self.calibration is None or not adds_to_method:  # the method ranks alone
            return SearchResult(self, evidence, model.execute(view, plan, k, self.options))
        execute = partial(model.execute, view, options=self.options)
        return SearchResult(self, evidence, evidence.rank(execute, view, plan, k))

    def method_scores(self, view: View, row: int, keys: Keys) -> Candidates:
        """Score some passages for one query by the method alone, in any order."""
        options = self.model.scoring_options(self.options)
        plan = self.model.plan(self.arrays, len(keys), options, view).one_query(row).among(keys)
        return self.model.execute(view, plan, len(keys), options).one_query(0)

    def evidence(self, measure: FindScales, view: View) -> Evidence:
        """Combine coefficients, score scales and all evidence of these queries on a view."""
        calibration = self.calibration or Calibration(words=0.0)
        score_scales = measure(self.options, view)
        if self.vectors is None:
            score_scales = score_scales.model_copy(update={"sentence": None})
        texts = self.texts if calibration.words else ()
        if not texts and calibration.words:  # a query without texts has no words
            calibration = calibration.replace(words=0.0)
        return Evidence(calibration, score_scales, texts, self.vectors, self.boosts, self.second)


def encode_query_batch(
    model: Model, queries: QueryList, options: Mapping[str, Any], lexical: Lexical, sentences: bool, boost: Any = None
) -> QueryBatch:
    """Check queries and options, then encode the queries.

    ``sentences`` says whether a document's best sentence counts beside the method's score.
    """
    search_options, boosts = model.search_options(options), None if boost is None else parse_boost(boost)
    calibration = model.calibration(search_options, lexical)
    if boosts and calibration is None:
        raise ConfigError(
            f"boost adds to a score, but these {model.method} options do not rank by score alone: leave one of both out"
        )
    texts_of_queries, has_means = _texts_of_queries(queries)
    texts = list(chain.from_iterable(texts_of_queries))
    if (has_means or not texts) and lexical not in ("auto", 0):
        raise ConfigError(f"lexical={lexical!r} needs the words of a query: search with its text, or lexical=0")
    encoder_input: Any
    if isinstance(queries, np.ndarray):
        encoder_input = model.encoder.map(_check_embeddings(queries, model.encoder.dimension), "query")
        model.require_embeddings()
    else:
        encoder_input = model.query_input(texts)
    with telemetry.encoding(model.encoder.name, len(texts)):
        arrays = model.encode_queries(encoder_input, search_options)
    counts_sentences = sentences and calibration is not None
    vectors = model.sentence_queries(arrays, encoder_input) if counts_sentences else None
    if has_means:
        sizes = list(map(len, texts_of_queries))
        arrays = {name: _means(array, sizes) for name, array in arrays.items()}
        vectors = None if vectors is None else unit_rows(_means(vectors, sizes))
    return QueryBatch(model, arrays, search_options, calibration, () if has_means else texts, vectors, boosts)


def _texts_of_queries(queries: QueryList) -> tuple[list[tuple[str, ...]], bool]:
    """Check queries; return the texts of each (none for an array of embeddings), and whether any has several."""
    if isinstance(queries, str) or not isinstance(queries, Sequence | np.ndarray):
        raise InputError(
            f"queries are a list of str or an array of embeddings, got {type(queries).__name__} {shown(queries)}"
        )
    texts_of_queries, has_means = list[tuple[str, ...]](), False
    for query in () if isinstance(queries, np.ndarray) else queries:
        has_means = has_means or isinstance(query, tuple)
        texts = query if isinstance(query, tuple) else (query,)
        if not texts:
            raise InputError("a query of several texts has none: give it at least one")
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"a query must be a str, got {type(text).__name__}: {shown(text)}")
            if not text.strip():
                raise InputError("the query is empty: give it at least one word")
            check_query(text)
        texts_of_queries.append(texts)
    return texts_of_queries, has_means


def _means(array: NDArray[Any], sizes: Sequence[int]) -> NDArray[Any]:
    """Average the rows of each query, which has ``sizes`` rows: [T, …] → [Q, …]."""
    parts = np.split(array, np.cumsum(sizes)[:-1])
    return np.stack([part.mean(axis=0) for part in parts]).astype(array.dtype)


def _check_embeddings(embeddings: Embeddings, width: int) -> NDArray[np.float32]:
    """Check query embeddings, and return them as float32 [Q, width]."""
    if embeddings.dtype.kind not in "fiu":
        raise InputError(
            f"query embeddings must be numbers, got an array of {embeddings.dtype}; give texts as a list of str"
        )
    vectors = np.atleast_2d(np.asarray(embeddings, np.float32))
    if vectors.ndim != 2 or vectors.shape[1] != width or not len(vectors) or not np.isfinite(vectors).all():
        raise InputError(f"query embeddings must be finite and [Q, {width}], got {np.shape(embeddings)}")
    return vectors


@dataclass(frozen=True)
class SearchResult:
    """Ranked candidates of a search; rows are queries, columns are passages, best first."""

    batch: QueryBatch
    evidence: Evidence
    candidates: Candidates
    """Scores are log-odds where evidence is summed, else the method's own."""

    @property
    def logits(self) -> NDArray[Any]:
        """[Q, k] log-odds; −∞ where padded."""
        if self.batch.calibration is not None and METHOD_SCORE in self.candidates.evidence:
            return self.candidates.scores
        padded = self.candidates.keys < 0
        own = np.where(padded, 0, self.candidates.scores)
        logits = self.evidence.logit(self.evidence.score_scales.method.apply(own))
        return np.where(padded, -np.inf, logits)

    def to_hits(
        self,
        view: View,
        backend: Backend,
        threshold: float | None,
        explained: bool,
        copies: Sequence[Mapping[int, Sequence[int]]] = (),
    ) -> list[list[Hit]]:
        """Read each passage once and wrap it as a hit.

        Args:
            view: The state of the index that was searched.
            backend: Storage that explains hits later.
            threshold: Least probability of a hit.
            explained: Explain every hit now.
            copies: For each query, keys of the passages of equal text by the key of the one that is shown.
        """
        keys, probabilities = self.candidates.keys, probability(self.logits)
        accepted = keys >= 0  # [Q, k]
        if threshold is not None:
            accepted &= probabilities >= np.float64(threshold)
        distinct = np.unique(keys[accepted]).tolist()
        with telemetry.span("read"):
            parts = dict(zip(distinct, view.parts(distinct), strict=True))
        results: list[list[Hit]] = []
        for row in range(len(keys)):
            columns = np.flatnonzero(accepted[row])
            hits = []
            found = self.sentences(view, row, columns)
            for column, (sentence, vectors) in zip(columns.tolist(), found, strict=True):
                key = int(keys[row, column])
                document, place = parts[key]
                explainer: Callable[[], Explanation] = partial(self.explain_later, backend, row, column, document.id)
                if explained:
                    explainer = partial(_identity, self.explain(view, backend, row, column))
                # Evidence that a hit shows; the method's score alone where no evidence was summed.
                shown_evidence = {}
                for name in RAW:
                    if name in self.candidates.evidence:
                        value = self.candidates.evidence[name][row, column]
                        if not np.isnan(value):
                            shown_evidence[name] = float(value)
                hit = Hit(
                    document,
                    float(probabilities[row, column]),
                    explainer,
                    shown_evidence or {METHOD_SCORE: float(self.candidates.scores[row, column])},
                    sentence,
                    finder=partial(self.find_highlights, backend, row, document, place, sentence),
                    passage=place,
                    vectors=vectors,
                )
                if copies and (keys_of_copies := copies[row].get(key)):
                    hit = replace(hit, copies=tuple(cite(*part) for part in view.parts(keys_of_copies)))
                hits.append(hit)
            results.append(hits)
        return results

    def sentences(
        self, view: View, row: int, columns: Rows
    ) -> list[tuple[tuple[int, int] | None, SentenceVectors | None]]:
        """Return for each hit start and end of the best sentence in its content, and the vectors of all its sentences.

        Both are ``None`` without sentences.
        """
        if self.batch.vectors is None or BEST_SENTENCE_NUMBER not in self.candidates.evidence or not len(columns):
            return [(None, None)] * len(columns)
        numbers = self.candidates.evidence[BEST_SENTENCE_NUMBER][row, columns].tolist()
        keys, model = self.candidates.keys[row, columns], self.batch.model
        spans, vectors = view.ragged(SPANS, keys), view.ragged(SENTENCES, keys)
        whole = view.rows(VECTOR, keys.tolist()) if model.stores_vectors else [None] * len(keys)
        found: list[tuple[tuple[int, int] | None, SentenceVectors | None]] = []
        for at, number in enumerate(numbers):
            if number < 0:
                found.append((None, None))
                continue
            start, end = spans.row(at)[number].tolist()
            stored = SentenceVectors(model.encoder.fingerprint, spans.row(at), vectors.row(at), whole[at])
            found.append(((start, end), stored))
        return found

    def find_highlights(
        self, backend: Backend, row: int, document: Document, place: Passage | None, sentence: tuple[int, int] | None
    ) -> Highlights:
        """Places that a reader looks at first in a hit's content."""
        question = self.batch.texts[row] if self.batch.texts else ""
        words: list[tuple[int, int]] = []
        if self.evidence.texts:
            words = analyser_of(backend.language).matches(searched_part(self.batch.texts[row]), document.content)
        return highlight(document.content, question, sentence, words, 1 if place is None else place.first_line)

    def best_passages(self, view: View) -> Mask:
        """Mark the best passage of each document: [Q, n]."""
        keys = self.candidates.keys
        real = keys >= 0
        owners, best = np.full(keys.shape, -1, np.int64), np.zeros(keys.shape, np.bool_)
        owners[real] = view.document_keys(keys[real])
        for row, owners_of_query in enumerate(owners):
            _, first_columns = np.unique(owners_of_query, return_index=True)
            best[row, first_columns] = True
        return best & real

    def ranking(self, view: View, counted: Mask, k: int) -> Ranking:
        """Ids and scores of the ``k`` best documents, by the passages that count [Q, n]."""
        keys, probabilities = self.candidates.keys, probability(self.logits)
        distinct = np.unique(keys[counted]).tolist()
        id_of = dict(zip(distinct, view.ids(distinct), strict=True))
        ids, scores = [], []
        for row in range(len(keys)):
            columns = np.flatnonzero(counted[row])[:k]
            ids.append([id_of[key] for key in keys[row, columns].tolist()])
            scores.append(probabilities[row, columns].tolist())
        return Ranking(ids, scores, self.candidates.visited / max(1, len(view)))

    def explain(self, view: View, backend: Backend, row: int, column: int) -> Explanation:
        """Explain a hit's score from its arrays, its best sentence and its words."""
        batch, key = self.batch, int(self.candidates.keys[row, column])
        document, place = view.parts([key])[0]
        query = {name: array[row : row + 1] for name, array in batch.arrays.items()}
        arrays = {spec.name: read_array(view, spec, [key]) for spec in batch.model.arrays()}
        facts: dict[str, Any] = {name: array[row, column] for name, array in self.candidates.evidence.items()}
        facts["document"] = document
        matched = None
        if batch.texts:
            matched = view.words(batch.texts[row], 0, only=np.array([key]))
            no_parts = np.zeros(len(matched.words), np.float32)
            parts = view.word_parts(batch.texts[row], key) if matched.scores[0] else no_parts
            # Rarity may have changed since the search: the parts are scaled to the share that the search counted.
            factor = float(facts.get(WORD_SHARE, 1.0)) / max(float(matched.scores[0]), 1e-12)
            matched = replace(matched, parts=parts * np.float32(factor))
        method_explanation = batch.model.explain(query, arrays, batch.options, facts)
        facts = {
            METHOD_SCORE: self.candidates.scores[row, column],
            BEST_SENTENCE: np.nan,
            EXPECTED_WORD_SHARE: 0.0,
        } | facts
        facts[SPAN] = self.sentences(view, row, np.array([column]))[0][0]
        counted_words, spelled = None, dict[str, str]()
        if self.evidence.texts:
            counted_words, spelled = (
                matched,
                reasons.spell(analyser_of(backend.language), searched_part(batch.texts[row])),
            )
        counted = "passages" if view.count_documents() < len(view) else "documents"
        explanation = reasons.explain(
            self.evidence, method_explanation, document, facts, counted_words, spelled, counted
        )
        highlights = self.find_highlights(backend, row, document, place, facts[SPAN])
        return replace(explanation, detail={**explanation.detail, "highlights": highlights.to_dict()})

    def explain_later(self, backend: Backend, row: int, column: int, id: str) -> Explanation:
        """Explain a hit of an earlier search, if its document has not changed since."""
        with backend.read() as view:
            if int(self.candidates.keys[row, column]) not in view.keys_of([id]).get(id, ()):
                raise NotFoundError(f"document {shown(id)} was changed or deleted since this search: search again")
            return self.explain(view, backend, row, column)


def _identity(explanation: Explanation) -> Explanation:
    """Return an explanation that was computed with the search."""
    return explanation
