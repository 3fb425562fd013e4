"""Index folders and collections created, opened and copied, each whole or not at all; and checks of user input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from palmette.config import check_path, check_range
from palmette.data import iter_documents, to_document
from palmette.errors import (
    CheckpointError,
    ConfigError,
    DuplicateIdError,
    InputError,
    ModelMismatchError,
    NotFoundError,
    PalmetteError,
    shown,
)
from palmette.lexical.analyser import LANGUAGE, check_language
from palmette.methods import load_model
from palmette.methods.space import SpaceModel
from palmette.model import Model
from palmette.progress import progress_bar
from palmette.ranking.arrays import sentence_arrays, stored_arrays, stores_sentences
from palmette.ranking.units import UNITS
from palmette.search.faiss_engine import engine_named
from palmette.search.plan import ArraySpec, read_array
from palmette.search.stored import StoredDocument
from palmette.sources.cutting import AUTO, new_cutter, texts_above
from palmette.store.backend import Backend
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import storage_errors
from palmette.store.local.folder import atomic_folder, check_entries, check_tenant, is_occupied
from palmette.store.qdrant.url import is_url
from palmette.store.repair import Repair, salvage
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.store.qdrant.backend import QdrantBackend

MODEL = "model"
"""Folder of the checkpoint inside an index folder."""

Engine = str
"""``exact`` kernels; ``faiss`` (on the GPU where there is one); ``ivf`` or ``hnsw``, which search a part of the
vectors, with options if wished: ``"ivf:nlist=256,nprobe=8"``."""
Place = str | Path
"""A folder, or the URL of a Qdrant collection: ``qdrant://host:6333/name``."""
LONGEST_DOCUMENT = 1 << 26
"""Characters of a document's text and fields."""
LONGEST_NAME = 1024
"""Characters of a text that may be the name of a file."""
COPIED = 64
"""Batches of a copy that a collection commits at a time."""
ModelLike = Model | str | Path
"""A model, or where its checkpoint lies."""


def _collections() -> type[QdrantBackend]:
    """Storage of collections, imported when there is one."""
    from palmette.store.qdrant.backend import QdrantBackend

    return QdrantBackend


@dataclass(frozen=True)
class IndexStats:
    """Contents and size of an index."""

    documents: int
    """Whole documents."""
    method: str
    model: str
    location: str
    bytes: int
    """Size on disk; 0 of a collection, whose engine does not say."""
    segments: int
    reclaimable: int
    tenant: str | None = None
    """Metadata name that parts the documents and their ids; ``None``: ids are shared by all. A ``filter=`` of a search
    shares the frequencies of words with all documents; ``index.filtered`` counts its own."""
    passages: int = 0
    """Passages of all documents."""


def as_model(model: ModelLike | None, encoder: Any = None) -> Model:
    """Load a model from its folder or repository; ``None`` is an encoder, untrained: the default one, or that given."""
    if model is None:
        return SpaceModel.untrained() if encoder is None else SpaceModel.untrained(encoder)
    if encoder is not None:
        raise ConfigError("a model has an encoder already: give model= or encoder=, not both")
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load_model(model)
    raise InputError(f"a model must be a Model, or where its checkpoint lies, got {type(model).__name__}")


MOST_SECONDS = 1e6
"""Longest wait for another writer."""


def index_arrays(model: Model, sentences: bool) -> tuple[ArraySpec, ...]:
    """Arrays that an index stores for a model."""
    found = sentence_arrays(model.encoder.dimension) if sentences and model.sentences else ()
    return (*model.arrays(), *found)


def check_opening(engine: Any, lock_timeout: Any) -> None:
    """Raise for an unknown engine or an impossible time before there is a folder."""
    engine_named(engine)
    check_range("Index", "lock_timeout", np.nan if lock_timeout is None else lock_timeout, 0, MOST_SECONDS)


def create_index(
    path: Place,
    model: Model,
    arrays: Sequence[ArraySpec],
    language: str | None,
    tenant: str | None,
    passages: Mapping[str, Any] | None,
    *,
    draft: bool = False,
) -> None:
    """Create an empty index, with a copy of the model's checkpoint, in a folder or a collection."""
    how: dict[str, Any] = {"fingerprint": model.fingerprint, "language": check_language(language)}
    how |= {"tenant": check_tenant(tenant), "passages": passages}
    if is_url(path):
        with TemporaryDirectory() as folder:
            saved = model.save_pretrained(Path(folder) / MODEL)
            _collections().create(str(path), arrays, model=saved, draft=draft, **how)
        return
    with atomic_folder(Path(path)) as new:
        LocalBackend.create(new, arrays, **how).close()
        model.save_pretrained(new / MODEL)


def open_index(
    path: Place, model: Model | None, model_options: dict[str, Any], **options: Any
) -> tuple[Model, Backend]:
    """Open the model and the documents of an index; ``options`` are those of ``LocalBackend.open``."""
    if model is not None and model_options:
        raise ConfigError(
            f"{', '.join(model_options)}: these load the model inside, but a model is given; leave them out"
        )
    fingerprint = None if model is None else model.fingerprint
    if isinstance(path, str):
        remote = _collections().open(path, fingerprint=fingerprint, lock_timeout=options["lock_timeout"])
        if model is None:
            with TemporaryDirectory() as folder:
                remote.save_model(Path(folder))
                model = load_model(folder, **model_options)
        return model, remote
    if path.is_symlink():  # a name: what is opened stays open when the name leads elsewhere
        path = path.resolve()
    with storage_errors(path):
        is_checkpoint = (path / "model.safetensors").is_file()
    if is_checkpoint:
        raise InputError(f"{path} is a checkpoint, not an index: make one with Index.build or `palmette index`")
    backend = LocalBackend.open(path, fingerprint=fingerprint, **options)
    try:
        with storage_errors(path):
            check_entries(path / MODEL)
        opened = model or load_model(path / MODEL, **model_options)
        if opened.fingerprint != backend.fingerprint:
            raise ModelMismatchError(
                f"{path} was built by model {backend.fingerprint[:12]}, but its {MODEL} folder holds "
                f"{opened.fingerprint[:12]}: restore that folder, or index the documents anew"
            )
        backend.check_arrays(index_arrays(opened, stores_sentences(backend)))
    except BaseException:
        backend.close()
        raise
    return opened, backend


def copy_index(
    path: Place, model: Model, source: Backend, batch_size: int, *, encode: bool, progress: bool | None
) -> None:
    """Copy all documents that a backend shows to a new place, with their arrays or encoded anew."""
    batch_size = check_count("batch_size", batch_size)
    sentences = stores_sentences(source)
    arrays = index_arrays(model, sentences)
    how: dict[str, Any] = {"fingerprint": model.fingerprint, "language": source.language, "tenant": source.tenant}
    how["passages"] = source.passages

    def fill(backend: Backend, at_once: int | None) -> None:
        with source.read() as view, ExitStack() as stack:
            every = view.keys()
            owners = view.document_keys(every)
            keys = every[owners == every].tolist()  # of documents
            bar = stack.enter_context(progress_bar(progress, total=len(keys), desc="Copying", unit="doc", delay=2))
            for part in range(0, max(1, len(keys)), at_once or max(1, len(keys))):
                with backend.write() as writer:
                    whole = keys[part : part + (at_once or len(keys))]
                    for start in range(0, len(whole), batch_size):
                        batch = whole[start : start + batch_size]
                        stored = view.stored(batch)
                        rows = [
                            key + number
                            for key, one in zip(batch, stored, strict=True)
                            for number in range(len(one.passages))
                        ]
                        kept = {} if encode else {spec.name: read_array(view, spec, rows) for spec in arrays}
                        writer.put(stored, encode_stored(model, stored, sentences) if encode else kept)
                        bar.update(len(batch))
                    if not encode and (noted := view.note(UNITS)) is not None:
                        writer.note(UNITS, noted)

    if is_url(path):
        create_index(path, model, arrays, source.language, source.tenant, source.passages, draft=True)
        remote = _collections().open(str(path), draft=True)
        try:
            fill(remote, COPIED * batch_size)
            remote.publish()
        except BaseException:  # a draft that nobody else could open or write to
            remote.db("delete_collection")
            raise
        finally:
            remote.close()
        return
    with atomic_folder(Path(path)) as draft:
        with LocalBackend.create(draft, arrays, **how) as backend:
            fill(backend, None)
        model.save_pretrained(draft / MODEL)


def encode_stored(model: Model, stored: Sequence[StoredDocument], sentences: bool) -> dict[str, Any]:
    """Encode the passages of documents as they were cut."""
    model.encoder.check_reads_documents()
    parts = [part for one in stored for part in one.parts()]
    above = [title for one in stored for title in texts_above(one)]
    return stored_arrays(model, parts, sentences, above=above)


def repair_folder(source: Path, path: Path, model: Model | None, progress: bool | None) -> Repair:
    """Write what is whole of a damaged index to a new folder; documents without whole arrays are encoded."""
    if not source.is_dir():
        raise NotFoundError(f"there is no index at {source}: no such folder")
    try:
        made, encoded = model or load_model(source / MODEL), 0
    except PalmetteError as error:
        told = f"the model inside {source} cannot be loaded ({error}): give it, as model= or --model"
        raise CheckpointError(told) from error
    with atomic_folder(path) as draft, salvage(source, path) as found:
        sentences = found.manifest is None or stores_sentences(found.manifest)
        arrays = index_arrays(made, sentences)
        language = found.manifest.language if found.manifest else LANGUAGE
        known = found.manifest and (found.manifest.fingerprint, found.manifest.arrays)
        if known != (made.fingerprint, arrays):
            found.segments.clear()  # made by another model or an earlier version
        tenant = found.manifest.tenant if found.manifest else None
        how: dict[str, Any] = {"fingerprint": made.fingerprint, "language": language, "tenant": tenant}
        cutter = new_cutter(made, AUTO)
        how["passages"] = found.manifest.passages if found.manifest else cutter.recorded
        backend = LocalBackend.create(draft, arrays, **how)
        bar = progress_bar(progress, total=len(found.rows), desc="Repairing", unit="doc", delay=2)
        with backend, bar, backend.write() as writer:
            for documents, kept in found.batches(arrays):
                if found.manifest is None:  # perhaps of an earlier version, which did not cut
                    documents = cutter.cut([one.document for one in documents])
                writer.put(documents, kept or encode_stored(made, documents, sentences))
                encoded += 0 if kept else len(documents)
                bar.update(len(documents))
        made.save_pretrained(draft / MODEL)
    return Repair(len(found.rows), encoded, found.lost, found.damaged)


# -- what users hand in -------------------------------------------------------------------------------------


def absolute(value: object) -> Path | str:
    """Make a path absolute: what is opened stays what it is when the working directory changes. URLs are checked."""
    if is_url(value):
        from palmette.store.qdrant.client import parse_url

        parse_url(str(value))
        return str(value)
    return local_path(value)


def local_path(value: object) -> Path:
    """Absolute path of a folder; a URL is refused, which would otherwise make a folder of its name."""
    text = str(value) if isinstance(value, str | Path) else ""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):  # two letters at least: C:/ is a drive
        named = text.partition("?")[0].rpartition("@")[2]
        raise InputError(
            f"{shown(named)} is a URL, but a folder on this machine is needed; of URLs, Index.create, Index.open and "
            "index.copy_to take those of collections, such as qdrant://host:6333/name"
        )
    return check_path(value).absolute()


def check_count(name: str, value: object) -> int:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    return int(value)


def index_exists(path: object) -> bool:
    """Whether there is an index, or another content of a folder, at a path or URL."""
    place = absolute(path)
    return _collections().exists(place) if isinstance(place, str) else is_occupied(place)


def check_ids(ids: Iterable[str]) -> list[str]:
    """Check a list of str, not one str."""
    if isinstance(ids, str):
        raise InputError(f"ids must be a list, got the str {shown(ids)}: write [{shown(ids)}]")
    if not isinstance(ids, Iterable):
        raise InputError(f"ids must be a list of str, got {type(ids).__name__}")
    listed: list[object] = list(ids)
    if bad := [id for id in listed if not isinstance(id, str)]:
        raise InputError(f"ids are str, got {shown(bad[0])}")
    return [str(id) for id in listed]


def check_documents(given: object) -> list[Document]:
    """Read documents of any kind that :func:`palmette.data.to_document` knows, or a path to read them from."""
    if isinstance(given, str | Path):
        return list(iter_documents(given, passages=False))
    if isinstance(given, Document | Mapping | bytes) or not isinstance(given, Iterable):
        raise InputError(
            f"documents must be a list (or a path to read them from), got one {type(given).__name__}: write [document]"
        )
    documents = []
    for position, item in enumerate(given):
        try:
            if names_a_file(item):
                raise InputError(
                    f"{shown(str(item))} is the name of a file or folder, not a text: give the path itself, "
                    f"Index.build({shown(str(item))}), or bring the index up to date with index.sync"
                )
            documents.append(to_document(item))
        except InputError as error:
            raise type(error)(f"document {position}: {error}") from error
    return documents


def names_a_file(value: object) -> bool:
    """Whether what was given as a document is a path: a ``Path``, or a text that names a file which exists."""
    if isinstance(value, Path):
        return True
    if not isinstance(value, str) or len(value) > LONGEST_NAME or "\n" in value or not re.search(r"[./\\]\S", value):
        return False
    with suppress(OSError, ValueError):
        return Path(value).expanduser().exists()
    return False


def unique(documents: Sequence[Document]) -> dict[str, Document]:
    """Map ids to documents; the same document twice is one, one id with two contents is an error."""
    unique: dict[str, Document] = {}
    for document in documents:
        size = len(document.all_text)
        if size > LONGEST_DOCUMENT:
            raise InputError(
                f"document {shown(document.key)} has {size:,} characters, and may have {LONGEST_DOCUMENT:,}: nothing "
                "was added; split it into parts"
            )
        digest = document.digest  # raises where metadata is not JSON, before anything is written
        if unique.setdefault(document.key, document).digest != digest:
            raise DuplicateIdError(f"id {document.key!r} is given twice with different content: nothing was added")
    return unique
