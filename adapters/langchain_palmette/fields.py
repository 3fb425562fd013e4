"""Fields that palmette's LangChain classes have in common: which model, and how it is loaded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from langchain_palmette.live import name_of

if TYPE_CHECKING:
    from palmette.encoder import Encoder
    from palmette.model import Model

    EncoderName = str | Path | Encoder
    ModelName = str | Path | Model
    PathName = str | Path
else:
    EncoderName = ModelName = Annotated[str, BeforeValidator(name_of)]
    PathName = Annotated[str, BeforeValidator(lambda path: str(path) if isinstance(path, Path) else path)]

__all__ = ["EncoderName", "Loading", "ModelName", "PathName"]


class Loading(BaseModel):
    """How a checkpoint is loaded. All fields are JSON: copies load again, lazily, what this object has open."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    revision: str | None = Field(default=None, frozen=True)
    """Branch, tag or commit of the Hub repository."""
    device: str | None = Field(default=None, frozen=True)
    """Where to compute: ``cuda``, ``mps``, ``cpu``; ``None`` for the best there is."""
    dtype: str | None = Field(default=None, frozen=True)
    """The encoder's precision: ``float32``, ``bfloat16``, ``float16``; ``None`` to choose by device."""
    batch_size: int | None = Field(default=None, ge=1, frozen=True)
    """Texts per forward pass of the encoder."""
    threads: int | None = Field(default=None, ge=1, frozen=True)
    """CPU threads of torch, for the whole process."""
    cache_dir: PathName | None = Field(default=None, frozen=True)
    """Hub cache to use."""
    local_files_only: bool = Field(default=False, frozen=True)
    """Never go to the network."""

    def _loading(self) -> dict[str, Any]:
        """The options that were given."""
        given = {name: getattr(self, name) for name in Loading.model_fields}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), dict(self))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return type(self)(**copy.deepcopy(dict(self), memo))


def _revive(cls: type[Loading], fields: dict[str, Any]) -> Loading:
    return cls(**fields)
