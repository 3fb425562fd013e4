"""Stored arrays: those of the method, and vectors, scales and places of a document's sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from palmette.arrays import Floats, Ragged, concatenate
from palmette.machine.telemetry import encoding
from palmette.search.plan import ArraySpec
from palmette.types import Document

SENTENCES = "sentences"
"""Stored array: int8 vectors of a document's sentences."""

SENTENCE_SCALES = "sentence_scales"
"""Stored array: factors that give the int8 vectors of sentences unit length."""

SPANS = "sentence_spans"
"""Stored array: first character of each sentence in its document's content, and the one after its last."""

PASSAGES_AT_ONCE = 2048
"""Number of passages that are encoded at a time: of a book there are many."""


def sentence_arrays(width: int) -> tuple[ArraySpec, ...]:
    """Arrays that an index stores for the sentences of its documents."""
    return (
        ArraySpec(SENTENCES, (width,), "int8", ragged=True),
        ArraySpec(SENTENCE_SCALES, (), "float32", ragged=True, aligned=SENTENCES),
        ArraySpec(SPANS, (2,), "int32", ragged=True, aligned=SENTENCES),
    )


def stores_sentences(backend: Any) -> bool:
    """Return True if an index stores the sentences of its documents."""
    return any(spec.name == SENTENCES for spec in backend.arrays)


def stored_arrays(
    model: Any, documents: Sequence[Document], sentences: bool, vectors: Floats | None = None, above: Sequence[str] = ()
) -> dict[str, Any]:
    """Encode documents as the arrays that an index stores, with arrays of sentences where ``sentences`` is true.

    One pass of the encoder gives both the sentences and, where the model indexes the encoder's vectors, the method's
    arrays. Documents with given ``vectors`` skip that pass, so they have no sentences. ``above`` is the title and the
    headings of each passage, which the encoder reads before its text.
    """
    if len(documents) > PASSAGES_AT_ONCE and vectors is None:
        parts = [
            stored_arrays(model, documents[start:stop], sentences, above=above[start:stop])
            for start, stop in pairwise([*range(0, len(documents), PASSAGES_AT_ONCE), len(documents)])
        ]
        return {name: concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    above = above if any(above) else ()
    if not sentences:
        if above and vectors is None and model.indexes_embeddings:
            vectors, _ = model.encoder.encode_sentences([document.content for document in documents], above=above)
        encoder_vectors = () if vectors is None else (vectors,)
        return dict(model.encode_documents(documents, *encoder_vectors))
    if vectors is None:
        from palmette.encoder.cache import CachedEncoder  # loads torch

        encoder, cache = model.encoder, model.cache
        if cache is not None and not isinstance(encoder, CachedEncoder):  # texts encoded in training
            encoder = CachedEncoder(encoder, cache)
        with encoding(encoder.name, len(documents)):
            text_vectors, split = encoder.encode_sentences([document.content for document in documents], above=above)
        encoder_vectors = (text_vectors,) if model.indexes_embeddings else ()
        starts = split.starts
        rows = {
            SENTENCES: Ragged(split.vectors, starts),
            SENTENCE_SCALES: Ragged(split.scales, starts),
            SPANS: Ragged(split.spans, starts),
        }
        return {**model.encode_documents(documents, *encoder_vectors), **rows}
    arrays: dict[str, Any] = dict(model.encode_documents(documents, vectors))
    for spec in sentence_arrays(model.encoder.dimension):
        arrays[spec.name] = Ragged.empty(len(documents), spec.shape, spec.dtype)
    return arrays
