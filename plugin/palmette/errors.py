"""Every error a user can meet.

    PalmetteError
    ├── ConfigError            an option is unknown, of the wrong type or out of range   (also ValueError)
    ├── InputError             a document, query, k, filter or data file is unusable     (also ValueError)
    │   ├── DuplicateIdError   one id, two texts
    │   ├── FilterError        a filter that cannot be understood, or names an unknown key
    │   └── EncodingError      the encoder returned something that is not a finite vector
    ├── NotFoundError          an id, file, repository or revision that is not there     (also LookupError)
    ├── MissingExtraError      an optional dependency is not installed                   (also ImportError)
    ├── StoreError             the index folder cannot be used
    │   ├── CorruptIndexError  a file is missing, truncated or altered
    │   ├── FormatError        written in a format that this version does not read
    │   ├── LockedError        another writer holds the index
    │   ├── ReadOnlyError      the folder or its database cannot be written
    │   ├── StorageFullError   no room left; the index is as it was before
    │   └── ModelMismatchError the index was built by another model
    ├── CheckpointError        a checkpoint is incomplete, altered or not one of ours
    │   └── HubError           the Hub refused, or could not be reached
    ├── RemoteError            a model's server refuses, fails, or answers with something unusable
    └── TrainingError          training cannot start or has diverged

A message names the offending value, what was expected, and what to do about it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

REPAIR = "`palmette repair` saves all that is whole into a new index, or restore a backup"
"""What to do about a damaged index."""


def shown(value: object, length: int = 80) -> str:
    """Represent a value in a message, cut short, whatever its own ``repr`` does."""
    try:
        return repr(value)[:length]
    except Exception as error:  # nested too deeply, an integer of thousands of digits, a class of the user's
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def load_name(module: str, name: str) -> Any:
    """Import a name of palmette's; where a package of the extra ``train`` is missing, the error says so."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "sentence_transformers"):
            raise
        raise MissingExtraError("torch", "train", name) from error


class PalmetteError(Exception):
    """Base of every error that palmette raises on purpose."""


class ConfigError(PalmetteError, ValueError):
    """An option is unknown, of the wrong type or out of range."""


class InputError(PalmetteError, ValueError):
    """A document, query, ``k``, filter or data file cannot be used."""


class DuplicateIdError(InputError):
    """Two different texts were given under one id."""


class FilterError(InputError):
    """A filter cannot be understood, or names a key that no document has."""


class EncodingError(InputError):
    """The encoder returned something that is not a finite vector."""


class NotFoundError(PalmetteError, LookupError):
    """An id, file, repository or revision is not there."""


class MissingExtraError(PalmetteError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str, purpose: str, otherwise: str = "") -> None:
        way = f"Run: pip install 'palmette[{extra}]'{otherwise}"
        super().__init__(f"{purpose} needs {module!r}, which is not installed. {way}")


class StoreError(PalmetteError):
    """The index folder cannot be used as asked."""


class CorruptIndexError(StoreError):
    """A file of the index is missing, truncated or altered."""


class FormatError(StoreError):
    """The index was written in another format than this version reads."""


class LockedError(StoreError):
    """Another writer holds the index."""


class ReadOnlyError(StoreError):
    """The index cannot be written where it lies."""


class StorageFullError(StoreError):
    """There is no room left to write; the index is as it was before."""


class ModelMismatchError(StoreError):
    """The index was built by another model."""


class CheckpointError(PalmetteError):
    """A checkpoint is incomplete, altered or not one of palmette's."""


class HubError(CheckpointError):
    """The Hub refused a request, or could not be reached."""


class RemoteError(PalmetteError):
    """The server of a model refuses a request, cannot be reached, or answers with something unusable."""


class TrainingError(PalmetteError):
    """Training cannot start, or has diverged."""
