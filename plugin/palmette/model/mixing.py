"""How much words count beside a trained model, learned from its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from palmette.cache import CachedEncoder, EncodingCache
from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.errors import InputError
from palmette.held_out import HeldOut
from palmette.lexical.calibration import best_weights, calibrated
from palmette.lexical.mix import Mix
from palmette.metrics import Judgements
from palmette.search.probe import Floats, Found, Keys
from palmette.store.local import LocalBackend

if TYPE_CHECKING:
    from palmette.model.model import Model, Queries

__all__ = ["learn_mixes", "learn_weights"]

QUERIES, DOCUMENTS = 300, 2000
"""Held-out queries and documents looked at: the relevant ones, and others at random."""
WORDS = 3
"""Words of a document that stand for a query where there is none."""
BATCH = 256

Rows = NDArray[np.int64]


class _Sample(NamedTuple):
    """Some queries, and documents among them those that answer; judgements where they may be trusted."""

    queries: list[str]
    documents: Rows
    judgements: Judgements | None

    @classmethod
    def of(cls, data: RetrievalData, seed: int) -> _Sample | None:
        """Held-out queries, or training queries, which teach the scale alone, as self-made ones do.

        Those share words with their documents, so a weight learned from them would trust words too much.
        """
        sampled = partial(HeldOut.of, data, seed, queries=QUERIES, documents=DOCUMENTS)
        held = sampled()
        some = held or sampled(split="train")
        if some is None and not data.queries:  # the first words of documents teach the scale
            rows = np.sort(np.random.default_rng(seed).permutation(len(data.corpus))[:DOCUMENTS])
            texts = [" ".join(data.corpus[row].all_text.split()[:WORDS]) for row in rows[:QUERIES].tolist()]
            return cls(texts, rows, None)
        if some is None:
            return None
        texts = data.query_texts
        trusted = some.judgements if held and data.labelled else None
        return cls([texts[row] for row in some.queries], some.documents, trusted)


def learn_mixes(
    model: Model,
    data: RetrievalData,
    frozen: Encoder,
    cache: EncodingCache,
    *,
    seed: int,
    progress: bool | None,
) -> dict[str, Mix]:
    """The mix of words for each of the model's calibrated search options, by their name.

    ``frozen`` is the encoder as it was given: if the model still has it, ``cache`` knows most of the documents.
    """
    sample = _Sample.of(data, seed) if model.lexical_variants() else None
    if sample is None:
        return {"": Mix(weight=0.0)}  # words have no say, or there is nothing to learn their weight from
    with _cached(model, frozen, cache), LocalBackend.in_memory(model.arrays()) as backend:
        _fill(backend, model, data, sample.documents, progress)
        return _learn(backend, model, sample)


def learn_weights(
    models: Sequence[Model],
    scales: Sequence[float],
    data: RetrievalData,
    cache: EncodingCache,
    *,
    seed: int,
    progress: bool | None,
) -> tuple[float, ...]:
    """How much each of several models should count in a sum of their scores, by held-out judgements.

    From equal weights, one after the other is moved while nDCG@10 rises by more than its standard error; without
    judgements they stay equal.
    """
    sample, tables = _Sample.of(data, seed), []
    if sample is None:
        raise InputError(
            f"{data.name} has no queries with an answer to weigh models by: its splits are {sorted(data.qrels)}; give "
            "'dev', or 'train' for their scales alone"
        )
    for model, scale in zip(models, scales, strict=True):
        with (
            _cached(model, model.encoder, cache),
            LocalBackend.in_memory(model.arrays()) as backend,
        ):
            _fill(backend, model, data, sample.documents, progress)
            with backend.read() as view:
                options = model.search_options({})
                queries = model.encode_queries(sample.queries, options)
                found = model.search(view, queries, len(view), options)
                tables.append(_matrix(found, view.keys(), len(sample.queries)) / scale)
    return best_weights(np.stack(tables), sample.judgements)


@contextmanager
def _cached(model: Model, frozen: Encoder, cache: EncodingCache) -> Iterator[None]:
    """What training has encoded need not be encoded again."""
    encoder = model.encoder
    if encoder is frozen:
        model.encoder = CachedEncoder(encoder, cache)
    try:
        yield
    finally:
        model.encoder = encoder


def _fill(
    backend: LocalBackend, model: Model, data: RetrievalData, rows: Rows, progress: bool | None
) -> None:
    hidden = None if progress is None else not progress
    with (
        backend.write() as writer,
        tqdm(total=len(rows), desc="Weighing words", unit="doc", delay=2, disable=hidden, leave=False) as bar,
    ):
        for start in range(0, len(rows), BATCH):
            batch = [data.corpus[row] for row in rows[start : start + BATCH]]
            writer.put(batch, model.encode_documents(batch))
            bar.update(len(batch))


def _learn(backend: LocalBackend, model: Model, sample: _Sample) -> dict[str, Mix]:
    mixes = {}
    with backend.read() as view:
        keys, count = view.keys(), len(view)
        words = _matrix(view.matching(sample.queries, count), keys, len(sample.queries), floor=0.0)
        ready = _ready(model, sample.queries)
        for name, options in model.lexical_variants().items():
            queries = ready or model.encode_queries(sample.queries, options)
            found = model.search(view, queries, count, options)
            method = _matrix(found, keys, len(sample.queries))
            mixes[name] = calibrated(method, words, sample.judgements)
    return mixes


def _ready(model: Model, texts: list[str]) -> Queries | None:
    """Query arrays for all options, where the encoder's own vectors are enough for the model."""
    if not model.accepts_embeddings:
        return None
    return model.encode_queries(model.encoder.encode_queries(texts), model.search_options({}))


def _matrix(found: Found, keys: Keys, queries: int, floor: float | None = None) -> Floats:
    """Scores [Q, N] by document; what was not found scores ``floor``, or as the worst that was."""
    held = found.keys >= 0
    lowest = np.where(held, found.scores, np.inf).min(axis=1, initial=np.inf) if floor is None else floor
    filler = np.where(np.isfinite(lowest), lowest, 0.0)
    matrix = np.broadcast_to(np.reshape(filler, (-1, 1)), (queries, len(keys))).astype(np.float32)
    rows, _ = np.nonzero(held)
    matrix[rows, np.searchsorted(keys, found.keys[held])] = found.scores[held]
    return matrix
