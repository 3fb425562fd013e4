"""Weights of words, and of several models, learned from held-out queries on arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.errors import InputError
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.lexical.weight import LexicalWeight, best_weights, learn_weight
from palmette.metrics import Judgements
from palmette.search.plan import Floats
from palmette.search.view import ArrayView
from palmette.training.pairs import Validation
from palmette.types import Document

QUERIES, DOCUMENTS = 300, 2000
"""Held-out queries and documents in a sample: the relevant ones, and others at random."""
WORDS = 3
"""Words of a document that stand for a query where there is none."""
BATCH = 256


def _sample(data: RetrievalData, seed: int) -> tuple[list[str], list[Document], Judgements | None] | None:
    """Draw held-out queries, or training queries, which teach the scale alone, as synthetic ones do.

    Those share words with their documents, so a weight learned from them would trust words too much. Without any
    query the first words of documents stand for queries.
    """
    held = Validation.of(data, seed, queries=QUERIES, documents=DOCUMENTS)
    some = held or Validation.of(data, seed, split="train", queries=QUERIES, documents=DOCUMENTS)
    if some is not None:
        documents = [data.corpus[row] for row in some.documents]
        judgements = some.judgements if held and data.labelled else None
        return [data.query_texts[row] for row in some.queries], documents, judgements
    if data.queries:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:DOCUMENTS])
    documents = [data.corpus[row] for row in rows.tolist()]
    return [" ".join(document.all_text.split()[:WORDS]) for document in documents[:QUERIES]], documents, None


def learn_lexical_weights(
    model: Any,
    data: RetrievalData,
    frozen: Encoder,
    cache: EncodingCache,
    *,
    seed: int,
    progress: bool | None,
) -> dict[str, LexicalWeight]:
    """Learn the weight of words for each lexical variant of a :class:`palmette.model.Model`, by key.

    ``frozen`` is the encoder as it was given: if the model still has it, ``cache`` knows most of the documents.
    """
    variants = model.lexical_variants()
    sample = _sample(data, seed) if variants else None
    if sample is None:
        return {"": LexicalWeight(weight=0.0)}  # words do not count, or nothing teaches their weight
    queries, documents, judgements = sample
    collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in documents])
    words = np.stack([collection.shares(query) for query in queries])
    learned = {}
    with _encoded(model, documents, frozen, cache, progress) as view:
        texts: Any = model.encoder.encode_queries(queries) if model.accepts_embeddings else queries
        for key, options in variants.items():
            learned[key] = learn_weight(_scores(model, view, texts, options), words, judgements)
    return learned


def learn_weights(
    models: Sequence[Any],
    scales: Sequence[float],
    data: RetrievalData,
    cache: EncodingCache,
    *,
    seed: int,
    progress: bool | None,
) -> tuple[float, ...]:
    """Learn the weight of each of several models in a sum of their scores, by held-out judgements.

    From equal weights, one after the other is moved while nDCG@10 rises by more than its standard error; without
    judgements they stay equal.
    """
    sample, tables = _sample(data, seed), []
    if sample is None:
        raise InputError(
            f"{data.name} has no queries with an answer to weigh models by: its splits are {sorted(data.qrels)}; give "
            "'dev', or 'train' for their scales alone"
        )
    queries, documents, judgements = sample
    for model, scale in zip(models, scales, strict=True):
        with _encoded(model, documents, model.encoder, cache, progress) as view:
            tables.append(_scores(model, view, queries, model.search_options({})) / scale)
    return best_weights(np.stack(tables), judgements)


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
        bar = tqdm(starts, desc="Weighing words", unit="batch", delay=2, disable=hidden, leave=False)
        parts = [model.encode_documents(documents[start : start + BATCH]) for start in bar]
        arrays = {spec.name: np.concatenate([part[spec.name] for part in parts]) for spec in model.arrays()}
        yield ArrayView(arrays, documents)
    finally:
        model.encoder = encoder


def _scores(model: Any, view: ArrayView, queries: Sequence[str] | Floats, options: Any) -> Floats:
    """[Q, N] scores of all documents; one that the model does not return scores as the worst that it does."""
    found = model.search(view, model.encode_queries(queries, options), len(view), options)
    held = found.keys >= 0
    lowest = np.where(held, found.scores, np.inf).min(axis=1, initial=np.inf)
    lowest = np.where(np.isfinite(lowest), lowest, 0.0).astype(np.float32)
    table = np.repeat(lowest[:, None], len(view), axis=1)
    table[np.nonzero(held)[0], found.keys[held]] = found.scores[held]
    return table
