"""Units of meaning: how far scores and cosines of a collection spread when nothing is relevant.

An untrained model measures them on the documents: sentences of some documents stand in for questions, and their scores
on all other documents show the spread (``Scale.of``). A trained model has learned them.
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
"""Note of an index: its units of meaning, with the number of its documents."""

MEASURED_DOCUMENTS = 1000
"""Documents on which an index measures its units."""
PSEUDO_QUERIES = 64
"""Sentences of documents that stand in for questions."""
PSEUDO_QUERY_SPREADS = 0.9 * SPREADS
"""Standard deviations in a unit where sentences stand in for questions: their scores spread more."""


def units_for(model: Any, options: Any, view: View, sentences: bool, among: Keys | None = None) -> Units:
    """Units of meaning for a search: learned in training, else measured on documents, else the usual ones.

    Documents are those of the view, or ``among`` some of them. Units belong to the variant of the options
    (:meth:`palmette.model.Model.lexical_variants`): options that leave documents out or only order them change no
    unit, and so no score.
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
    """Documents behind a wall that its units are measured on: the first ones, so many that few writes change them.

    A function of these documents alone: it needs no note, and tells nothing of others.
    """
    spare = max(0, len(keys).bit_length() - 3)
    return keys[: len(keys) >> spare << spare]


def measure_units(
    model: Any, view: View, sentences: bool, options: Any, among: Keys | None = None, seed: int = 0
) -> Units:
    """Measure the units of an untrained model on an index, or ``among`` some of its documents.

    Sentences of the documents stand in for questions.
    """
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.permutation(view.keys() if among is None else among)[:MEASURED_DOCUMENTS])
    asked = rng.permutation(len(keys))[:PSEUDO_QUERIES]
    if sentences:
        some, scales = (view.ragged(name, keys.tolist()) for name in (SENTENCES, SCALES))
        asked = asked[some.counts(asked) > 0]
        rows = rng.integers(some.starts[:-1][asked], some.starts[1:][asked])
        given: Any = some.values[rows].astype(np.float32) * scales.values[rows, None]
    else:
        texts = [document.content for document in view.documents(keys[asked].tolist())]
        given = first_sentences(texts)
    if not len(asked):
        return USUAL
    if not model.accepts_embeddings and sentences:
        spans = view.ragged(SPANS, keys.tolist()).values[rows].tolist()
        texts = [document.content for document in view.documents(keys[asked].tolist())]
        read: Any = [text[start:end] for text, (start, end) in zip(texts, spans, strict=True)]
    else:
        read = given
    plan = model.plan(model.encode_queries(read, options), len(keys), options, view)
    found = model.execute(view, plan.among(keys), len(keys), options)
    own = np.full((len(asked), len(keys)), np.nan)
    at = np.searchsorted(keys, found.keys.clip(min=keys[0]))
    np.put_along_axis(own, at, np.where(found.keys >= 0, found.scores, np.nan), axis=1)
    own[np.arange(len(asked)), asked] = np.nan  # the document that the sentence is from
    units = Units(own=Scale.of(own, PSEUDO_QUERY_SPREADS))
    if not sentences:
        return units
    held = np.flatnonzero(some.counts(np.arange(len(keys))))
    cosines = (some.values.astype(np.float32) @ given.T) * scales.values[:, None]  # [S, q]
    best = np.full((len(asked), len(keys)), np.nan)
    best[:, held] = np.maximum.reduceat(cosines, some.starts[held], axis=0).T
    best[np.arange(len(asked)), asked] = np.nan
    return units.replace(sentence=Scale.of(best, PSEUDO_QUERY_SPREADS))
