"""Score scales: zero and unit of the method's score and of the sentence cosine, measured on a corpus.

A trained model has learned them. For an untrained one the index measures them: sentences of 64 documents are
pseudo-queries, scored against up to 1,000 documents. Where cosines agree with those that the shipped coefficients were
learned on, the usual scales stay: the difference would be a collection's, not the encoder's.

                    documents
                 d₁   d₂   d₃   …
    sentence 1 [ NaN  .12  .31  … ]      NaN: the document that the sentence is from
    sentence 2 [ .08  .22  NaN  … ]      ScoreScale.measured: spread of each row, averaged
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from palmette.arrays import Keys
from palmette.encoder.sentences.splitting import first_sentences
from palmette.ranking.arrays import SENTENCE_SCALES, SENTENCES, SPANS
from palmette.ranking.score import SPREADS, USUAL, USUAL_MEANING, ScoreScale, ScoreScales
from palmette.store.protocols import View

SCORE_SCALES = "score_scales"
"""Name of the note in which an index stores its score scales."""

MEASURED_DOCUMENTS = 1000
"""Largest number of documents on which scales are measured."""
PSEUDO_QUERIES = 64
"""Number of sentences used as pseudo-queries."""
LEAST_DOCUMENTS = 3
"""Number of documents below which there is nothing to measure: a pseudo-query leaves its own document out."""
AGREEING_UNIT = 1.3
"""Factor by which the units of one encoder differ between collections."""
AGREEING_MEAN = 0.4
"""ScoreScales by which mean scores of one encoder differ between collections."""
SAMPLING_ERROR = 4.0
"""Two standard errors of both, times the number of documents that are measured."""
LEAST_UNIT = 0.01
"""A cosine's unit below this says that all documents are alike, and nothing of the encoder."""
PSEUDO_QUERY_SPREADS = 0.9 * SPREADS
"""Correction for pseudo-queries: their scores spread more than those of questions, so fewer deviations make a unit."""


def score_scales_for(model: Any, options: Any, view: View, sentences: bool, among: Keys | None = None) -> ScoreScales:
    """Return the score scales of a search: learned in training, else measured on documents, else ``USUAL``.

    ``among`` restricts the measurement to some documents of the view. Score scales belong to a variant of the search
    options (:meth:`palmette.methods.base.Model.lexical_variants`): options that leave documents out, or only order
    them, change no scale, and so no score.
    """
    key, variants = model.lexical_key(options) or "", model.lexical_variants()
    learned: ScoreScales | None = model.calibrations[key].score_scales if key in model.calibrations else None
    if learned is not None and (learned.sentence is not None or not sentences):
        return learned
    score_scales, documents = USUAL, len(view if among is None else among)
    if documents >= LEAST_DOCUMENTS and variants:
        score_scales = measure_score_scales(model, view, sentences, variants.get(key, options), among)
        if model.usual_score_scales is not None:
            score_scales = near_usual(score_scales, model.usual_score_scales, min(documents, MEASURED_DOCUMENTS))
    return score_scales if learned is None else score_scales.replace(method=learned.method)


def near_usual(measured: ScoreScales, usual: ScoreScales, documents: int) -> ScoreScales:
    """Return the usual scales where those measured on so many documents agree with them, else the measured ones.

    Between agreement and twice its distance a scale is a blend, so that a document more never changes it at once.
    """
    own = _near(measured.method, usual.method, documents)
    if measured.sentence is None or usual.sentence is None:
        return measured.replace(method=own)
    return measured.replace(method=own, sentence=_near(measured.sentence, usual.sentence, documents))


def _near(measured: ScoreScale, usual: ScoreScale, documents: int) -> ScoreScale:
    error = SAMPLING_ERROR / documents
    factor = math.log(measured.unit / usual.unit) if measured.unit >= LEAST_UNIT else 0.0
    unit = usual.unit * math.exp(factor * _disagreement(factor, math.log(AGREEING_UNIT) + error))
    mean = usual.zero + USUAL_MEANING * usual.unit
    shift = measured.zero + USUAL_MEANING * measured.unit - mean
    mean += shift * _disagreement(shift / unit, AGREEING_MEAN + error)
    return ScoreScale(zero=mean - USUAL_MEANING * unit, unit=unit)


def _disagreement(distance: float, agreeing: float) -> float:
    """Return the share of the measured value: 0 up to the distance that agrees, 1 from its double on."""
    return min(max(abs(distance) / agreeing - 1, 0.0), 1.0)


def measured_on(keys: Keys) -> Keys:
    """Choose the documents in a tenant's scope that scales are measured on: the first ones.

    Their number is rounded down to three significant bits (1,000 → 896), so that few writes change the scales. It
    depends on these documents alone, and so reveals nothing of other tenants.
    """
    spare = max(0, len(keys).bit_length() - 3)
    return keys[: len(keys) >> spare << spare]


def measure_score_scales(
    model: Any, view: View, sentences: bool, options: Any, among: Keys | None = None
) -> ScoreScales:
    """Measure the score scales of an untrained model on an index, or ``among`` some of its documents."""
    rng = np.random.default_rng(0)
    keys = np.sort(rng.permutation(view.keys() if among is None else among)[:MEASURED_DOCUMENTS])
    sources = rng.permutation(len(keys))[:PSEUDO_QUERIES]
    if sentences:
        sentence_vectors, scales = (view.ragged(name, keys.tolist()) for name in (SENTENCES, SENTENCE_SCALES))
        sources = sources[sentence_vectors.counts(sources) > 0]
        rows = rng.integers(sentence_vectors.starts[:-1][sources], sentence_vectors.starts[1:][sources])
        pseudo_queries: Any = sentence_vectors.values[rows].astype(np.float32) * scales.values[rows, None]
    else:
        texts = [document.content for document in view.documents(keys[sources].tolist())]
        pseudo_queries = first_sentences(texts)
    if not len(sources):
        return USUAL
    if not model.accepts_embeddings and sentences:
        spans = view.ragged(SPANS, keys.tolist()).values[rows].tolist()
        texts = [document.content for document in view.documents(keys[sources].tolist())]
        queries: Any = [text[start:end] for text, (start, end) in zip(texts, spans, strict=True)]
    else:
        queries = pseudo_queries
    plan = model.plan(model.encode_queries(queries, options), len(keys), options, view)
    candidates = model.execute(view, plan.among(keys), len(keys), options)
    own = np.full((len(sources), len(keys)), np.nan)
    at = np.searchsorted(keys, candidates.keys.clip(min=keys[0]))
    np.put_along_axis(own, at, np.where(candidates.keys >= 0, candidates.scores, np.nan), axis=1)
    own[np.arange(len(sources)), sources] = np.nan  # the document of the sentence
    score_scales = ScoreScales(method=ScoreScale.measured(own, PSEUDO_QUERY_SPREADS))
    if not sentences:
        return score_scales
    with_sentences = np.flatnonzero(sentence_vectors.counts(np.arange(len(keys))))
    cosines = (sentence_vectors.values.astype(np.float32) @ pseudo_queries.T) * scales.values[:, None]  # [S, q]
    best = np.full((len(sources), len(keys)), np.nan)
    best[:, with_sentences] = np.maximum.reduceat(cosines, sentence_vectors.starts[with_sentences], axis=0).T
    best[np.arange(len(sources)), sources] = np.nan
    return score_scales.replace(sentence=ScoreScale.measured(best, PSEUDO_QUERY_SPREADS))
