"""Open indexes and loaded models by name, so that objects whose fields are JSON find them again.

LangChain copies a runnable by its fields (serialization, ``configurable_fields``, pickling), and a copy must
not load everything anew. What is open is shared for as long as someone holds it; nothing is kept alive here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from palmette.errors import NotFoundError, StoreError

if TYPE_CHECKING:
    from palmette.index import Engine, Index
    from palmette.model import Model

__all__ = ["MEMORY", "find", "folder_of", "is_occupied", "name_of", "open_index", "open_model", "publish"]

T = TypeVar("T")

MEMORY = "memory:"
"""Begins the name of what exists in this process only."""

_live: WeakValueDictionary[str, Any] = WeakValueDictionary()
_opening = threading.RLock()  # whoever asks for what is being loaded waits for it


def name_of(thing: object) -> object:
    """A name for a live object; names and paths are their own."""
    if thing is None or isinstance(thing, str | Path):
        return thing if thing is None else str(thing)
    with _opening:
        known = next(
            (name for name, held in _live.items() if held is thing and name.startswith(MEMORY)), None
        )
        name = known or f"{MEMORY}{uuid4().hex}"
        _live[name] = thing
    return name


def find(name: str) -> Any:
    """What lives under a name of :func:`name_of`, ``None`` where it is gone."""
    return _live.get(name)


def open_index(path: str, model: str | None, options: Mapping[str, Any], engine: Engine) -> Index:
    """The index of that folder or name."""
    from palmette.index import Index

    def make() -> Index:
        if model is not None:
            return Index.open(path, open_model(model, options), engine=engine)
        return Index.open(path, engine=engine, **_plain(options))

    return _shared(path, _index_key(path, model, options, engine), make, lambda index: _is_open(index))


def open_model(name: str, options: Mapping[str, Any]) -> Model:
    """The model of that checkpoint or name."""
    from palmette.registry import load_model

    return _shared(name, _key(name, options), lambda: load_model(name, **options), lambda model: True)


def publish(index: Index, path: str, options: Mapping[str, Any], engine: Engine) -> None:
    """Let :func:`open_index` find an index that is open already."""
    with _opening:
        _live[_index_key(path, None, options, engine)] = index


def _index_key(path: str, model: str | None, options: Mapping[str, Any], engine: Engine) -> str:
    return _key(path, {**options, "model": model, "engine": engine})


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a model that lies in the index's folder, and has no revisions."""
    return {name: value for name, value in options.items() if name not in ("revision", "token")}


def _key(name: str, options: Mapping[str, Any]) -> str:
    """What is at that place now: another file in its stead has another key."""
    place = Path(name).expanduser()
    manifest = place / "manifest.json"
    stamp = (manifest.stat().st_ino, manifest.stat().st_mtime_ns) if manifest.is_file() else None
    told = {key: value for key, value in options.items() if key != "token"}
    return json.dumps([str(place.absolute()) if stamp else name, stamp, told], sort_keys=True)


def _shared(name: str, key: str, make: Callable[[], T], usable: Callable[[T], bool]) -> T:
    with _opening:
        if name.startswith(MEMORY):
            key = name
        found: T | None = _live.get(key)
        if found is None and name.startswith(MEMORY):
            raise NotFoundError(
                f"{name!r} was in the memory of the process that made it, and is gone: make it with "
                "index_path='a-folder', so that a copy can open its index (a model: save_pretrained it first)"
            )
        if found is None or not usable(found):
            _live[key] = found = make()
        return found


def _is_open(index: Index) -> bool:
    try:
        index.stats()
    except StoreError:
        return False
    return True


def folder_of(index: Index) -> str | None:
    """Where an index can be opened again as it is: its model lies beside it, and nothing of it is hidden."""
    from palmette.index import MODEL
    from palmette.store.local import LocalBackend

    location = Path(index.stats().location)
    return str(location) if isinstance(index.backend, LocalBackend) and (location / MODEL).is_dir() else None


def is_occupied(path: str | Path) -> bool:
    """Whether there is a folder with something in it."""
    folder = Path(path).expanduser()
    return folder.is_dir() and any(folder.iterdir())
