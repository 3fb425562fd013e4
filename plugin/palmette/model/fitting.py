"""Data → trained model, the same way for every method."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from palmette.cache import EncodingCache
from palmette.config import check_keys
from palmette.data import load_data
from palmette.encoder import Encoder, load_encoder
from palmette.errors import InputError
from palmette.model.mixing import learn_mixes
from palmette.record import Record
from palmette.training import main_first

if TYPE_CHECKING:
    from palmette.model.model import Model

__all__ = ["documented", "fit"]

_M = TypeVar("_M", bound="Model")


def fit(
    cls: type[_M],
    data: Any,
    options: Mapping[str, Any],
    *,
    encoder: str | Encoder,
    cache: EncodingCache | str | Path | None,
    device: str | None,
    output_dir: str | Path | None,
    resume: bool,
    progress: bool | None,
) -> _M:
    """Read the data, build the method's task, run the loop; the arguments are those of ``Model.fit``."""
    own, loop = cls.config_class.choices(), cls.training_class.choices()
    check_keys(f"{cls.__name__}.fit", options, [*own, *loop])
    config = cls.config_class.of(**{key: value for key, value in options.items() if key in own})
    training = cls.training_class.of(**{key: value for key, value in options.items() if key in loop})
    loaded = load_data(data, seed=training.seed)
    if not loaded.trainable:
        raise InputError(
            f"{loaded.name} has no training pairs: splits are {sorted(loaded.qrels)}; 'train' is needed"
        )
    store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
    with main_first(device):  # of several processes one encodes; the cache then serves the others
        coder = load_encoder(encoder, device=device)
        config, task = cls.task(config, loaded, coder, store, seed=training.seed, progress=progress)
    run: dict[str, Any] = {"device": device, "output_dir": output_dir, "resume": resume, "progress": progress}
    trained = cls.run(task, training, label=f"Training the {cls.method} model", **run)
    model = cls(config, coder, task.module, record=Record.after(loaded, training, task, trained))
    model.learned(task)
    model.mixes = learn_mixes(model, loaded, coder, store, seed=training.seed, progress=progress)
    return model


def documented(cls: type[Model]) -> None:
    """Write the options of a method and of its training into the docstring of its own ``fit``."""
    method: Any = vars(cls).get("fit")
    if method is None or not method.__func__.__doc__:
        return
    config, loop = cls.config_class, cls.training_class
    default = {field.name: field.default for kind in (config, loop) for field in dataclasses.fields(kind)}
    known = config.help() | loop.help()
    shown = (name for name in [*config.choices(), *loop.choices()] if name in known)
    options = (f"    {name} (default {default[name]!r}): {known[name]}" for name in shown)
    body = inspect.cleandoc(method.__func__.__doc__)
    method.__func__.__doc__ = "\n".join([body, "", "Options:", *options])
