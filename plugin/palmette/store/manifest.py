"""``manifest.json``: what the folder is, readable before (and without) opening its database."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palmette.errors import CorruptIndexError, FormatError, InputError, ModelMismatchError, NotFoundError
from palmette.lexical.tokens import LANGUAGE, check_language
from palmette.search.probe import ArraySpec
from palmette.store.database import DATABASE

__all__ = ["FORMAT", "MANIFEST", "Manifest", "check_specs", "fsync_folder"]

FORMAT = 2
MANIFEST = "manifest.json"
_KIND = "palmette index"


@dataclass(frozen=True)
class Manifest:
    """Written once, when the index is created, and last: a folder with a manifest is a whole index."""

    fingerprint: str
    arrays: tuple[ArraySpec, ...]
    language: str | None = LANGUAGE
    """Of the documents' words; see :class:`palmette.lexical.tokens.Analyser`."""

    def write(self, folder: Path, *, durable: bool) -> None:
        """Write atomically."""
        try:
            version = importlib.metadata.version("palmette")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            version = "unknown"
        arrays = [{**asdict(spec), "shape": list(spec.shape)} for spec in self.arrays]
        content = {
            "kind": _KIND,
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "arrays": arrays,
            "language": self.language,
            "created_with": version,
        }
        temporary = folder / f"{MANIFEST}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(folder / MANIFEST)
        if durable:
            fsync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read, or say what is wrong with the folder; touches nothing."""
        content = _content(folder)
        found = content.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise FormatError(
                f"{folder} has index format {found}, written by palmette {content.get('created_with')}; this "
                f"version reads up to format {FORMAT}. Run: pip install --upgrade palmette"
            )
        if found == 1:
            raise FormatError(
                f"{folder} has index format 1, which kept no words to search by; this version needs format {FORMAT}. "
                "Index the documents anew: Index.build(documents, model, another_folder)"
            )
        try:
            if found != FORMAT:
                raise ValueError(f"format is {found!r}, expected {FORMAT}")
            arrays = tuple(ArraySpec(a["name"], tuple(a["shape"]), a["dtype"]) for a in content["arrays"])
            check_specs(arrays)
            return cls(str(content["fingerprint"]), arrays, check_language(content["language"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(
                f"{folder / MANIFEST} is damaged ({error}); restore it from a backup"
            ) from error

    def check_fingerprint(self, expected: str | None, folder: Path) -> None:
        """Raise unless this index was made by the model with the expected fingerprint."""
        if expected is not None and expected != self.fingerprint:
            raise ModelMismatchError(
                f"{folder} was built by the model {self.fingerprint}, but the model given is {expected}; "
                "open it with the model that built it, or build a new index with this one"
            )


def _content(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    ours = (folder / DATABASE).exists()
    if not folder.exists():
        raise NotFoundError(f"there is no index at {folder}: no such folder; create it first")
    if not path.is_file():
        if ours:
            raise CorruptIndexError(
                f"{path} is missing; restore it from a backup, or build the index again in a new folder"
            )
        raise NotFoundError(
            f"{folder} is not a palmette index: it has no {MANIFEST}; give the folder an index was created in"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        if ours:
            raise CorruptIndexError(f"{path} is damaged ({error}); restore it from a backup") from error
        content = None
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise NotFoundError(f"{folder} is not a palmette index: its {MANIFEST} belongs to something else")
    return content


def check_specs(arrays: Sequence[ArraySpec]) -> None:
    """Raise unless the names are usable file names, distinct, and the types plain numbers."""
    seen = {"keys"}
    for spec in arrays:
        if not spec.name.isidentifier() or not spec.name.isascii() or spec.name.lower() in seen:
            raise InputError(f"array name {spec.name!r} must be an identifier, used once, and not 'keys'")
        seen.add(spec.name.lower())
        try:
            dtype = np.dtype(spec.dtype)
        except TypeError as error:
            raise InputError(f"array {spec.name!r}: unknown dtype {spec.dtype!r}") from error
        if dtype.kind not in "fiub" or any(size < 1 for size in spec.shape):
            shape = f"{spec.dtype} {spec.shape}"
            raise InputError(f"array {spec.name!r} must hold numbers in a shape of sizes ≥ 1, got {shape}")


def fsync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut; nothing to do where folders cannot be opened (Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
