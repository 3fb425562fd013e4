"""Index folders and collections: created whole or not at all, and opened with the model inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from palmette.errors import ConfigError, InputError, ModelMismatchError
from palmette.index.encoding import index_arrays
from palmette.index.inputs import absolute
from palmette.lexical.language import stemmer_for
from palmette.machine.folders import is_occupied
from palmette.methods import load_model
from palmette.methods.base import Model
from palmette.methods.space import SpaceModel
from palmette.ranking.arrays import stores_sentences
from palmette.search.plan import ArraySpec
from palmette.store.engines import engine_of, is_url
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import storage_errors
from palmette.store.local.folder import check_entries, check_tenant, new_index_folder
from palmette.store.protocols import Backend, BackendStats

MODEL = "model"
"""Folder of the checkpoint inside an index folder."""

Engine = str
"""Name of a search engine: ``exact`` kernels; ``faiss`` (on the GPU where there is one); or the approximate
``ivf``, which takes options: ``"ivf:nlist=256,nprobe=8"``."""
Place = str | Path
"""A folder, or the URL of a Qdrant collection: ``qdrant://host:6333/name``."""
ModelLike = Model | str | Path
"""A model, or the folder or repository of its checkpoint."""


@dataclass(frozen=True)
class IndexStats(BackendStats):
    """Contents and size of an index."""

    method: str
    model: str
    """Fingerprint of the model."""
    tenant: str | None
    """Metadata name whose values separate the tenants' documents and ids; ``None`` if all documents share one set of
    ids. A search with ``filter=`` uses the word frequencies of all documents; ``index.filtered`` counts its own."""


def as_model(model: ModelLike | None, encoder: Any = None) -> Model:
    """Load a model from its folder or repository; ``None`` stands for an untrained ``encoder``, or the default one."""
    if model is None:
        return SpaceModel.untrained() if encoder is None else SpaceModel.untrained(encoder)
    if encoder is not None:
        raise ConfigError("a model has an encoder already: give model= or encoder=, not both")
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load_model(model)
    raise InputError(f"a model must be a Model, or where its checkpoint lies, got {type(model).__name__}")


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
    manifest: dict[str, Any] = {
        "fingerprint": model.fingerprint,
        "language": stemmer_for(language),
        "tenant": check_tenant(tenant),
        "passages": passages,
    }
    if is_url(path):
        with TemporaryDirectory() as folder:
            saved = model.save_pretrained(Path(folder) / MODEL)
            engine_of(path).create(path, arrays, model=saved, draft=draft, **manifest)
        return
    with new_index_folder(Path(path)) as new:
        LocalBackend.create(new, arrays, **manifest).close()
        model.save_pretrained(new / MODEL)


def open_index(
    path: Place, model: Model | None, model_options: dict[str, Any], **options: Any
) -> tuple[Model, Backend]:
    """Open the model and the documents of an index.

    Args:
        path: Folder or URL of the index.
        model: The model that built the index; ``None`` loads the copy inside.
        model_options: Options for loading that copy.
        options: Options of :meth:`palmette.store.local.backend.LocalBackend.open`.
    """
    if model is not None and model_options:
        raise ConfigError(
            f"{', '.join(model_options)}: these load the model inside, but a model is given; leave them out"
        )
    fingerprint = None if model is None else model.fingerprint
    if isinstance(path, str):
        remote = engine_of(path).open(path, fingerprint=fingerprint, lock_timeout=options["lock_timeout"])
        if model is None:
            with TemporaryDirectory() as folder:
                remote.save_model(Path(folder))
                model = load_model(folder, **model_options)
        return model, remote
    if path.is_symlink():  # an alias: the opened index stays open when the link is changed
        path = path.resolve()
    with storage_errors(path):
        is_checkpoint = (path / "model.safetensors").is_file()
    if is_checkpoint:
        raise InputError(f"{path} is a checkpoint, not an index: make one with Index.build or `palmette index`")
    backend = LocalBackend.open(path, fingerprint=fingerprint, **options)
    try:
        with storage_errors(path):
            check_entries(path / MODEL)
        model = model or load_model(path / MODEL, **model_options)
        if model.fingerprint != backend.fingerprint:
            raise ModelMismatchError(
                f"{path} was built by model {backend.fingerprint[:12]}, but its {MODEL} folder holds "
                f"{model.fingerprint[:12]}: restore that folder, or index the documents anew"
            )
        backend.check_arrays(index_arrays(model, stores_sentences(backend)))
    except BaseException:
        backend.close()
        raise
    return model, backend


def index_exists(path: object) -> bool:
    """Return True if there is an index, or another content of a folder, at a path or URL."""
    place = absolute(path)
    return engine_of(place).exists(place) if isinstance(place, str) else is_occupied(place)
