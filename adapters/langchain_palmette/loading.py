"""Models, encoders, readers and indexes by name, so that objects whose fields are JSON can refer to them.

LangChain copies a runnable by its fields (serialization, ``configurable_fields``, pickling), and a copy must not open
and verify its index again. An open index is shared as long as an object refers to it; an object in memory gets a name
that begins with ``memory:``. Both are stored as weak references.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from palmette.errors import InputError, NotFoundError, StoreError, shown
from palmette.ranking.second_stage import as_reranker

if TYPE_CHECKING:
    from palmette import Encoder, Index, Model, Reader

MEMORY = "memory:"

_named: WeakValueDictionary[str, Any] = WeakValueDictionary()
_opened: WeakValueDictionary[tuple[object, ...], Index] = WeakValueDictionary()
_lock = threading.RLock()  # callers wait for an index that another thread is opening


def name_of(thing: object) -> object:
    """Return the name of a live object; names and paths are returned as they are."""
    if thing is None or isinstance(thing, str | Path):
        return thing if thing is None else str(thing)
    with _lock:
        known = next((name for name, live_object in _named.items() if live_object is thing), None)
        name = known or f"{MEMORY}{uuid4().hex}"
        try:
            _named[name] = thing
        except TypeError as error:
            raise InputError(f"give a name, a folder or an object of palmette, got {shown(thing)}") from error
    return name


def find(name: object) -> Any:
    """Return the live object with this name; ``None`` for names of folders and repositories."""
    return _named.get(str(name))


def load(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """Load a ``model``, an ``encoder``, a ``reader`` or a ``rerank``, or return the live object with this name."""
    live_object = _recall(name)
    if kind == "rerank":
        return as_reranker(name if live_object is None else live_object)
    if live_object is not None:
        return live_object
    import palmette

    readers: Any = palmette.Reader
    loaders = {"encoder": palmette.load_encoder, "model": palmette.load_model, "reader": readers.from_pretrained}
    return loaders[kind](name, **options)


def open_index(path: str, model: str | None, engine: str, options: Mapping[str, Any]) -> Index:
    """Open the index of a folder or name, or return the one that is open already."""
    from palmette import Index

    live_index: Index | None = _recall(path)
    if live_index is not None:
        return live_index
    with _lock:
        key = _key(path, model, engine, options)
        if (index := _opened.get(key)) is not None:
            with suppress(StoreError):  # it was closed
                index.stats()
                return index
        if encoder := options.get("encoder"):
            options = {**options, "encoder": _recall(encoder) or encoder}
        loaded_model = None if model is None else load("model", model, options)
        used = ("revision",) if loaded_model is None else ("revision", "encoder")
        local = {name: value for name, value in options.items() if name not in used}
        _opened[key] = index = Index.open(path, loaded_model, engine=engine, **local)
    return index


def share(index: Index, path: str, model: str | None, engine: str, options: Mapping[str, Any]) -> None:
    """Let :func:`open_index` find an index that is open already."""
    with _lock:
        _opened[_key(path, model, engine, options)] = index


def _recall(name: str) -> Any:
    """Return the live object with this name; raise if it was in memory and is gone."""
    live_object = find(name)
    if live_object is None and name.startswith(MEMORY):
        raise NotFoundError(
            f"{name!r} was in the memory of the process that made it, and is gone: make it with "
            "index_path='a-folder', so that a copy can open its index (a model: save_pretrained it first)"
        )
    return live_object


def _key(path: str, model: str | None, engine: str, options: Mapping[str, Any]) -> tuple[object, ...]:
    """Key of an open index; an index that replaces it in the same folder has another manifest, so another key."""
    folder = Path(path).expanduser().absolute()
    manifest = folder / "manifest.json"
    stamp = (manifest.stat().st_ino, manifest.stat().st_mtime_ns) if manifest.is_file() else None
    return folder, stamp, model, engine, *sorted(options.items())


def _reranker_name(value: Any) -> Any:
    """Return the name of a reranker; one of a name with options is kept by palmette."""
    named = isinstance(value, Mapping) and isinstance(value.get("model"), str)
    return name_of(as_reranker(value) if named else value)


if TYPE_CHECKING:
    EncoderName = str | Path | Encoder
    ModelName = str | Path | Model
    ReaderName = str | Path | Reader
    PathName = str | Path
    RerankerName = Any
else:
    EncoderName = ModelName = ReaderName = Annotated[str, BeforeValidator(name_of)]
    RerankerName = Annotated[str, BeforeValidator(_reranker_name)]
    PathName = Annotated[str, BeforeValidator(lambda path: str(path) if isinstance(path, Path) else path)]


class Loading(BaseModel):
    """Options that load a checkpoint. All fields are JSON, so that a copy in another process can load it again."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    revision: str | None = Field(default=None, frozen=True)
    """Branch, tag or commit of the Hub repository."""
    device: str | None = Field(default=None, frozen=True)
    """Device: ``cuda``, ``mps`` or ``cpu``; ``None`` for the best available."""
    dtype: str | None = Field(default=None, frozen=True)
    """The encoder's precision: ``float32``, ``bfloat16``, ``float16``; ``None`` to choose by device."""
    batch_size: int | None = Field(default=None, ge=1, frozen=True)
    """Texts per forward pass of the encoder."""
    threads: int | None = Field(default=None, ge=1, frozen=True)
    """CPU threads of torch, for the whole process."""
    cache_dir: PathName | None = Field(default=None, frozen=True)
    """Hub cache to use."""
    local_files_only: bool = Field(default=False, frozen=True)
    """Use no network."""

    _objects: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Keep references to the live objects that fields name, so that they are not collected."""
        super().model_post_init(context)
        live = {kind: find(getattr(self, kind, None)) for kind in ("encoder", "model", "reader", "rerank")}
        self._objects = {kind: thing for kind, thing in live.items() if thing is not None}
        if "rerank" in self._objects:
            self._objects["rerank"] = as_reranker(self._objects["rerank"])

    def loaded(self, kind: str) -> Any:
        """Return the object that a field names, loaded on first use."""
        if kind not in self._objects:
            self._objects[kind] = load(kind, str(getattr(self, kind)), self._loading())
        return self._objects[kind]

    def _loading(self) -> dict[str, Any]:
        """Loading options that differ from the defaults."""
        return {n: value for n in Loading.model_fields if (value := getattr(self, n)) not in (None, False)}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **dict(self)), ()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return type(self)(**copy.deepcopy(dict(self), memo))
