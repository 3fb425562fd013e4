"""One change of an index: find the new and changed documents, encode them, commit all in one transaction."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.arrays import Floats
from palmette.encoder import Encoder
from palmette.errors import DuplicateIdError, InputError, StoreError, shown
from palmette.index.encoding import PassageArrays
from palmette.index.inputs import unique
from palmette.index.languages import warn_of_language
from palmette.machine.progress import progress_bar
from palmette.machine.telemetry import writing
from palmette.methods.base import Model
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.scales import SCORE_SCALES, score_scales_for
from palmette.ranking.score import noted_score_scales
from palmette.sources.cutting import Cutter
from palmette.store.protocols import Backend
from palmette.store.tenants import FilteredBackend
from palmette.types import Document

ENCODED_AT_ONCE = 256
"""Number of documents that are encoded at a time."""
ENCODED_AHEAD = 4096
"""Largest number of documents that are encoded before the index is locked; more are encoded under the lock."""
COMPARED_VECTORS = 8
"""Number of documents that are encoded to check whether given vectors are this encoder's."""
LEAST_VECTOR_COSINE = 0.98
"""Least cosine of a given vector and the encoder's; half precision and 8-bit codes stay well above it."""
LENGTH_TOLERANCE = 0.02
"""Largest difference from 1 of the lengths of the vectors of an encoder that makes them of length 1."""


@dataclass(frozen=True)
class Changes:
    """Outcome of a write, by document id."""

    added: list[str]
    updated: list[str]
    unchanged: list[str]
    deleted: list[str]
    encoded: int = 0
    """Number of passages that were encoded; passages that the index already had are not encoded again."""


def apply_changes(
    model: Model,
    backend: Backend,
    documents: Sequence[Document],
    embeddings: Any,
    progress: bool | None,
    *,
    replace: bool,
    cutter: Cutter,
    delete: Sequence[str] = (),
) -> Changes:
    """Add documents and delete others in one transaction; unchanged documents are not encoded again.

    Args:
        model: The index's model.
        backend: Storage of the index.
        documents: Documents to add.
        embeddings: Vectors [N, d] of the documents by the model's encoder; ``None`` to encode them.
        progress: A progress bar; ``None`` shows it on a terminal.
        replace: Replace documents whose id exists with other content; otherwise they raise.
        cutter: Cuts documents into passages.
        delete: Ids of documents to delete; ids of ``documents`` are ignored.
    """
    latest = unique(documents)
    with writing(lambda: str(backend.stats().location)) as record, backend.read() as view:
        arrays = PassageArrays(model, view, stores_sentences(backend), cutter)
        is_new = not len(view)
        arrays.look_up(latest, delete)
        if embeddings is not None:
            view.release()  # neither encoding nor the commit keeps the storage's log from being cut
            vectors = model.encoder.map(check_vectors(embeddings, documents, model.encoder.plain), "document")
            if not model.indexes_embeddings:
                model.require_embeddings()
            if documents:
                arrays.take_vectors(documents, vectors)
        else:
            view.release()
            if len(latest) <= ENCODED_AHEAD:  # a small change is encoded before the index is locked
                fresh = [document for id, document in latest.items() if arrays.digests.get(id) != document.digest]
                if not replace:
                    _refuse([document.key for document in fresh if document.key in arrays.digests], len(latest))
                for batch in _batches(fresh, progress):
                    arrays.prepare(batch)
        changes = _commit(model, backend, latest, arrays, progress, replace=replace, delete=delete)
        record({name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted")})
    if is_new:
        warn_of_language(model, backend, documents)
    return changes


def _commit(
    model: Model,
    backend: Backend,
    latest: Mapping[str, Document],
    arrays: PassageArrays,
    progress: bool | None,
    *,
    replace: bool,
    delete: Sequence[str],
) -> Changes:
    """Write a change under the lock, and report what became of each document."""
    with backend.write() as writer:  # another writer may have committed since the view was opened: compare again
        digests = writer.digests(list(latest))
        changed = {id for id, digest in digests.items() if latest[id].digest != digest}
        if not replace:
            _refuse(changed, len(latest))
        deleted = writer.delete([id for id in delete if id not in latest])
        fresh = [document for id, document in latest.items() if id not in digests or id in changed]
        bar = False if arrays.prepared else progress  # a bar was shown while documents were prepared
        for batch in _batches(fresh, bar):
            writer.put(*arrays.arrays_of(batch))
    note_score_scales(model, backend)
    return Changes(
        added=[id for id in latest if id not in digests],
        updated=[id for id in latest if id in changed],
        unchanged=[id for id in latest if id in digests and id not in changed],
        deleted=deleted,
        encoded=arrays.encoded,
    )


def _batches(documents: Sequence[Document], progress: bool | None) -> Iterator[Sequence[Document]]:
    """Yield documents in batches, with a progress bar if there are several."""
    bar_shown = progress if len(documents) > ENCODED_AT_ONCE else False
    with progress_bar(bar_shown, total=len(documents), desc="Indexing", unit="doc") as bar:
        for start in range(0, len(documents), ENCODED_AT_ONCE):
            batch = documents[start : start + ENCODED_AT_ONCE]
            yield batch
            bar.update(len(batch))


def _refuse(changed: Sequence[str] | set[str], total: int) -> None:
    """Raise if an addition has ids of documents with other content."""
    if ids := sorted(changed):
        raise DuplicateIdError(
            f"{len(ids)} of {total} ids hold another document already, such as {shown(ids[0])}: "
            "nothing was added; use upsert to replace them, or give new ids"
        )


def note_score_scales(model: Model, backend: Backend) -> None:
    """Store the zero and unit of the index's scores as a note with the documents (:mod:`palmette.ranking.scales`).

    They are measured anew when the number of documents has changed by a fifth.
    """
    unfiltered = backend.backend if isinstance(backend, FilteredBackend) else backend
    options = model.search_options({})
    calibration = model.calibration(options, "auto")
    with unfiltered.read() as view:
        count, note = len(view), view.note(SCORE_SCALES)
        measured_on = noted_score_scales(note).documents if note else 0
        if calibration is None or not count or 0.8 * count <= measured_on <= 1.25 * count:
            return
        sentences = model.sentences and stores_sentences(backend)
        score_scales = score_scales_for(model, options, view, sentences).replace(documents=count)
    try:
        with unfiltered.write() as writer:
            writer.note(SCORE_SCALES, json.dumps(score_scales.model_dump()))
    except StoreError as error:  # the documents are committed already: an exception would say that they are not
        warnings.warn(
            f"{unfiltered.stats().location}: the documents are written, but not the note of their score scales, "
            f"which the next write tries again ({error})",
            stacklevel=4,
        )


def check_vectors(embeddings: Any, documents: Sequence[Document], encoder: Encoder) -> Floats:
    """Check the documents' vectors [N, d] against the encoder, by encoding a few of the documents.

    They are scaled to length 1 if the encoder's vectors have that length.
    """
    vectors = _read_vectors(embeddings, documents, encoder)
    if not len(documents):
        return vectors
    compared = np.unique(np.linspace(0, len(documents) - 1, COMPARED_VECTORS).astype(np.int64))
    expected = encoder.encode([documents[row].content for row in compared.tolist()])
    lengths, expected_lengths = np.linalg.norm(vectors, axis=1), np.linalg.norm(expected, axis=1)
    if not lengths.all():
        row = int(lengths.argmin())
        raise InputError(f"the embedding of document {documents[row].key!r} is all zeros: encode it anew")
    cosines = (vectors[compared] * expected).sum(axis=1) / (lengths[compared] * expected_lengths)
    worst = int(cosines.argmin())
    if cosines[worst] < LEAST_VECTOR_COSINE:
        raise InputError(
            f"embeddings are not those of encoder {encoder.name!r}: that of document "
            f"{documents[int(compared[worst])].key!r} has a cosine of {cosines[worst]:.2f} with what it gives for the "
            "text; give them in the documents' order, made by the same model, prompt and token limit, or leave them out"
        )
    if np.abs(expected_lengths - 1).max() < LENGTH_TOLERANCE:
        scaled: Floats = (vectors / lengths[:, None]).astype(np.float32)
        return scaled
    return vectors


def _read_vectors(embeddings: Any, documents: Sequence[Document], encoder: Encoder) -> Floats:
    """Convert an array or a tensor to finite float32 numbers of the shape [N, d]."""
    if hasattr(embeddings, "detach"):  # a tensor, on any device
        embeddings = embeddings.detach().float().cpu().numpy()
    try:
        vectors: Floats = np.ascontiguousarray(np.asarray(embeddings, np.float32))
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"embeddings must be an array or a tensor [N, d] of numbers, got {type(embeddings).__name__}; take those "
            "of a FAISS index out with its reconstruct_n"
        ) from error
    if vectors.shape != (len(documents), encoder.dimension) or not np.isfinite(vectors).all():
        raise InputError(
            f"embeddings must be finite and [{len(documents)}, {encoder.dimension}], one row for each document in the "
            f"width of encoder {encoder.name!r}; got {vectors.shape}"
        )
    return vectors
