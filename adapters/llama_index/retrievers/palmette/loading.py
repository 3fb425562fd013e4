"""Models, given or loaded; the engine is imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.schema import BaseComponent

from palmette.errors import ConfigError, InputError

if TYPE_CHECKING:
    from palmette import Model
    from palmette.index.folder import ModelLike as ModelLike
else:
    ModelLike = Any


def load_model(model: ModelLike | None, encoder: Any = None, **options: Any) -> Model:
    """Load the model of a folder or repository; ``None`` is an encoder, untrained: the default one, or that given."""
    import palmette

    if model is not None and encoder is not None:
        raise ConfigError("a model has an encoder already: give model= or encoder=, not both")
    if model is None:
        return palmette.SpaceModel.untrained(*(() if encoder is None else (encoder,)))
    if isinstance(model, str | Path):
        return palmette.load_model(model, **options)
    if isinstance(model, palmette.Model):
        return model
    raise InputError(f"a model must be a Model, or where its checkpoint lies, got {type(model).__name__}")


class OfCheckpoint(BaseComponent):
    """A component that its dict, or a pickle, makes again by loading its model's checkpoint."""

    checkpoint: str | None = Field(default=None, description="Folder or repository of the model, if any.")
    revision: str | None = Field(default=None, description="Revision of the checkpoint.")
    _model: Any = PrivateAttr()

    @staticmethod
    def _loaded(model: ModelLike, revision: str | None, options: dict[str, Any] | None) -> tuple[Model, Any]:
        """The model, and the fields that say where it is."""
        loaded = load_model(model, revision=revision, **(options or {}))
        checkpoint = str(model) if isinstance(model, str | Path) else loaded.origin
        return loaded, {"checkpoint": checkpoint, "revision": loaded.revision}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Make a component from :meth:`to_dict`'s output; ``model=`` gives a loaded model instead of the checkpoint."""
        options = {**data, **kwargs}
        for derived in ("class_name", "model_name", "fingerprint"):
            options.pop(derived, None)
        checkpoint = options.pop("checkpoint", None)
        model = options.pop("model", None) or checkpoint
        if model is None:
            raise ConfigError(_UNSAVED.format(name=cls.__name__))
        make: Any = cls
        component: Self = make(model, **options.pop("search_options", {}), **options)
        return component

    def __reduce__(self) -> tuple[Any, ...]:
        if self.checkpoint is None:
            raise ConfigError(_UNSAVED.format(name=type(self).__name__))
        return type(self).from_dict, (self.to_dict(exclude={"embeddings_cache"}),)


_UNSAVED = "a {name} over a model in memory can be neither pickled nor made from its dict: save it, and give its folder"
