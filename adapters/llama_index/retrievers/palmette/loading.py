"""Models and indexes, given or loaded; the engine is imported when one is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import ConfigError

if TYPE_CHECKING:
    from palmette.index import Engine, Index
    from palmette.model import Model

__all__ = ["loaded", "opened", "reloadable", "source"]


def loaded(model: Model | str | Path, **options: Any) -> Model:
    """The model itself, or the one of that folder or repository."""
    if isinstance(model, str | Path):
        from palmette.methods import load_model

        return load_model(model, **options)
    return model


def opened(index: Index | str | Path, model: Model | None = None, engine: Engine = "exact") -> Index:
    """The index itself, or the one in that folder."""
    if isinstance(index, str | Path):
        from palmette.index import Index

        return Index.open(index, model, engine=engine)
    return index


def source(model: Model | str | Path, loaded: Model) -> str | None:
    """The folder or repository a model can be loaded from again, if there is one."""
    return str(model) if isinstance(model, str | Path) else loaded.origin


def reloadable(owner: object, source: str | None) -> str:
    """The source, which pickling needs."""
    if source is None:
        raise ConfigError(
            f"a {type(owner).__name__} over a model in memory cannot be pickled: save it, and give its folder"
        )
    return source
