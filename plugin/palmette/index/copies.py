"""Copies, backups and repairs of an index: each is written to a new place, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from palmette.errors import CheckpointError, NotFoundError, PalmetteError
from palmette.index.encoding import encode_stored, index_arrays
from palmette.index.folder import MODEL, Place, create_index
from palmette.index.sync import NOTE, source_notes
from palmette.index.write import ENCODED_AT_ONCE, note_score_scales
from palmette.lexical.analyser import LANGUAGE
from palmette.machine.progress import progress_bar
from palmette.methods import load_model
from palmette.methods.base import Model
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.scales import SCORE_SCALES
from palmette.search.plan import ArraySpec
from palmette.sources.cutting import AUTO, new_cutter
from palmette.store.engines import engine_of, is_url
from palmette.store.local.backend import LocalBackend
from palmette.store.local.feedback import FEEDBACK, FeedbackLog
from palmette.store.local.folder import new_index_folder
from palmette.store.protocols import Backend, read_array
from palmette.store.repair import Repair, salvage

COPIED_AT_ONCE = 1024
"""Number of documents that are copied at a time."""
COPIED_PER_COMMIT = 64 * COPIED_AT_ONCE
"""Number of documents that a copy to a collection commits at a time."""


def copy_index(path: Place, model: Model, source: Backend, *, encode: bool, progress: bool | None) -> None:
    """Copy all documents that a backend shows to a new place, with their arrays or, to ``encode`` them, without."""
    arrays = index_arrays(model, stores_sentences(source))
    copy = partial(_copy_documents, source, model=model, arrays=arrays, encode=encode, progress=progress)
    if is_url(path):
        create_index(path, model, arrays, source.language, source.tenant, source.passages, draft=True)
        remote = engine_of(path).open(path, draft=True)
        try:
            copy(remote, per_commit=COPIED_PER_COMMIT)
            remote.publish()
        except BaseException:  # nobody else can open or write to a draft, so that it would stay forever
            remote.discard()
            raise
        finally:
            remote.close()
        return
    with new_index_folder(Path(path)) as draft:
        local = LocalBackend.create(
            draft,
            arrays,
            fingerprint=model.fingerprint,
            language=source.language,
            tenant=source.tenant,
            passages=source.passages,
        )
        with local:
            copy(local, per_commit=None)
        model.save_pretrained(draft / MODEL)


def _copy_documents(
    source: Backend,
    target: Backend,
    *,
    model: Model,
    arrays: Sequence[ArraySpec],
    encode: bool,
    per_commit: int | None,
    progress: bool | None,
) -> None:
    """Copy documents to an empty backend, ``per_commit`` in a transaction or all in one."""
    with source.read() as view:
        passages = view.keys()
        keys = passages[view.document_keys(passages) == passages].tolist()  # of documents: their first passages
        per_commit = per_commit or max(1, len(keys))
        with progress_bar(progress, total=len(keys), desc="Copying", unit="doc", delay=2) as bar:
            for first in range(0, max(1, len(keys)), per_commit):
                end = min(first + per_commit, len(keys))
                with target.write() as writer:
                    for start in range(first, end, COPIED_AT_ONCE):
                        batch = keys[start : min(start + COPIED_AT_ONCE, end)]
                        stored = view.stored(batch)
                        if encode:
                            writer.put(stored, encode_stored(model, stored, stores_sentences(source)))
                        else:  # the passages of a document have the keys after its own
                            counts = [len(document.passages) for document in stored]
                            own = [key + n for key, count in zip(batch, counts, strict=True) for n in range(count)]
                            writer.put(stored, {spec.name: read_array(view, spec, own) for spec in arrays})
                        for name, value in source_notes(view, stored).items():
                            writer.note(name, value)
                        bar.update(len(batch))
                    if not encode and (scales := view.note(SCORE_SCALES)) is not None:  # of this model
                        writer.note(SCORE_SCALES, scales)


def update_copy(original: Backend, copy: Backend, model: Model) -> None:
    """Bring a copy, which has a model of its own, up to date with its original in one transaction.

    Documents keep the places of their passages, and the source that keeps them up to date; only those that differ are
    encoded.
    """
    documents = {stored.document.key: stored for stored in original.scan_stored()}
    known = {stored.document.key: stored for stored in copy.scan_stored()}
    changed = [stored for key, stored in documents.items() if known.get(key) != stored]
    gone = [key for key in known if key not in documents]
    with original.read() as view, copy.read() as view_of_copy:
        notes = source_notes(view, documents.values())
        notes = {name: value for name, value in notes.items() if view_of_copy.note(name) != value}
    if not changed and not gone and not notes:
        return
    with copy.write() as writer:
        writer.delete(gone)
        for name, value in notes.items():
            writer.note(name, value)
        for start in range(0, len(changed), ENCODED_AT_ONCE):
            batch = changed[start : start + ENCODED_AT_ONCE]
            writer.put(batch, encode_stored(model, batch, stores_sentences(copy)))
    note_score_scales(model, copy)


def repair_folder(source: Path, path: Path, model: Model | None, progress: bool | None) -> Repair:
    """Write the intact documents of a damaged index to a new folder; those without intact arrays are encoded."""
    if not source.is_dir():
        raise NotFoundError(f"there is no index at {source}: no such folder")
    try:
        model = model or load_model(source / MODEL)
    except PalmetteError as error:
        reason = f"the model inside {source} cannot be loaded ({error}): give it, as model= or --model"
        raise CheckpointError(reason) from error
    with new_index_folder(path) as draft, salvage(source, path) as salvaged:
        manifest, cutter = salvaged.manifest, new_cutter(model, AUTO)
        sentences = manifest is None or stores_sentences(manifest)
        arrays = index_arrays(model, sentences)
        if manifest is None or (manifest.fingerprint, manifest.arrays) != (model.fingerprint, arrays):
            salvaged.segments.clear()  # their arrays are of another model or format, or of an unknown one
        backend = LocalBackend.create(
            draft,
            arrays,
            fingerprint=model.fingerprint,
            language=manifest.language if manifest else LANGUAGE,
            tenant=manifest.tenant if manifest else None,
            passages=manifest.passages if manifest else cutter.recorded,
        )
        encoded = 0
        bar = progress_bar(progress, total=len(salvaged.rows), desc="Repairing", unit="doc", delay=2)
        with backend, bar, backend.write() as writer:
            for stored, intact_arrays in salvaged.batches(arrays):
                if manifest is None:  # the manifest says how documents were cut: cut them again
                    stored = cutter.cut([document.document for document in stored])
                writer.put(stored, intact_arrays or encode_stored(model, stored, sentences))
                encoded += 0 if intact_arrays else len(stored)
                bar.update(len(stored))
            for name in sorted({f"{NOTE}{stored.source}" for stored in salvaged.rows.values() if stored.source}):
                if name in salvaged.notes:
                    writer.note(name, salvaged.notes[name])
        try:
            FeedbackLog(source).copy_to(draft)
        except PalmetteError as error:
            salvaged.damaged.append(str(error))
            (draft / FEEDBACK).unlink(missing_ok=True)
        model.save_pretrained(draft / MODEL)
    return Repair(len(salvaged.rows), encoded, salvaged.lost, salvaged.damaged)
