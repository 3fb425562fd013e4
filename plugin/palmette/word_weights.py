"""Weights of words, and of several models, learned from held-out queries on arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
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

_Sample = tuple[list[str], list[Document], Judgements | None]


def _sample(data: RetrievalData, seed: int) -> _Sample | None:
    """Draw held-out queries, or training queries, which teach the scale alone, as synthetic ones do.

    Those share words with their documents, so a weight learned from them would trust words too much.
    """
    held = Validation.of(data, seed, queries=QUERIES, documents=DOCUMENTS)
    some = held or Validation.of(data, seed, split="train", queries=QUERIES, documents=DOCUMENTS)
    if (
        some is None and not data.queries
    ):  # the first words of documents stand for queries and teach the scale
        rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:DOCUMENTS]).tolist()
        texts = [" ".join(data.corpus[row].all_text.split()[:WORDS]) for row in rows[:QUERIES]]
        return texts, [data.corpus[row] for row in rows], None
    if some is None:
        return None
    queries = [data.query_texts[row] for row in some.queries]
    documents = [data.corpus[row] for row in some.documents]
    return queries, documents, some.judgements if held and data.labelled else None


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
        return {
            "": LexicalWeight(weight=0.0)
        }  # words do not count, or there is nothing to learn their weight from
    queries, documents, judgements = sample
    collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in documents])
    words = np.stack([collection.shares(query) for query in queries])
    with _cached(model, frozen, cache):
        view = _view(model, documents, progress)
        vectors = model.encoder.encode_queries(queries) if model.accepts_embeddings else None
        return {
            key: learn_weight(
                _scores(model, view, queries if vectors is None else vectors, options), words, judgements
            )
            for key, options in variants.items()
        }


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
        with _cached(model, model.encoder, cache):
            view = _view(model, documents, progress)
            tables.append(_scores(model, view, queries, model.search_options({})) / scale)
    return best_weights(np.stack(tables), judgements)


@contextmanager
def _cached(model: Any, frozen: Encoder, cache: EncodingCache) -> Iterator[None]:
    """Let a model reuse the encodings of its training."""
    encoder = model.encoder
    if encoder is frozen:
        model.encoder = CachedEncoder(encoder, cache)
    try:
        yield
    finally:
        model.encoder = encoder


def _view(model: Any, documents: Sequence[Document], progress: bool | None) -> ArrayView:
    hidden = None if progress is None else not progress
    parts: dict[str, list[NDArray[Any]]] = {spec.name: [] for spec in model.arrays()}
    with tqdm(total=len(documents), desc="Weighing words", delay=2, disable=hidden, leave=False) as bar:
        for start in range(0, len(documents), BATCH):
            batch = documents[start : start + BATCH]
            for name, rows in model.encode_documents(batch).items():
                parts[name].append(rows)
            bar.update(len(batch))
    return ArrayView({name: np.concatenate(rows) for name, rows in parts.items()}, documents)


def _scores(model: Any, view: ArrayView, queries: Sequence[str] | Floats, options: Any) -> Floats:
    """[Q, N] scores of all documents; one that the model does not return scores as the worst that it does."""
    found = model.search(view, model.encode_queries(queries, options), len(view), options)
    held = found.keys >= 0
    lowest = np.where(held, found.scores, np.inf).min(axis=1, initial=np.inf)
    table = np.repeat(np.where(np.isfinite(lowest), lowest, 0.0)[:, None], len(view), axis=1).astype(
        np.float32
    )
    table[np.nonzero(held)[0], found.keys[held]] = found.scores[held]
    return table
