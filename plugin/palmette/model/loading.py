"""Checkpoint → model, with the very encoder it was trained over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from palmette.encoder import Encoder
from palmette.encoder.load import encoder_of
from palmette.errors import CheckpointError
from palmette.hub import Checkpoint
from palmette.lexical.mix import Mix
from palmette.record import Record

if TYPE_CHECKING:
    from palmette.model.model import Model

__all__ = ["load"]

_M = TypeVar("_M", bound="Model")

_LOADED: WeakValueDictionary[tuple[object, ...], Model] = WeakValueDictionary()
"""Models in use, so that many retrievers of one checkpoint share one (a live model keeps its encoder's id)."""


def load(cls: type[_M], checkpoint: Checkpoint, encoder: str | Encoder | None, options: dict[str, Any]) -> _M:
    """The model of an opened checkpoint; loading the same twice gives the same object."""
    facts = checkpoint.config
    if facts.get("method") != cls.method:
        raise CheckpointError(
            f"{checkpoint.path} holds a {facts.get('method')!r} model, not {cls.method!r}: use palmette.load_model"
        )
    config = cls.config_class.from_dict(facts["config"])
    coder = encoder_of(facts["encoder"], encoder, checkpoint.path, **options)
    mixes = facts.get("words", {})
    known_by = (checkpoint.fingerprint, repr(mixes), checkpoint.origin, checkpoint.revision)
    key = (*known_by, id(coder))
    if isinstance(known := _LOADED.get(key), cls):
        return known
    module = cls.module_for(config, coder)
    try:
        module.load_state_dict(checkpoint.tensors())
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint.path}: weights do not fit the config ({error})") from error
    record = Record.from_dict(facts.get("record", {}))
    model = cls(config, coder, module, record=record, origin=checkpoint.origin, revision=checkpoint.revision)
    model.mixes = {name: Mix.from_dict(value) for name, value in mixes.items()}
    model.restore(checkpoint)
    model.fingerprint = checkpoint.fingerprint
    _LOADED[key] = model
    return model
