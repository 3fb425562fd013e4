"""Coefficients of evidence, learned from held-out questions on arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from palmette.arrays import Floats, Keys, Ragged, best_of_each, concatenate
from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.errors import InputError, shown
from palmette.evidence import (
    PRIOR,
    SCALES,
    SENTENCES,
    SLOPE,
    Calibration,
    Evidence,
    Lexical,
    Scale,
    Units,
    best_sentences,
    chance,
    probability,
    sentence_arrays,
    sentence_rows,
    units_for,
)
from palmette.lexical.analyser import LANGUAGE, Analyser, analyser_of, check_language, check_query
from palmette.lexical.bm25 import WordCollection
from palmette.metrics import Judgements, query_scores
from palmette.search.plan import Candidates, WordMatches
from palmette.search.view import ArrayView
from palmette.telemetry import encoding
from palmette.training.pairs import Validation
from palmette.types import Document

QUERIES = 300
"""Held-out queries of a sample at most."""
DOCUMENTS = 2000
"""Documents of a sample at most: the relevant ones, and others at random."""
STANDING_IN = 3
"""Words of a document that stand for a query where there is none."""
BATCH = 256
K = 10
"""Depth of nDCG."""
WEIGHTS = tuple(n / 20 for n in range(21))
"""Weights of words that are compared."""
SHIPPED_QUERIES = 10
"""Judged queries that the shipped weight counts for."""
TRUST = 0.2
"""Strength of the shipped slope and prior."""


def _sample(data: RetrievalData, seed: int) -> tuple[list[str], list[Document], Judgements | None] | None:
    """Draw held-out queries. Without any query the first words of documents stand in, and teach the units alone."""
    held = Validation.of(data, seed, queries=QUERIES, documents=DOCUMENTS)
    if held is not None:
        documents = [data.corpus[row] for row in held.documents]
        return [data.query_texts[row] for row in held.queries], documents, held.judgements
    if data.queries:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:DOCUMENTS])
    documents = [data.corpus[row] for row in rows.tolist()]
    return [" ".join(d.all_text.split()[:STANDING_IN]) for d in documents[:QUERIES]], documents, None


def calibrate(
    model: Any, data: RetrievalData, frozen: Encoder, cache: EncodingCache, *, seed: int, progress: bool | None
) -> dict[str, Calibration]:
    """Learn the coefficients for each variant of a :class:`palmette.model.Model`'s search, by key.

    ``frozen`` is the encoder as it was given: if the model still has it, ``cache`` knows most of the documents.
    """
    variants = model.lexical_variants()
    sample = _sample(data, seed) if variants else None
    if sample is None:
        return {}
    queries, documents, judgements = sample
    collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in documents])
    matched = [collection.matches(query) for query in queries]
    shares = np.stack([found.scores for found in matched])
    accident = chance(np.array([found.rarity for found in matched]))[:, None]
    learned = {}
    with _encoded(model, documents, frozen, cache, progress) as view:
        texts = model.query_input(queries)
        best = np.full(shares.shape, np.nan, np.float32)
        if model.sentences:
            vectors = model.sentence_queries(model.encode_queries(texts, model.search_options({})), texts)
            stored = view.arrays[SENTENCES], view.arrays[SCALES]
            best = np.stack([best_sentences(*stored, vector)[0] for vector in vectors])
        for key, options in variants.items():
            own = scores(model, view, texts, options)
            units = Units(own=Scale.of(own), sentence=Scale.of(best) if model.sentences else None)
            learned[key] = learn(own, best, shares - accident, units, judgements)
    return learned


def learn(own: Floats, best: Floats, shares: Floats, units: Units, judgements: Judgements | None) -> Calibration:
    """Learn from the method's scores, best sentences and shares of words (less those by chance): [Q, N] each.

    With judgements, the weight of words is the mean of all weights whose nDCG@10 lies within one standard error of the
    best one's, since curves are flat near their top and the top itself is noise; few judgements move it little from the
    shipped weight. Slope and prior fit the first hits.
    """
    plain = Calibration(units=units)
    if judgements is None:
        return plain

    def total(weight: float) -> NDArray[np.float64]:
        asked = ("",) * len(own)  # words count
        return Evidence(plain.replace(words=weight), units, asked).total(own, best, shares)

    rated = judgements.relevant > 0
    quality = np.stack([_ndcg(total(weight), judgements)[rated] for weight in WEIGHTS])  # [weights, Q]
    loss = quality[quality.mean(axis=1).argmax()] - quality  # [weights, Q]
    as_good = loss.mean(axis=1) <= loss.std(axis=1) / np.sqrt(rated.sum())
    trust = rated.sum() / (rated.sum() + SHIPPED_QUERIES)
    chosen = round(float(trust * np.array(WEIGHTS)[as_good].mean() + (1 - trust) * plain.words), 4)
    sums = total(chosen)
    first = best_of_each(sums, 1)  # [Q, 1]
    relevant = judgements.gains(first) > 0
    x, y = np.take_along_axis(sums, first, axis=1)[rated].ravel(), relevant[rated].ravel()
    slope, prior = fit_probability(x, y)
    return plain.replace(words=chosen, slope=slope, prior=prior, source="held-out questions")


def fit_probability(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    """Fit slope and prior of a logistic function to sums of evidence [n] and their relevance [n]."""
    from scipy.optimize import minimize

    def loss(weights: NDArray[np.float64]) -> float:
        logits = weights[0] * x + weights[1]
        distance = ((weights - (SLOPE, PRIOR)) ** 2).sum()
        return float(np.sum(np.logaddexp(0, logits) - y * logits) + TRUST * distance)

    found = minimize(loss, np.array([SLOPE, PRIOR]), method="L-BFGS-B", bounds=[(0.5, None), (None, None)]).x
    return round(float(found[0]), 4), round(float(found[1]), 4)


def _ndcg(table: NDArray[Any], judgements: Judgements) -> NDArray[np.float64]:
    return query_scores(best_of_each(table, K), judgements, ks=(K,))[f"ndcg@{K}"]


def best_weights(tables: Floats, judgements: Judgements | None) -> tuple[float, ...]:
    """Weigh several rankings' scores [M, Q, N]: equally, moved where held-out judgements clearly gain by it."""
    count = len(tables)
    weights = np.full(count, 1 / count)
    if judgements is None:
        return tuple(weights.tolist())
    rated = judgements.relevant > 0

    def quality(given: NDArray[np.float64]) -> NDArray[np.float64]:
        return _ndcg(np.tensordot(given, tables, 1), judgements)[rated]

    held = quality(weights)
    for place in (*range(count), *range(count)):
        for factor in (0.0, 0.5, 2.0, 4.0):
            tried = weights.copy()
            tried[place] *= factor
            if tried.sum() == 0:
                continue
            tried /= tried.sum()
            gain = quality(tried) - held
            if gain.mean() > gain.std() / np.sqrt(max(1, rated.sum())):
                weights, held = tried, held + gain
    return tuple(weights.tolist())


@contextmanager
def _encoded(
    model: Any, documents: Sequence[Document], frozen: Encoder, cache: EncodingCache, progress: bool | None
) -> Iterator[ArrayView]:
    """View of documents, while the model reuses the encodings of its training."""
    encoder, hidden = model.encoder, None if progress is None else not progress
    if encoder is frozen:
        model.encoder = CachedEncoder(encoder, cache)
    try:
        starts = range(0, len(documents), BATCH)
        bar = tqdm(starts, desc="Calibrating", unit="batch", delay=2, disable=hidden, leave=False)
        parts = [stored_arrays(model, documents[start : start + BATCH], model.sentences) for start in bar]
        arrays = {name: concatenate([part[name] for part in parts]) for name in parts[0]}
        yield ArrayView(arrays, documents)
    finally:
        model.encoder = encoder


def scores(model: Any, view: ArrayView, queries: Sequence[str] | Floats, options: Any) -> Floats:
    """[Q, N] scores of all documents; one that the model does not return scores as the worst that it does."""
    found = model.search(view, model.encode_queries(queries, options), len(view), options)
    held = found.keys >= 0
    lowest = np.where(held, found.scores, np.inf).min(axis=1, initial=np.inf)
    lowest = np.where(np.isfinite(lowest), lowest, 0.0).astype(np.float32)
    table = np.repeat(lowest[:, None], len(view), axis=1)
    table[np.nonzero(held)[0], found.keys[held]] = found.scores[held]
    return table


class DocumentsView(ArrayView):
    """Arrays and words of documents in memory."""

    def __init__(self, arrays: Mapping[str, Any], documents: Sequence[Document], analyser: Analyser) -> None:
        super().__init__(arrays, documents)
        self._collection = WordCollection(analyser, [document.all_text for document in documents])

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Shares of all documents, or of some."""
        found = self._collection.matches(text)
        return found if only is None else replace(found, scores=found.scores[only], keys=only)


@dataclass(frozen=True)
class RankedDocuments:
    """Documents that are ranked without an index."""

    order: list[int]
    """Places of the documents that a search returns, best first, or as its options order them."""
    scores: list[float]
    """Probability of each document, in the order given; 0 without a phrase of the query."""


def rank_documents(
    model: Any, query: str, documents: Sequence[Document], options: Any, *, lexical: Lexical, language: str | None
) -> RankedDocuments:
    """Rank documents as an index of them does that compares the query with each; ``options`` are validated."""
    calibration, analyser = model.calibration(options, lexical), analyser_of(check_language(language))
    every: Any = documents
    if not isinstance(every, Sequence) or not all(isinstance(one, Document) for one in every):
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
    """Rows of a view that a search returns, in its order, and the log-odds of all rows [N]."""
    texts = model.query_input([check_query(query)])
    arrays = model.encode_queries(texts, options)
    mix, units, vectors = calibration or Calibration(words=0.0), units_for(model, options, view, model.sentences), None
    if calibration is not None and model.sentences:
        vectors = model.sentence_queries(arrays, texts)
    else:
        units = units.replace(sentence=None)
    scoring = model.scoring_options(options)
    every = _search_all(model, view, arrays, scoring)
    own = np.full(len(view), every.scores.min(initial=0.0), np.float32)  # a row that the method does not score is last
    own[every.keys[0]] = every.scores[0]
    logits = Evidence(mix, units, [query] if mix.words else (), vectors).score(view, 0, view.keys(), own).scores[0]
    ranked = (every if scoring == options else _search_all(model, view, arrays, options)).keys[0]
    if calibration is not None:  # options that rank by score alone
        ranked = ranked[np.lexsort((ranked, -own[ranked], -logits[ranked]))]
        ranked = ranked[logits[ranked] > -np.inf]
    return ranked, logits


def _search_all(model: Any, view: DocumentsView, queries: Mapping[str, Any], options: Any) -> Candidates:
    """Candidates of one query among all rows that its plan allows, whatever lists they are in."""
    plan = model.plan(queries, len(view), options, view)
    allowed = view.keys() if plan.only is None else plan.only
    found: Candidates = model.execute(view, plan.among(allowed), len(view), options).one_query(0)
    return found


def stored_arrays(
    model: Any, documents: Sequence[Document], sentences: bool, vectors: Floats | None = None
) -> dict[str, Any]:
    """Arrays that an index stores, with those of sentences if wished; one pass where vectors are enough.

    Documents whose vectors are given have no sentences: these need the encoder's pass.
    """
    if not sentences:
        given = () if vectors is None else (vectors,)
        return dict(model.encode_documents(documents, *given))
    if vectors is None:
        encoder, cache = model.encoder, model.cache
        if cache is not None and not isinstance(encoder, CachedEncoder):  # what training has read
            encoder = CachedEncoder(encoder, cache)
        with encoding(encoder.name, len(documents)):
            own, found = encoder.encode_sentences([document.content for document in documents])
        given = (own,) if model.indexes_embeddings else ()
        return {**model.encode_documents(documents, *given), **sentence_rows(found)}
    arrays: dict[str, Any] = dict(model.encode_documents(documents, vectors))
    for spec in sentence_arrays(model.encoder.dimension):
        arrays[spec.name] = Ragged.empty(len(documents), spec.shape, spec.dtype)
    return arrays
