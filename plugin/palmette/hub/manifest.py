"""Names of a checkpoint's files, and the manifest of their sizes and sums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from palmette.config import parse_json
from palmette.errors import CheckpointError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
PICKLES = (".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth")


class Layout(NamedTuple):
    """Names that a checkpoint may use: nothing else is read, written or fetched."""

    config: str = "config.json"
    weights: str = "model.safetensors"
    card: str = "README.md"  # not in the manifest, since its owner may edit it on the Hub
    manifest: str = "manifest.json"  # size and SHA-256 of every other file
    notes: tuple[str, ...] = ("training.json", "report.json", "topics.json")  # without effect on results
    suffixes: tuple[str, ...] = (".json", ".md", ".safetensors", ".txt")
    format: str = "palmette-checkpoint"
    version: int = 1

    def allows(self, name: str) -> bool:
        """Tell whether a manifest may list this name: flat, and data."""
        plain = _NAME.fullmatch(name) and name not in (self.manifest, self.card)
        return bool(plain) and name.endswith(self.suffixes)


LAYOUT = Layout()


class Entry(BaseModel):
    """Sum and size of a file."""

    model_config = ConfigDict(frozen=True, strict=True)
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Sum up these bytes."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


_FILES = TypeAdapter(dict[str, Entry])


def read_manifest(data: bytes, where: str) -> dict[str, Entry]:
    """Read the entries of ``manifest.json``, trusting nothing in it."""
    try:
        content = parse_json(data)
    except ValueError as error:
        raise CheckpointError(
            f"{where}: {LAYOUT.manifest} is damaged ({error}); save or pull the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        content = {}
    if content.get("kind") == "palmette index":
        raise CheckpointError(f"{where} is an index, not a checkpoint: name the one it was made with")
    if content.get("format") != LAYOUT.format:
        raise CheckpointError(f"{where} is no palmette checkpoint: its {LAYOUT.manifest} is not palmette's")
    version = content.get("version")
    if isinstance(version, int) and version > LAYOUT.version:
        raise CheckpointError(
            f"{where} has checkpoint format {version}, and this palmette reads up to {LAYOUT.version}."
            " Run: pip install --upgrade palmette"
        )
    entries: dict[str, Entry] = {}
    with contextlib.suppress(ValidationError):
        entries = _FILES.validate_python(content.get("files"))
    needed = {LAYOUT.config, LAYOUT.weights} <= entries.keys()
    if version != LAYOUT.version or not needed or not all(map(LAYOUT.allows, entries)):
        raise CheckpointError(
            f"{where}: {LAYOUT.manifest} is damaged: it must list {LAYOUT.config}, {LAYOUT.weights} and"
            f" only flat names ending in {', '.join(LAYOUT.suffixes)}, each with sha256 and size;"
            " save or pull the checkpoint again"
        )
    return entries


def dump_manifest(files: Mapping[str, Entry]) -> bytes:
    """Write ``manifest.json``."""
    listed = {name: entry.model_dump() for name, entry in files.items()}
    content = {"format": LAYOUT.format, "version": LAYOUT.version, "files": listed}
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


def flaws(files: Mapping[str, Entry], folder: Path) -> dict[str, str]:
    """Map the name of every file that is not as listed to its flaw."""
    flawed = {}
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            flawed[name] = "is missing"
        elif (size := path.stat().st_size) != entry.size:
            kind = "truncated" if size < entry.size else "too long"
            flawed[name] = f"is {kind}: {entry.size} bytes expected, {size} found"
        else:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != entry.sha256:
                flawed[name] = f"was altered: sha256 {entry.sha256} expected, {sha256} found"
    return flawed


def foreign(where: str, names: Iterable[str]) -> CheckpointError:
    """Make the error for a folder or repository without a manifest; it says so when there are only pickles."""
    names = sorted(names)
    pickles = [name for name in names if PurePosixPath(name).suffix in PICKLES]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        return CheckpointError(
            f"{where} has its weights only as a pickle ({pickles[0]!r}), which can run code when loaded:"
            f" palmette never reads one. Ask its author for a checkpoint with {LAYOUT.weights}, as written by"
            " save_pretrained"
        )
    listed = ", ".join(names[:8]) + (f", … ({len(names)} files)" if len(names) > 8 else "")
    return CheckpointError(
        f"{where} is no palmette checkpoint: it has no {LAYOUT.manifest} (it holds: {listed or 'nothing'})."
        " Give a folder or repository written by save_pretrained or push_to_hub"
    )
