"""The methods by name: a new one is a folder here and a row in ``METHODS``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.config import check_path
from palmette.errors import CheckpointError, ConfigError, load_name
from palmette.machine.files import reading

if TYPE_CHECKING:
    from palmette.methods.base import Model

__all__ = ["METHODS", "load_model", "model_class", "names"]

METHODS: dict[str, str] = {
    "fields": "palmette.methods.fields:FieldsModel",
    "layers": "palmette.methods.layers:LayersModel",
    "paths": "palmette.methods.paths:PathsModel",
    "space": "palmette.methods.space:SpaceModel",
    "taxonomy": "palmette.methods.taxonomy:TaxonomyModel",
    "tree": "palmette.methods.tree.model:TreeModel",
}
"""Method name → where its class is; imported when first asked for."""


def names() -> list[str]:
    """The methods there are."""
    return sorted(METHODS)


def model_class(method: str) -> type[Model]:
    """The class of a method."""
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}; there are: {', '.join(names())}")
    module, _, name = METHODS[method].partition(":")
    loaded: type[Model] = load_name(module, name)
    return loaded


def load_model(repo_or_dir: str | Path, *, revision: str | None = None, **options: Any) -> Model:
    """Load a checkpoint of any method, from a folder or the Hub: its config names the method.

    The default encoder and a packaged one (``packaged:all-MiniLM-L6-v2``) are models that nothing was trained for.
    Options are those of :meth:`palmette.methods.base.Model.from_pretrained`.
    """
    from palmette.hub import open_checkpoint
    from palmette.hub.checkpointed import loading
    from palmette.methods.base import DEFAULT_ENCODER

    path, name = check_path(repo_or_dir), str(repo_or_dir)
    encoders = DEFAULT_ENCODER, DEFAULT_ENCODER.partition("/")[2]
    if name.startswith("packaged:") or (name in encoders and not path.is_dir()):
        from palmette.encoder import load_encoder
        from palmette.methods.space import SpaceModel

        if options.pop("encoder", None) is not None:
            raise ConfigError(f"{name!r} is an encoder itself: leave encoder= out")
        return SpaceModel.untrained(load_encoder(name, revision=revision, **options))
    inside = path / "model" / "manifest.json"
    with reading(repo_or_dir, CheckpointError):
        is_index = inside.is_file()
    if is_index:
        raise CheckpointError(f"{repo_or_dir} is an index: use Index.open, or its model in {inside.parent}")
    hub = {name: options[name] for name in ("token", "cache_dir", "local_files_only") if name in options}
    checkpoint = open_checkpoint(repo_or_dir, revision=revision, **hub)
    method = checkpoint.config.get("method")
    if method == "reader":
        raise CheckpointError(f"{repo_or_dir} holds a reader, not a retriever: use Reader.from_pretrained")
    if not isinstance(method, str) or method not in METHODS:
        raise CheckpointError(
            f"{repo_or_dir} holds a model of method {method!r}, which this version does not have "
            f"(it has {', '.join(names())}): upgrade palmette"
        )
    with loading(checkpoint.path):
        return model_class(method).from_checkpoint(checkpoint, **options)
