"""One change of an index: decide what is new, encode it, commit it as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from palmette.errors import DuplicateIdError
from palmette.index.checks import check_count, unique
from palmette.index.embeddings import document_vectors
from palmette.index.results import Changes
from palmette.model import Model
from palmette.store.backend import Backend
from palmette.types import Document

__all__ = ["write"]

AHEAD = 4096
"""A change of up to so many documents is encoded before it locks the index; a larger one is streamed under the lock."""

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class _Encoded:
    """Arrays of documents that were encoded before the lock, by id."""

    rows: Mapping[str, int] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def of(self, batch: Sequence[Document]) -> Arrays | None:
        """Their rows, unless one is missing."""
        if any(document.key not in self.rows for document in batch):
            return None
        at = [self.rows[document.key] for document in batch]
        return {name: array[at] for name, array in self.arrays.items()}


def _batches(documents: Sequence[Document], size: int, progress: bool | None) -> Iterator[Sequence[Document]]:
    hidden = None if progress is None else not progress
    quiet = hidden if len(documents) > size else True
    with tqdm(total=len(documents), desc="Indexing", unit="doc", disable=quiet) as bar:
        for start in range(0, len(documents), size):
            yield documents[start : start + size]
            bar.update(min(size, len(documents) - start))


def _refuse(changed: Iterable[str], total: int) -> None:
    """Adding does not replace."""
    if ids := sorted(changed):
        raise DuplicateIdError(
            f"{len(ids)} of {total} ids hold another document already, such as {ids[0]!r}: "
            "nothing was added; use upsert to replace them, or give new ids"
        )


def _encode_ahead(
    model: Model,
    backend: Backend,
    latest: Mapping[str, Document],
    replace: bool,
    size: int,
    progress: bool | None,
) -> _Encoded:
    """Encode what looks new while others may still write; the decision is made again under the lock."""
    if len(latest) > AHEAD:
        return _Encoded()
    stored = dict(zip(latest, backend.get(list(latest)), strict=True))
    if not replace:
        differ = (id for id, old in stored.items() if old is not None and old.digest != latest[id].digest)
        _refuse(differ, len(latest))
    fresh = [latest[id] for id, old in stored.items() if old is None or old.digest != latest[id].digest]
    parts = [model.encode_documents(batch) for batch in _batches(fresh, size, progress)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    return _Encoded({document.key: row for row, document in enumerate(fresh)}, arrays)


def _look_after(model: Model, backend: Backend) -> None:
    """Say so when the documents no longer suit the model."""
    with backend.read() as view:
        if warning := model.describe(view).get("warning"):
            warnings.warn(f"{backend.stats().location}: {warning}", stacklevel=4)


def _encoded_before(model: Model, given: Sequence[Document], embeddings: Any) -> _Encoded:
    """The arrays of documents whose vectors the user has."""
    vectors = document_vectors(embeddings, given, model.encoder)
    if not model.indexes_embeddings:
        model.require_embeddings()
    if not given:
        return _Encoded()
    return _Encoded(
        {document.key: row for row, document in enumerate(given)},
        dict(model.encode_documents(given, vectors)),
    )


def _as_stored(arrays: Mapping[str, NDArray[np.generic]], backend: Backend, count: int) -> Arrays:
    """Arrays of an index made by an earlier version: zeros for retired ones, and no new ones."""
    return {
        spec.name: arrays.get(spec.name, np.zeros((count, *spec.shape), spec.dtype)) for spec in backend.arrays
    }


def write(
    model: Model,
    backend: Backend,
    given: Sequence[Document],
    *,
    replace: bool,
    embeddings: Any = None,
    delete: Sequence[str] = (),
    batch_size: int = 256,
    progress: bool | None = None,
) -> Changes:
    """Put documents in and take others out, in one transaction; what is there unchanged is not encoded again."""
    batch_size = check_count("batch_size", batch_size)
    latest = unique(given)
    ahead = (
        _encode_ahead(model, backend, latest, replace, batch_size, progress)
        if embeddings is None
        else _encoded_before(model, given, embeddings)
    )
    same_arrays = model.arrays() == backend.arrays
    with backend.write() as writer:
        held = writer.digests(list(latest))
        changed = {id for id, digest in held.items() if latest[id].digest != digest}
        if not replace:
            _refuse(changed, len(latest))
        deleted = writer.delete([id for id in delete if id not in latest])
        fresh = [document for id, document in latest.items() if id not in held or id in changed]
        quiet = False if ahead.rows else progress  # the bar was shown while encoding ahead
        for batch in _batches(fresh, batch_size, quiet):
            arrays = ahead.of(batch) or model.encode_documents(batch)
            writer.put(batch, arrays if same_arrays else _as_stored(arrays, backend, len(batch)))
    if fresh:
        _look_after(model, backend)
    return Changes(
        added=[id for id in latest if id not in held],
        updated=[id for id in latest if id in changed],
        unchanged=[id for id in latest if id in held and id not in changed],
        deleted=deleted,
    )
