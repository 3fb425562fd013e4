"""Calibration: learn the weight of words, and slope and prior of the probability, from held-out queries.

    1. sample    up to 300 judged queries, their relevant documents and random others, 2,000 together
    2. score     method's score, best sentence and share of words of every pair [Q, N]
    3. weight    the weight of words with the best nDCG@10, averaged over all that are about as good
    4. fit       a logistic regression of relevance on the sum of evidence, on each query's first hit

Few judgements move the coefficients little from the shipped ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, best_of_each, concatenate
from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.metrics import Judgements, query_scores
from palmette.progress import progress_bar
from palmette.ranking.arrays import SCALES, SENTENCES, stored_arrays
from palmette.ranking.score import PRIOR, SLOPE, Calibration, Evidence, Scale, Units, best_sentences, chance
from palmette.search.view import ArrayView
from palmette.types import Document

MAX_QUERIES = 300
"""Largest number of held-out queries in a sample."""
MAX_DOCUMENTS = 2000
"""Largest number of documents in a sample: the relevant ones, and others at random."""
PSEUDO_QUERY_WORDS = 3
"""Words from a document's beginning that form a pseudo-query, where the data has no queries."""
BATCH = 256
"""Documents encoded at a time."""
K = 10
"""Cut-off of nDCG."""

WEIGHTS = tuple(n / 20 for n in range(21))
"""Candidate weights of words."""

SHIPPED_QUERIES = 10
"""Strength of the shipped weight of words, in judged queries."""

MANY_QUERIES = 30
"""Judged queries of which all judge a ranking that nothing has taught; fewer leave the shipped coefficients."""

SHRINKAGE = 0.2
"""Penalty on the squared distance from the shipped slope and prior."""


def draw_sample(data: RetrievalData, seed: int) -> tuple[list[str], list[Document], Judgements | None] | None:
    """Draw held-out queries, documents and judgements.

    Data without queries gives pseudo-queries without judgements, from which only the units are learned.
    """
    from palmette.training.pairs import Validation

    sample = Validation.of(data, seed, queries=MAX_QUERIES, documents=MAX_DOCUMENTS)
    if sample is not None:
        documents = [data.corpus[row] for row in sample.documents]
        return [data.query_texts[row] for row in sample.queries], documents, sample.judgements
    if data.queries:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:MAX_DOCUMENTS])
    documents = [data.corpus[row] for row in rows.tolist()]
    return [" ".join(d.all_text.split()[:PSEUDO_QUERY_WORDS]) for d in documents[:MAX_QUERIES]], documents, None


def calibrate(
    model: Any, data: RetrievalData, frozen: Encoder, cache: EncodingCache, *, seed: int, progress: bool | None
) -> dict[str, Calibration]:
    """Learn the coefficients for each variant of a :class:`palmette.model.Model`'s search, by key.

    ``frozen`` is the encoder before training: if the model still has it, ``cache`` holds most of the documents.
    """
    variants = model.lexical_variants()
    judged = {**data.qrels.get("train", {}), **data.qrels.get("dev", {})}
    if judged and is_untrained(model, frozen):  # no query has taught it: all of them may judge
        if len(judged) < MANY_QUERIES:
            return {}  # the weight that ten questions chose lost up to .008 on FairytaleQA
        data = replace(data, qrels={"dev": judged})
    sample = draw_sample(data, seed) if variants else None
    if sample is None:
        return {}
    queries, documents, judgements = sample
    collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in documents])
    matched = [collection.matches(query) for query in queries]
    shares = np.stack([match.scores for match in matched])
    by_chance = chance(np.array([match.rarity for match in matched]))[:, None]
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
            learned[key] = learn(own, best, shares - by_chance, units, judgements)
    return learned


def is_untrained(model: Any, frozen: Encoder) -> bool:
    """Return whether a model ranks by the given encoder's own vectors, with no learned space and no weights."""
    own = model.encoder is frozen and frozen.plain is frozen
    return own and (model.module is None or next(model.module.parameters(), None) is None)


def learn(own: Floats, best: Floats, shares: Floats, units: Units, judgements: Judgements | None) -> Calibration:
    """Learn coefficients from the method's scores, best sentences and shares of words (less chance), each [Q, N].

    The weight of words is the mean of all weights whose nDCG@10 lies within one standard error of the best one's: the
    curve is flat near its top, and the top itself is noise. Slope and prior are fitted to each query's first hit.
    Without judgements the shipped coefficients stay.
    """
    plain = Calibration(units=units)
    if judgements is None:
        return plain

    def total(weight: float) -> NDArray[np.float64]:
        texts = ("",) * len(own)  # words count
        return Evidence(plain.replace(words=weight), units, texts).total(own, best, shares)

    rated = judgements.relevant > 0
    quality = np.stack([ndcg_by_query(total(weight), judgements)[rated] for weight in WEIGHTS])  # [weights, Q]
    loss = quality[quality.mean(axis=1).argmax()] - quality  # [weights, Q]
    as_good = loss.mean(axis=1) <= loss.std(axis=1) / np.sqrt(rated.sum())
    own_share = rated.sum() / (rated.sum() + SHIPPED_QUERIES)
    chosen = round(float(own_share * np.array(WEIGHTS)[as_good].mean() + (1 - own_share) * plain.words), 4)
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
        return float(np.sum(np.logaddexp(0, logits) - y * logits) + SHRINKAGE * distance)

    fitted = minimize(loss, np.array([SLOPE, PRIOR]), method="L-BFGS-B", bounds=[(0.5, None), (None, None)]).x
    return round(float(fitted[0]), 4), round(float(fitted[1]), 4)


def ndcg_by_query(table: NDArray[Any], judgements: Judgements) -> NDArray[np.float64]:
    """Return nDCG@10 [Q] of a table of scores [Q, N]."""
    return query_scores(best_of_each(table, K), judgements, ks=(K,))[f"ndcg@{K}"]


@contextmanager
def _encoded(
    model: Any, documents: Sequence[Document], frozen: Encoder, cache: EncodingCache, progress: bool | None
) -> Iterator[ArrayView]:
    """Encode documents as a view in memory; the model reads its training's cache meanwhile."""
    encoder = model.encoder
    if encoder is frozen:
        model.encoder = CachedEncoder(encoder, cache)
    try:
        starts = range(0, len(documents), BATCH)
        bar = progress_bar(progress, starts, desc="Calibrating", unit="batch", delay=2, leave=False)
        parts = [stored_arrays(model, documents[start : start + BATCH], model.sentences) for start in bar]
        arrays = {name: concatenate([part[name] for part in parts]) for name in parts[0]}
        yield ArrayView(arrays, documents)
    finally:
        model.encoder = encoder


def scores(model: Any, view: ArrayView, queries: Sequence[str] | Floats, options: Any) -> Floats:
    """Score all documents [Q, N]; those that a search does not return get the lowest score that it returns."""
    candidates = model.search(view, model.encode_queries(queries, options), len(view), options)
    returned = candidates.keys >= 0
    lowest = np.where(returned, candidates.scores, np.inf).min(axis=1, initial=np.inf)
    lowest = np.where(np.isfinite(lowest), lowest, 0.0).astype(np.float32)
    table = np.repeat(lowest[:, None], len(view), axis=1)
    table[np.nonzero(returned)[0], candidates.keys[returned]] = candidates.scores[returned]
    return table
