"""The files of a checkpoint by name, and the manifest that tells whether they are whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from palmette.errors import CheckpointError

__all__ = ["LAYOUT", "Entry", "Layout", "Manifest", "canonical", "foreign", "refuse_executables"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PICKLES = (".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
_PROGRAMS = (".bat", ".cmd", ".dll", ".dylib", ".exe", ".pth", ".py", ".pyc", ".pyd", ".sh", ".so")


@dataclass(frozen=True)
class Layout:
    """Every name a checkpoint may use: nothing else is read, written or fetched.

    Attributes:
        config: What the model is: method, options, encoder, and whatever the model adds.
        weights: The tensors.
        card: The model card; not in the manifest, since its owner may edit it on the Hub.
        manifest: Size and SHA-256 of every file but the card.
        notes: Files about the model that do not change what it computes, so the fingerprint leaves them out.
        suffixes: The kinds of file a checkpoint may carry.
        format: The manifest's mark, and the newest version of it that this code reads.
        version: See ``format``.
    """

    config: str = "config.json"
    weights: str = "model.safetensors"
    card: str = "README.md"
    manifest: str = "manifest.json"
    notes: tuple[str, ...] = ("training.json", "report.json", "topics.json")
    suffixes: tuple[str, ...] = (".json", ".md", ".safetensors", ".txt")
    format: str = "palmette-checkpoint"
    version: int = 1

    def allows(self, name: str) -> bool:
        """Whether a file of this name may be listed in a manifest: flat, and data."""
        reserved = name in (self.manifest, self.card)
        return bool(_NAME.fullmatch(name)) and PurePosixPath(name).suffix in self.suffixes and not reserved


LAYOUT = Layout()


@dataclass(frozen=True)
class Entry:
    """What a file must be."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The entry of these bytes."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))

    def flaw(self, path: Path) -> str | None:
        """What is wrong with the file at ``path``, or ``None``."""
        if not path.is_file():
            return "is missing"
        if (size := path.stat().st_size) != self.size:
            kind = "truncated" if size < self.size else "too long"
            return f"is {kind}: {self.size} bytes expected, {size} found"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return None if found == self.sha256 else f"was altered: sha256 {self.sha256} expected, {found} found"


def canonical(value: object) -> bytes:
    """JSON that is the same on every machine."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


@dataclass(frozen=True)
class Manifest:
    """What every file of a checkpoint must be."""

    files: Mapping[str, Entry]

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self:
        """The manifest of these files."""
        if bad := [name for name in files if not LAYOUT.allows(name)]:
            raise CheckpointError(
                f"a checkpoint cannot carry a file named {bad[0]!r}: use a flat name ending in"
                f" {', '.join(LAYOUT.suffixes)}"
            )
        return cls({name: Entry.of(files[name]) for name in sorted(files)})

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Read ``manifest.json``, trusting nothing in it."""
        try:
            content = json.loads(data)
        except ValueError as error:
            raise CheckpointError(
                f"{where}: {LAYOUT.manifest} is damaged ({error}); save or pull the checkpoint again"
            ) from error
        if isinstance(content, dict) and content.get("kind") == "palmette index":
            raise CheckpointError(f"{where} is an index, not a checkpoint: name the one it was made with")
        if not isinstance(content, dict) or content.get("format") != LAYOUT.format:
            raise CheckpointError(
                f"{where} is no palmette checkpoint: its {LAYOUT.manifest} is not palmette's"
            )
        version = content.get("version")
        if isinstance(version, int) and version > LAYOUT.version:
            raise CheckpointError(
                f"{where} has checkpoint format {version}, and this palmette reads up to {LAYOUT.version}."
                " Run: pip install --upgrade palmette"
            )
        files = cls._entries(content.get("files")) if version == LAYOUT.version else None
        if files is None or not {LAYOUT.config, LAYOUT.weights} <= set(files):
            raise CheckpointError(
                f"{where}: {LAYOUT.manifest} is damaged: it must list {LAYOUT.config}, {LAYOUT.weights} and"
                f" only flat names ending in {', '.join(LAYOUT.suffixes)}, each with sha256 and size;"
                " save or pull the checkpoint again"
            )
        return cls(files)

    @staticmethod
    def _entries(listed: Any) -> dict[str, Entry] | None:
        """The listed files, or ``None`` if any name or value is not as we write them."""
        if not isinstance(listed, dict):
            return None
        entries = {}
        for name, value in listed.items():
            if not isinstance(value, dict) or not LAYOUT.allows(name):
                return None
            sha256, size = value.get("sha256"), value.get("size")
            if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256) or not isinstance(size, int):
                return None
            entries[name] = Entry(sha256, size)
        return entries

    def dump(self) -> bytes:
        """The content of ``manifest.json``."""
        files = {name: {"sha256": entry.sha256, "size": entry.size} for name, entry in self.files.items()}
        content = {"format": LAYOUT.format, "version": LAYOUT.version, "files": files}
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    def flaws(self, folder: Path) -> dict[str, str]:
        """File name → what is wrong with it, for every file that is not as listed."""
        found = {name: entry.flaw(folder / name) for name, entry in self.files.items()}
        return {name: flaw for name, flaw in found.items() if flaw}


def foreign(where: str, names: Iterable[str]) -> CheckpointError:
    """The error for a folder or repository without a manifest; it says so when there are only pickles."""
    names = sorted(names)
    pickles = [name for name in names if PurePosixPath(name).suffix in _PICKLES]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        return CheckpointError(
            f"{where} has its weights only as a pickle ({pickles[0]!r}), which can run code when loaded:"
            f" palmette never reads one. Ask its author for a checkpoint with {LAYOUT.weights}, as written by"
            " save_pretrained"
        )
    held = ", ".join(names[:8]) + (f", … ({len(names)} files)" if len(names) > 8 else "")
    return CheckpointError(
        f"{where} is no palmette checkpoint: it has no {LAYOUT.manifest} (it holds: {held or 'nothing'})."
        " Give a folder or repository written by save_pretrained or push_to_hub"
    )


def refuse_executables(folder: Path) -> None:
    """Raise when code or a pickle lies beside the checkpoint: somebody means it to be loaded."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (*_PICKLES, *_PROGRAMS):
            raise CheckpointError(
                f"{folder} holds {path.name!r}, which can run code: a checkpoint is only data"
                f" ({', '.join(LAYOUT.suffixes)}). Move it away, or get the checkpoint from one you trust"
            )
