"""One change of an index: decide what is new, encode it, commit it as a whole."""

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
from palmette.index.folder import check_count, unique
from palmette.model import Model
from palmette.progress import progress_bar
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.score import noted_units
from palmette.ranking.units import UNITS, units_for
from palmette.sources.cutting import Cutter
from palmette.store.backend import Backend
from palmette.store.tenants import FilteredBackend
from palmette.telemetry import writes
from palmette.types import Document

AHEAD = 4096
"""A change of up to so many documents is encoded before it locks the index; a larger one is streamed under the lock."""
COMPARED = 8
"""Documents that are encoded to check whether given vectors are this encoder's."""
SAME = 0.98
"""Least cosine of a given vector and the encoder's; half precision and 8-bit codes stay well above it."""
LENGTHS = 0.02
"""How much their lengths may differ, as a share."""


@dataclass(frozen=True)
class Changes:
    """Outcome of a write, by document id."""

    added: list[str]
    updated: list[str]
    unchanged: list[str]
    deleted: list[str]
    encoded: int = 0
    """Passages that were encoded: those that the index held already, in any document of the change, are not."""


@writes
def apply_changes(
    model: Model,
    backend: Backend,
    given: Sequence[Document],
    embeddings: Any,
    batch_size: int,
    progress: bool | None,
    *,
    replace: bool,
    cutter: Cutter,
    delete: Sequence[str] = (),
) -> Changes:
    """Put documents in and take others out, in one transaction; unchanged ones are not encoded again."""
    batch_size, latest = check_count("batch_size", batch_size), unique(given)
    with backend.read() as view:
        encoding = PassageArrays(model, view, stores_sentences(backend), cutter)
        if embeddings is not None:
            vectors = model.encoder.map(check_vectors(embeddings, given, model.encoder.plain), "document")
            if not model.indexes_embeddings:
                model.require_embeddings()
            if given:
                encoding.take_vectors(given, vectors)
        else:
            encoding.look_up(latest, delete)
            _encode_ahead(encoding, latest, replace, batch_size, progress)
        return _write(model, backend, latest, encoding, batch_size, progress, replace=replace, delete=delete)


def _write(
    model: Model,
    backend: Backend,
    latest: Mapping[str, Document],
    encoding: PassageArrays,
    batch_size: int,
    progress: bool | None,
    *,
    replace: bool,
    delete: Sequence[str],
) -> Changes:
    with backend.write() as writer:  # others may have written meanwhile: the decision is made again
        held = writer.digests(list(latest))
        changed = {id for id, digest in held.items() if latest[id].digest != digest}
        if not replace:
            _refuse(changed, len(latest))
        deleted = writer.delete([id for id in delete if id not in latest])
        fresh = [document for id, document in latest.items() if id not in held or id in changed]
        quiet = False if encoding.ready else progress  # the bar was shown while encoding
        for batch in _batches(fresh, batch_size, quiet):
            writer.put(*encoding.of(batch))
    note_units(model, backend)
    if fresh:
        with backend.read() as view:
            if warning := model.describe(view).get("warning"):
                warnings.warn(f"{backend.stats().location}: {warning}", stacklevel=3)
    return Changes(
        added=[id for id in latest if id not in held],
        updated=[id for id in latest if id in changed],
        unchanged=[id for id in latest if id in held and id not in changed],
        deleted=deleted,
        encoded=encoding.encoded,
    )


def note_units(model: Model, backend: Backend) -> None:
    """Note the units of meaning, measured where training has not, when a fifth of the documents have come or gone."""
    whole = backend.backend if isinstance(backend, FilteredBackend) else backend
    options = model.search_options({})
    mix = model.calibration(options, "auto")
    with whole.read() as view:
        count, noted = len(view), view.note(UNITS)
        known = noted_units(noted).documents if noted else 0
        if mix is None or not count or 0.8 * count <= known <= 1.25 * count:
            return
        sentences = model.sentences and stores_sentences(backend)
        units = units_for(model, options, view, sentences).replace(documents=count)
    try:
        with whole.write() as writer:
            writer.note(UNITS, json.dumps(units.model_dump()))
    except StoreError as error:  # the documents' own commit is made: raising here would deny it
        warnings.warn(
            f"{whole.stats().location}: the documents are written, but not the note of their units of meaning, which "
            f"the next write tries again ({error})",
            stacklevel=4,
        )


def _encode_ahead(
    encoding: PassageArrays, latest: Mapping[str, Document], replace: bool, size: int, progress: bool | None
) -> None:
    """Encode what looks new while others may still write."""
    if len(latest) > AHEAD:
        return
    fresh = [document for id, document in latest.items() if encoding.held.get(id) != document.digest]
    if not replace:
        _refuse([document.key for document in fresh if document.key in encoding.held], len(latest))
    for batch in _batches(fresh, size, progress):
        encoding.prepare(batch)


def _batches(documents: Sequence[Document], size: int, progress: bool | None) -> Iterator[Sequence[Document]]:
    shown = progress if len(documents) > size else False
    with progress_bar(shown, total=len(documents), desc="Indexing", unit="doc") as bar:
        for start in range(0, len(documents), size):
            yield documents[start : start + size]
            bar.update(min(size, len(documents) - start))


def _refuse(changed: Sequence[str] | set[str], total: int) -> None:
    if ids := sorted(changed):
        raise DuplicateIdError(
            f"{len(ids)} of {total} ids hold another document already, such as {shown(ids[0])}: "
            "nothing was added; use upsert to replace them, or give new ids"
        )


def check_vectors(given: Any, documents: Sequence[Document], encoder: Encoder) -> Floats:
    """Check an array or a tensor of the documents' vectors [N, d] by encoding a few documents.

    Vectors of another length are scaled to 1, if the encoder's have that length.
    """
    if hasattr(given, "detach"):  # a tensor, wherever it lies
        given = given.detach().float().cpu().numpy()
    try:
        vectors: Floats = np.ascontiguousarray(np.asarray(given, np.float32))
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"embeddings must be an array or a tensor [N, d] of numbers, got {type(given).__name__}; take those of a "
            "FAISS index out with its reconstruct_n"
        ) from error
    if vectors.shape != (len(documents), encoder.dimension) or not np.isfinite(vectors).all():
        raise InputError(
            f"embeddings must be finite and [{len(documents)}, {encoder.dimension}], one row for each document in the "
            f"width of encoder {encoder.name!r}; got {vectors.shape}"
        )
    if not len(documents):
        return vectors
    compared = np.unique(np.linspace(0, len(documents) - 1, COMPARED).astype(np.int64))
    expected = encoder.encode([documents[row].content for row in compared.tolist()])
    lengths, own = np.linalg.norm(vectors, axis=1), np.linalg.norm(expected, axis=1)
    if not lengths.all():
        row = int(lengths.argmin())
        raise InputError(f"the embedding of document {documents[row].key!r} is all zeros: encode it anew")
    cosines = (vectors[compared] * expected).sum(axis=1) / (lengths[compared] * own)
    worst = int(cosines.argmin())
    if cosines[worst] < SAME:
        raise InputError(
            f"embeddings are not those of encoder {encoder.name!r}: that of document "
            f"{documents[int(compared[worst])].key!r} has a cosine of {cosines[worst]:.2f} with what it gives for the "
            "text; give them in the documents' order, made by the same model, prompt and token limit, or leave them out"
        )
    if np.abs(own - 1).max() < LENGTHS:
        scaled: Floats = (vectors / lengths[:, None]).astype(np.float32)
        return scaled
    if np.abs(lengths[compared] / own - 1).max() > LENGTHS:
        raise InputError(
            f"embeddings have other lengths than encoder {encoder.name!r} gives ({lengths[compared[0]]:.3g} instead of "
            f"{own[0]:.3g}): give them as the encoder made them, not normalised, or leave them out"
        )
    return vectors
