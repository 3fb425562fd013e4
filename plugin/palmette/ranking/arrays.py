"""What an index stores of sentences beside the arrays of its method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palmette.arrays import Floats, Ragged
from palmette.encoder.sentences import Sentences
from palmette.search.plan import ArraySpec
from palmette.telemetry import encoding
from palmette.types import Document

SENTENCES = "sentences"
"""Stored array: int8 vectors of a document's sentences."""

SCALES = "sentence_scales"
"""Stored array: scales that give the vectors of sentences unit length."""

SPANS = "sentence_spans"
"""Stored array: first character of each sentence in its document's content, and the one after its last."""


def sentence_arrays(width: int) -> tuple[ArraySpec, ...]:
    """Arrays that an index stores for the sentences of its documents."""
    return (
        ArraySpec(SENTENCES, (width,), "int8", ragged=True),
        ArraySpec(SCALES, (), "float32", ragged=True, aligned=SENTENCES),
        ArraySpec(SPANS, (2,), "int32", ragged=True, aligned=SENTENCES),
    )


def stores_sentences(backend: Any) -> bool:
    """Whether an index keeps the sentences of its documents."""
    return any(spec.name == SENTENCES for spec in backend.arrays)


def sentence_rows(found: Sentences) -> dict[str, Ragged]:
    """Stored arrays of documents' sentences."""
    columns = ((SENTENCES, found.vectors), (SCALES, found.scales), (SPANS, found.spans))
    return {name: Ragged(values, found.starts) for name, values in columns}


def stored_arrays(
    model: Any, documents: Sequence[Document], sentences: bool, vectors: Floats | None = None, above: Sequence[str] = ()
) -> dict[str, Any]:
    """Arrays that an index stores, with those of sentences if wished; one pass where vectors are enough.

    Documents whose vectors are given have no sentences: these need the encoder's pass. ``above``, what stands above
    each text, is read before it where the encoder's vectors are what the model indexes.
    """
    above = above if any(above) else ()
    if not sentences:
        if above and vectors is None and model.indexes_embeddings:
            vectors, _ = model.encoder.encode_sentences([document.content for document in documents], above=above)
        given = () if vectors is None else (vectors,)
        return dict(model.encode_documents(documents, *given))
    if vectors is None:
        from palmette.encoder.cache import CachedEncoder  # loads torch

        encoder, cache = model.encoder, model.cache
        if cache is not None and not isinstance(encoder, CachedEncoder):  # what training has read
            encoder = CachedEncoder(encoder, cache)
        with encoding(encoder.name, len(documents)):
            own, found = encoder.encode_sentences([document.content for document in documents], above=above)
        given = (own,) if model.indexes_embeddings else ()
        return {**model.encode_documents(documents, *given), **sentence_rows(found)}
    arrays: dict[str, Any] = dict(model.encode_documents(documents, vectors))
    for spec in sentence_arrays(model.encoder.dimension):
        arrays[spec.name] = Ragged.empty(len(documents), spec.shape, spec.dtype)
    return arrays
