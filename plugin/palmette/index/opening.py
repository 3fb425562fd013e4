"""Index folders: made, opened, copied, each whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from palmette.errors import ConfigError, InputError, ModelMismatchError
from palmette.index.checks import check_count
from palmette.index.folder import drafted
from palmette.model import Model
from palmette.registry import load_model
from palmette.search.engine import engine_named
from palmette.store.backend import Backend
from palmette.store.local import LocalBackend

__all__ = ["MODEL", "Engine", "Modelled", "as_model", "copy_folder", "make_folder", "open_folder"]

MODEL = "model"
"""Folder of the checkpoint inside an index folder."""

Engine = str
"""``exact`` kernels; ``faiss`` (on the GPU where there is one); ``ivf`` or ``hnsw``, which look at a part of the
vectors, with options if wished: ``"ivf:nlist=256,nprobe=8"``."""
Modelled = Model | str | Path | Sequence[Model | str | Path]
"""A model, where its checkpoint lies, or several of either to fuse."""


def as_model(model: Modelled) -> Model:
    """A model, or the one in that folder or repository, or several of them fused."""
    if isinstance(model, list | tuple):
        from palmette.fusion import FusionModel

        return FusionModel.of(model)
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load_model(model)
    raise InputError(f"a model must be a Model, or where its checkpoint lies, got {type(model).__name__}")


def make_folder(path: Path, model: Model, language: str | None, engine: Engine) -> None:
    """An empty index, with a copy of its model's checkpoint; ``engine`` is what it is to be opened with."""
    engine_named(engine)  # a wrong one leaves no folder behind
    with drafted(path) as draft:
        arrays, fingerprint = model.arrays(), model.fingerprint
        LocalBackend.create(draft, arrays, fingerprint=fingerprint, language=language).close()
        model.save_pretrained(draft / MODEL)


def open_folder(
    path: Path, model: Model | None, model_options: dict[str, Any], **options: Any
) -> tuple[Model, LocalBackend]:
    """The model and the documents of an index; ``options`` are those of ``LocalBackend.open``."""
    if model is not None and model_options:
        raise ConfigError(
            f"{', '.join(model_options)}: these load the model inside, but a model is given; leave them out"
        )
    if (path / "model.safetensors").is_file():
        raise InputError(
            f"{path} is a checkpoint, not an index: make one with Index.build or `palmette index`"
        )
    backend = LocalBackend.open(path, fingerprint=None if model is None else model.fingerprint, **options)
    try:
        opened = model or load_model(path / MODEL, **model_options)
        if opened.fingerprint != backend.fingerprint:
            raise ModelMismatchError(
                f"{path} was built by model {backend.fingerprint[:12]}, but its {MODEL} folder holds "
                f"{opened.fingerprint[:12]}: restore that folder, or index the documents anew"
            )
    except BaseException:
        backend.close()
        raise
    return opened, backend


def copy_folder(
    path: Path, model: Model, source: Backend, batch_size: int, *, encode: bool, progress: bool | None
) -> None:
    """All documents that a backend shows, in a new folder; arrays as they are, or anew for another model."""
    arrays, batch_size = model.arrays(), check_count("batch_size", batch_size)
    with drafted(path) as draft:
        with (
            LocalBackend.create(
                draft, arrays, fingerprint=model.fingerprint, language=source.language
            ) as backend,
            source.read() as view,
            backend.write() as writer,
        ):
            encode = encode or source.arrays != arrays  # made by an earlier version
            keys = view.keys().tolist()
            hidden = None if progress is None else not progress
            with tqdm(total=len(keys), desc="Copying", unit="doc", delay=2, disable=hidden) as bar:
                for start in range(0, len(keys), batch_size):
                    batch = keys[start : start + batch_size]
                    documents = view.documents(batch)
                    kept = {} if encode else {spec.name: view.array(spec.name, batch) for spec in arrays}
                    writer.put(documents, model.encode_documents(documents) if encode else kept)
                    bar.update(len(batch))
        model.save_pretrained(draft / MODEL)
