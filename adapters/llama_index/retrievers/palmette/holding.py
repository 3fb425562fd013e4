"""IndexHolder: the index of a retriever, persisted, pickled and opened again."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.callbacks import CallbackManager

from llama_index.retrievers.palmette.loading import open_index
from palmette.config import check_path, parse_json
from palmette.errors import ConfigError, InputError

if TYPE_CHECKING:
    from palmette import Index, Model
    from palmette.store.filters import Filter

SETTINGS = "llama_index.json"
"""The retriever's settings, in the index folder."""
SHARED = ("_index", "_opening", "callback_manager", "object_map", "transformations")
"""Attributes that a deep copy shares."""


class IndexHolder:
    """Base of retrievers: holds an index, persists it and pickles its folder."""

    _index: Index | None
    _opening: threading.Lock
    _path: Path | str | None
    _engine: str
    _within: Filter | None

    def _hold(self, index: Index) -> None:
        self._index, self._opening = index, threading.Lock()

    @property
    def index(self) -> Index:
        """The index behind the retriever; after unpickling it is opened on first use."""
        if self._index is None:
            with self._opening:
                if self._index is None:
                    assert self._path is not None
                    self._index = open_index(self._path, engine=self._engine).filtered(self._within)
        return self._index

    def settings(self) -> Mapping[str, Any]:
        """Constructor options to keep with the index."""
        return {}

    def persist(self, path: str | Path | None = None) -> Path:
        """Write the retriever to a folder that :meth:`from_persist_dir` opens.

        In the index's own folder, and without a ``path``, only the settings are written. With another path the index
        is copied into that new folder; nothing is encoded again. Objects that index nodes refer to, callbacks and
        transformations are not kept: give them again.
        """
        here = (
            self.index.path if isinstance(self.index.path, Path) else None
        )  # a collection keeps no settings
        target = here if path is None else check_path(path)
        if target is None:
            raise InputError(
                "this index is in memory, or a collection: name the folder, retriever.persist(path)"
            )
        if here is None or target.resolve() != here.resolve():
            self.index.copy_to(target).close()
        elif self.index.within is not None:
            raise InputError(
                f"this retriever sees a part of the index in {here}: persist that part in another folder"
            )
        draft = target / f"{SETTINGS}.{os.getpid()}.tmp"
        draft.write_text(json.dumps(self.settings(), indent=2) + "\n", encoding="utf-8")
        draft.replace(target / SETTINGS)
        return target

    @classmethod
    def from_persist_dir(
        cls, path: str | Path, *, model: Model | None = None, engine: str = "exact", **options: Any
    ) -> Self:
        """Open a folder of :meth:`persist`; options given here replace stored ones."""
        index = open_index(path, model, engine)
        kept = check_path(path) / SETTINGS
        stored = parse_json(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        return cls.from_index(index, **{**stored, **options})

    @classmethod
    def from_index(
        cls,
        index: Index | str | Path,
        *,
        model: Model | None = None,
        engine: str = "exact",
        **options: Any,
    ) -> Self:
        """Retriever of an index: a folder, opened with that engine (and that model, if loaded), or an open index.

        Over ``index.filtered(filter)`` it finds, adds and deletes only nodes that pass the filter.
        """
        make: Any = cls
        retriever: Self = make(open_index(index, model, engine), **options)
        return retriever

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the settings; copies share the index, and the objects that run."""
        twin = copy.copy(self)
        own = {name: value for name, value in self.__dict__.items() if name not in SHARED}
        twin.__dict__.update(copy.deepcopy(own, memo), object_map=dict(self.__dict__["object_map"]))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        index = state.pop("_index")
        if index is not None:
            state.update(_path=index.path, _engine=index.engine, _within=index.within)
        if state["_path"] is None:
            raise ConfigError(
                f"a {type(self).__name__} whose index is in memory cannot be pickled: make it with "
                "index_path=, to have it opened where it is unpickled"
            )
        del state["_opening"], state["callback_manager"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.update(_index=None, _opening=threading.Lock(), callback_manager=CallbackManager())
