"""Units of meaning: zero and unit of the method's score and of the sentence cosine, measured on a corpus.

A trained model has learned them. For an untrained one the index measures them: sentences of 64 documents are
pseudo-queries, scored against up to 1,000 documents.

                    documents
                 d₁   d₂   d₃   …
    sentence 1 [ NaN  .12  .31  … ]      NaN: the document that the sentence is from
    sentence 2 [ .08  .22  NaN  … ]      Scale.of: spread of each row, averaged
"""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.arrays import Keys
from palmette.encoder.splitting import first_sentences
from palmette.ranking.arrays import SCALES, SENTENCES, SPANS
from palmette.ranking.score import SPREADS, USUAL, Scale, Units
from palmette.search.plan import View

UNITS = "units"
"""Name of the note in which an index stores its units."""

MEASURED_DOCUMENTS = 1000
"""Largest number of documents on which units are measured."""
PSEUDO_QUERIES = 64
"""Number of sentences used as pseudo-queries."""
PSEUDO_QUERY_SPREADS = 0.9 * SPREADS
"""Correction for pseudo-queries: their scores spread more than those of questions, so fewer deviations make a unit."""


def units_for(model: Any, options: Any, view: View, sentences: bool, among: Keys | None = None) -> Units:
    """Return the units of a search: learned in training, else measured on documents, else ``USUAL``.

    ``among`` restricts the measurement to some documents of the view. Units belong to a variant of the search options
    (:meth:`palmette.model.Model.lexical_variants`): options that leave documents out, or only order them, change no
    units, and so no score.
    """
    key, variants = model.lexical_key(options) or "", model.lexical_variants()
    learned: Units | None = model.calibrations[key].units if key in model.calibrations else None
    if learned is not None and (learned.sentence is not None or not sentences):
        return learned
    usual: Units | None = model.usual_units
    if usual is None and len(view if among is None else among) >= 2 and variants:
        usual = measure_units(model, view, sentences, variants.get(key, options), among)
    return usual or USUAL if learned is None else (usual or USUAL).replace(own=learned.own)


def measured_on(keys: Keys) -> Keys:
    """Choose the documents behind a tenant's wall that units are measured on: the first ones.

    Their number is rounded down to three significant bits (1,000 → 896), so that few writes change the units. It
    depends on these documents alone, and so reveals nothing of other tenants.
    """
    spare = max(0, len(keys).bit_length() - 3)
    return keys[: len(keys) >> spare << spare]


def measure_units(
    model: Any, view: View, sentences: bool, options: Any, among: Keys | None = None, seed: int = 0
) -> Units:
    """Measure the units of an untrained model on an index, or ``among`` some of its documents."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.permutation(view.keys() if among is None else among)[:MEASURED_DOCUMENTS])
    sources = rng.permutation(len(keys))[:PSEUDO_QUERIES]
    if sentences:
        sentence_vectors, scales = (view.ragged(name, keys.tolist()) for name in (SENTENCES, SCALES))
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
    units = Units(own=Scale.of(own, PSEUDO_QUERY_SPREADS))
    if not sentences:
        return units
    with_sentences = np.flatnonzero(sentence_vectors.counts(np.arange(len(keys))))
    cosines = (sentence_vectors.values.astype(np.float32) @ pseudo_queries.T) * scales.values[:, None]  # [S, q]
    best = np.full((len(sources), len(keys)), np.nan)
    best[:, with_sentences] = np.maximum.reduceat(cosines, sentence_vectors.starts[with_sentences], axis=0).T
    best[np.arange(len(sources)), sources] = np.nan
    return units.replace(sentence=Scale.of(best, PSEUDO_QUERY_SPREADS))
