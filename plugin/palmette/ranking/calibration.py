"""Calibration: learn the weight of words, and slope and prior of the probability, from held-out queries.

    1. sample    up to 300 judged queries, their relevant documents, 1,000 random ones, and others near to a query
    2. score     method's score, best sentence and share of words of every pair [Q, N]
    3. weight    the weight of words with the best nDCG@10, averaged over all that are about as good; where pairs taught
                 a space, a quarter of the questions are about documents that taught it nothing
    4. fit       a logistic regression of relevance on the sum of evidence, on each query's first hit

Few judgements move the coefficients little from the shipped ones. Example: of the weights 0, .05, … 1, .6 has the best
nDCG@10, and .4 to .7 lie within one standard error of it: their mean is .55. With 40 judged queries, and 10 that the
shipped weight .5 counts for, the weight is (40 · .55 + 10 · .5) / 50 = .54.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, best_of_each, concatenate
from palmette.arrays.solvers import minimise_convex, sigmoid
from palmette.data import RetrievalData
from palmette.data.metrics import Judgements, query_scores
from palmette.encoder import Encoder
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.machine.progress import progress_bar
from palmette.ranking.arrays import SENTENCE_SCALES, SENTENCES, stored_arrays
from palmette.ranking.score import (
    PRIOR,
    SLOPE,
    Calibration,
    Evidence,
    ScoreScale,
    ScoreScales,
    best_sentences,
    expected_word_share,
)
from palmette.store.memory import ArrayView
from palmette.types import Document

MAX_QUERIES = 300
"""Largest number of held-out queries in a sample."""
MAX_DOCUMENTS = 2500
"""Largest number of documents in a sample: the relevant ones, random ones, and those nearest to the queries."""
RANDOM_DOCUMENTS = 1000
"""Random documents in a sample that has nearest ones."""
PSEUDO_QUERY_WORDS = 3
"""Words from a document's beginning that form a pseudo-query, where the data has no queries."""
DOCUMENTS_PER_PASS = 256
"""Documents encoded at a time."""
K = 10
"""Cut-off of nDCG."""

WORD_WEIGHTS = tuple(n / 20 for n in range(21))
"""Candidate weights of words."""

SHIPPED_QUERIES = 10
"""Strength of the shipped weight of words, in judged queries."""

MANY_QUERIES = 30
"""Judged queries of which all judge a ranking that nothing has taught; fewer leave the shipped coefficients."""

SHRINKAGE = 0.2
"""Penalty on the squared distance from the shipped slope and prior."""


class Sample(NamedTuple):
    """Queries, the documents that they are scored against, and what is known about both."""

    queries: list[str]
    documents: list[Document]
    judgements: Judgements | None
    usual: NDArray[np.bool_]  # [N] False for documents that are here since they are near to a query


def draw_sample(data: RetrievalData, seed: int, vectors: tuple[Any, Any] | None = None) -> Sample | None:
    """Draw held-out queries, documents and judgements.

    With ``vectors`` of the queries and documents, by row, documents near to a query are in the sample: they are what a
    search confuses. Random ones alone gave words too much weight where the space had learned much (on MedQuAD with 300
    pairs nDCG@10 .841, with near ones .898). Data without queries gives pseudo-queries without judgements, from which
    only the units are learned.
    """
    from palmette.training.pairs import Validation

    sample = Validation.of(data, seed, queries=MAX_QUERIES, documents=MAX_DOCUMENTS)
    if sample is not None:
        usual = np.ones(len(sample.documents), bool)
        if vectors is not None and len(sample.documents) < len(data.corpus):
            others = np.setdiff1d(sample.documents, sample.judged)
            kept = others[np.linspace(0, len(others) - 1, min(RANDOM_DOCUMENTS, len(others))).astype(np.int64)]
            sample = sample.with_nearest_documents(*vectors, keep=kept)
            usual = np.isin(sample.documents, np.concatenate([kept, sample.judged]))
        documents = [data.corpus[row] for row in sample.documents]
        return Sample([data.query_texts[row] for row in sample.queries], documents, sample.judgements, usual)
    if data.queries:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:MAX_DOCUMENTS])
    documents = [data.corpus[row] for row in rows.tolist()]
    queries = [" ".join(d.all_text.split()[:PSEUDO_QUERY_WORDS]) for d in documents[:MAX_QUERIES]]
    return Sample(queries, documents, None, np.ones(len(documents), bool))


class CalibrationScores(NamedTuple):
    """Scores of a sample's queries for its documents, each [Q, N]: by the method, the best sentence, and words."""

    own: Floats
    best: Floats
    shares: Floats  # less chance
    score_scales: ScoreScales


def calibrate(
    model: Any,
    data: RetrievalData,
    frozen: Encoder,
    cache: EncodingCache,
    *,
    seed: int,
    progress: bool | None,
    vectors: tuple[Any, Any] | None = None,
    apart: tuple[Any, Sequence[str], float] | None = None,
) -> dict[str, Calibration]:
    """Learn the coefficients for each variant of a :class:`palmette.methods.base.Model`'s search, by key.

    ``frozen`` is the encoder before training: if the model still has it, ``cache`` holds most of the documents.
    ``vectors`` of queries and documents, by row, choose documents that are hard to tell from relevant ones. ``apart``
    is a model that some training questions did not teach, their ids, and their share in the choice of the weight of
    words.
    """
    variants = model.lexical_variants()
    judged = {**data.qrels.get("train", {}), **data.qrels.get("dev", {})}
    # no query has taught a model that ranks by the given encoder's own vectors, without learned space and weights
    own_vectors = model.encoder is frozen and frozen.plain is frozen
    untrained = own_vectors and (model.module is None or next(model.module.parameters(), None) is None)
    if judged and untrained:  # all of them may judge
        if len(judged) < MANY_QUERIES:
            return {}  # the weight that ten questions chose lost up to .008 on FairytaleQA
        data = replace(data, qrels={"dev": judged})
    sample = draw_sample(data, seed, vectors) if variants else None
    if sample is None:
        return {}
    scored = _score_sample(model, variants, sample, frozen, cache, progress)
    if sample.judgements is None or apart is None:
        return {key: learn(*part, sample.judgements) for key, part in scored.items()}
    other, queries, share = apart
    train = data.qrels["train"]
    others = draw_sample(replace(data, qrels={"dev": {query: train[query] for query in queries}}), seed, vectors)
    if others is None or others.judgements is None:
        return {key: learn(*part, sample.judgements) for key, part in scored.items()}
    parts = _score_sample(other, variants, others, other.encoder, cache, progress)
    quality = {key: quality_by_weight(*part, others.judgements) for key, part in parts.items()}
    return {key: learn(*part, sample.judgements, quality[key], share) for key, part in scored.items()}


def _score_sample(
    model: Any,
    variants: Mapping[str, Any],
    sample: Sample,
    frozen: Encoder,
    cache: EncodingCache,
    progress: bool | None,
) -> dict[str, CalibrationScores]:
    """Score all documents of a sample for all its queries, by variant."""
    queries, documents, _, usual = sample
    collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in documents])
    matched = [collection.matches(query) for query in queries]
    shares = np.stack([match.scores for match in matched])
    by_chance = expected_word_share(np.array([match.rarity for match in matched]))[:, None]
    scored = {}
    with _encoded(model, documents, frozen, cache, progress) as view:
        texts = model.query_input(queries)
        best = np.full(shares.shape, np.nan, np.float32)
        if model.sentences:
            vectors = model.sentence_queries(model.encode_queries(texts, model.search_options({})), texts)
            stored = view.arrays[SENTENCES], view.arrays[SENTENCE_SCALES]
            best = np.stack([best_sentences(*stored, vector)[0] for vector in vectors])
        for key, options in variants.items():
            own = scores(model, view, texts, options)
            sentence = ScoreScale.measured(best[:, usual]) if model.sentences else None
            score_scales = ScoreScales(method=ScoreScale.measured(own[:, usual]), sentence=sentence)
            scored[key] = CalibrationScores(own, best, shares - by_chance, score_scales)
    return scored


def learn(
    own: Floats,
    best: Floats,
    shares: Floats,
    score_scales: ScoreScales,
    judgements: Judgements | None,
    others: NDArray[np.float64] | None = None,
    share: float = 0.0,
) -> Calibration:
    """Learn coefficients from the method's scores, best sentences and shares of words (less chance), each [Q, N].

    The weight of words is the mean of all weights whose nDCG@10 lies within one standard error of the best one's: the
    curve is flat near its top, and the top itself is noise. ``others`` is nDCG@10 by weight of other questions
    [weights, Q']: of the weights that are as good for the held-out questions they choose those that are as good for
    both, counted by ``share``. Slope and prior are fitted to each query's first hit. Without
    judgements the shipped coefficients stay.
    """
    plain = Calibration(score_scales=score_scales)
    if judgements is None:
        return plain
    # 1. the weights that are about as good as the best one, for these questions and for the others
    rated = judgements.relevant > 0
    quality = quality_by_weight(own, best, shares, score_scales, judgements)
    as_good = _as_good((quality, 1.0))
    if others is not None:
        both = as_good & _as_good((quality, 1 - share), (others, share))
        as_good = both if both.any() else as_good
    # 2. their mean, pulled towards the shipped weight by as many queries as that counts for
    own_share = rated.sum() / (rated.sum() + SHIPPED_QUERIES)
    chosen = round(float(own_share * np.array(WORD_WEIGHTS)[as_good].mean() + (1 - own_share) * plain.words), 4)
    # 3. slope and prior: how often each query's first hit is relevant, by its sum of evidence
    sums = _total(plain.replace(words=chosen), own, best, shares)
    first = best_of_each(sums, 1)  # [Q, 1]
    relevant = judgements.gains(first) > 0
    x, y = np.take_along_axis(sums, first, axis=1)[rated].ravel(), relevant[rated].ravel()
    slope, prior = fit_probability(x, y)
    return plain.replace(words=chosen, slope=slope, prior=prior, source="held-out questions")


def _as_good(*parts: tuple[NDArray[np.float64], float]) -> NDArray[np.bool_]:
    """Return the weights within one standard error of the best: qualities [weights, Q], and each part's share."""
    best = sum((share * quality.mean(axis=1) for quality, share in parts), np.zeros(len(WORD_WEIGHTS))).argmax()
    losses = [(quality[best] - quality, share) for quality, share in parts]
    loss = sum((share * lost.mean(axis=1) for lost, share in losses), np.zeros(len(WORD_WEIGHTS)))
    variance = sum((share**2 * lost.var(axis=1) / lost.shape[1] for lost, share in losses), np.zeros(len(WORD_WEIGHTS)))
    good: NDArray[np.bool_] = loss <= np.sqrt(variance)
    return good


def quality_by_weight(
    own: Floats, best: Floats, shares: Floats, score_scales: ScoreScales, judgements: Judgements
) -> NDArray[np.float64]:
    """Return nDCG@10 of each candidate weight of words and each question that has an answer, [weights, Q]."""
    plain = Calibration(score_scales=score_scales)
    totals = (_total(plain.replace(words=weight), own, best, shares) for weight in WORD_WEIGHTS)
    return np.stack([ndcg_by_query(total, judgements)[judgements.relevant > 0] for total in totals])


def _total(calibration: Calibration, own: Floats, best: Floats, shares: Floats) -> NDArray[np.float64]:
    """Return the sum of evidence [Q, N]."""
    assert calibration.score_scales is not None
    texts = ("",) * len(own)  # words count
    return Evidence(calibration, calibration.score_scales, texts).total(own, best, shares)


def fit_probability(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    """Fit slope and prior of a logistic function to sums of evidence [n] and their relevance [n]."""
    inputs = np.stack([np.asarray(x, np.float64), np.ones(len(x))])  # [2, n]

    def derivatives(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        logits, away = weights @ inputs, weights - (SLOPE, PRIOR)
        chance = sigmoid(logits)
        value = float(np.sum(np.logaddexp(0, logits) - y * logits) + SHRINKAGE * np.square(away).sum())
        curvature = (inputs * chance * (1 - chance)) @ inputs.T + 2 * SHRINKAGE * np.eye(2)
        return value, inputs @ (chance - y) + 2 * SHRINKAGE * away, curvature

    fitted = minimise_convex(derivatives, (SLOPE, PRIOR), (0.5, -np.inf))
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
        starts = range(0, len(documents), DOCUMENTS_PER_PASS)
        bar = progress_bar(progress, starts, desc="Calibrating", unit="batch", delay=2, leave=False)
        parts = [stored_arrays(model, documents[start : start + DOCUMENTS_PER_PASS], model.sentences) for start in bar]
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
