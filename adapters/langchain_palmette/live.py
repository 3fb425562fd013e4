"""Open indexes and live objects by name, so that objects whose fields are JSON find them again.

LangChain copies a runnable by its fields (serialization, ``configurable_fields``, pickling), and a copy must
not open and verify its index anew. What is open is shared for as long as someone holds it; nothing is kept
alive here. Models and encoders need none of this, but where they are in memory only: the engine shares them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from palmette.errors import NotFoundError, StoreError

if TYPE_CHECKING:
    from palmette.index import Engine, Index
    from palmette.model import Model
    from palmette.reader import Reader

__all__ = ["Place", "find", "name_of", "open_index", "open_model", "open_reader", "publish"]

Place = tuple[str, str | None, Mapping[str, Any], "Engine"]
"""Folder or name of an index, folder or name of another model than its own, loading options, engine."""

MEMORY = "memory:"
"""Begins the name of what exists in this process only."""

_named: WeakValueDictionary[str, Any] = WeakValueDictionary()
_opened: WeakValueDictionary[tuple[object, ...], Index] = WeakValueDictionary()
_opening = threading.RLock()  # whoever asks for what is being opened waits for it


def name_of(thing: object) -> object:
    """A name for a live object; names and paths are their own."""
    if thing is None or isinstance(thing, str | Path):
        return thing if thing is None else str(thing)
    with _opening:
        known = next((name for name, held in _named.items() if held is thing), None)
        name = known or f"{MEMORY}{uuid4().hex}"
        _named[name] = thing
    return name


def find(name: str) -> Any:
    """What lives under a name of :func:`name_of`, ``None`` where nothing does."""
    return _named.get(name)


def open_model(name: str, options: Mapping[str, Any]) -> Model:
    """The model of that checkpoint or name."""
    from palmette.methods import load_model

    held: Model | None = _recall(name)
    return load_model(name, **options) if held is None else held


def open_reader(name: str, options: Mapping[str, Any]) -> Reader:
    """The reader of that checkpoint or name."""
    from palmette.reader import Reader

    held: Reader | None = _recall(name)
    return Reader.from_pretrained(name, **options) if held is None else held


def open_index(place: Place) -> Index:
    """The index of that folder or name."""
    from palmette.index import Index

    path, model, options, engine = place
    held: Index | None = _recall(path)
    if held is not None:
        return held
    with _opening:
        key = _key(place)
        index = _opened.get(key)
        if index is None or not _is_open(index):
            given = None if model is None else open_model(model, options)
            local = {name: value for name, value in options.items() if name != "revision"}
            _opened[key] = index = Index.open(path, given, engine=engine, **local)
    return index


def publish(index: Index, place: Place) -> None:
    """Let :func:`open_index` find an index that is open already."""
    with _opening:
        _opened[_key(place)] = index


def _recall(name: str) -> Any:
    """What lives under a name, ``None`` where it is the name of something on disk or the Hub."""
    held = find(name)
    if held is None and name.startswith(MEMORY):
        raise NotFoundError(
            f"{name!r} was in the memory of the process that made it, and is gone: make it with "
            "index_path='a-folder', so that a copy can open its index (a model: save_pretrained it first)"
        )
    return held


def _key(place: Place) -> tuple[object, ...]:
    """What is at that place now: another index in its stead has another key."""
    path, model, options, engine = place
    folder = Path(path).expanduser().absolute()
    manifest = folder / "manifest.json"
    stamp = (manifest.stat().st_ino, manifest.stat().st_mtime_ns) if manifest.is_file() else None
    return folder, stamp, model, engine, *sorted(options.items())


def _is_open(index: Index) -> bool:
    try:
        index.stats()
    except StoreError:
        return False
    return True
