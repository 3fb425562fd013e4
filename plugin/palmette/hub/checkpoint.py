"""Checkpoints on disk: folders written atomically, and verified when opened.

A kill while a folder is written leaves the old checkpoint or the new one, whole. A new folder is written beside its
place and becomes visible by one rename. An earlier checkpoint's folder stays the folder that it is, with the user's
other files, mount points and the working directory included: everything is first written to a stage inside it, and
renaming the stage to ``.palmette-ready`` is the step that decides. After it the files only move up, which the next
reader or writer can finish.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from palmette.config import check_path, parse_json
from palmette.errors import CheckpointError, InputError, LockedError, NotFoundError
from palmette.machine.files import fsync_folder, reading, write_anew
from palmette.machine.folders import atomic_folder, draft_beside, folder_lock, is_occupied

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_OURS = "palmette"
READY = f".{_OURS}-ready"
"""Folder that is complete and will replace the checkpoint."""
_PATIENCE = 60.0  # seconds: far longer than a save takes
_DTYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
"""Types of safetensors that are read as arrays."""


# -- the manifest ---------------------------------------------------------------------------------------


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
    with suppress(ValidationError):
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
            flawed[name] = f"has {size} bytes, and {entry.size} are expected"
        else:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != entry.sha256:
                flawed[name] = f"was altered: sha256 {entry.sha256} expected, {sha256} found"
    return flawed


def foreign(where: str, names: Iterable[str]) -> CheckpointError:
    """Make the error for a folder or repository without a manifest."""
    names = sorted(names)
    listed = ", ".join(names[:8]) + (f", … ({len(names)} files)" if len(names) > 8 else "")
    return CheckpointError(
        f"{where} is no palmette checkpoint: it has no {LAYOUT.manifest} (it holds: {listed or 'nothing'})."
        " Give a folder or repository written by save_pretrained or push_to_hub"
    )


# -- folders --------------------------------------------------------------------------------------------


def write_folder(folder: Path, files: Mapping[str, bytes], card: str) -> dict[str, Entry]:
    """Make ``folder`` the checkpoint of these files and card, replacing an earlier one there."""
    if bad := [name for name in files if not LAYOUT.allows(name)]:
        raise CheckpointError(
            f"a checkpoint cannot carry a file named {bad[0]!r}: use a flat name ending in {', '.join(LAYOUT.suffixes)}"
        )
    entries = {name: Entry.of(files[name]) for name in sorted(files)}
    content = {**files, LAYOUT.card: card.encode(), LAYOUT.manifest: dump_manifest(entries)}
    with _writing(folder):
        check_target(folder, content)
        if folder.name and not is_occupied(folder):  # "." stays the folder that it is
            with suppress(OSError, InputError):  # it cannot be replaced, as a mount point, or is no longer empty
                with atomic_folder(folder, flush=False) as draft:
                    draft.mkdir()
                    _fill(draft, content)
                return entries
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, _PATIENCE), draft_beside(folder / _OURS) as stage:
            _move_up(folder)  # of a save that was killed
            check_target(folder, content)
            _fill(stage, content)
            stage.rename(folder / READY)
            fsync_folder(folder)
            _move_up(folder)
    return entries


def _fill(folder: Path, content: Mapping[str, bytes]) -> None:
    for name, data in content.items():
        write_anew(folder / name, data, durable=True)
    fsync_folder(folder)


def check_target(folder: Path, content: Iterable[str] = ()) -> None:
    """Raise unless a checkpoint may be saved there: better before an hour of training than after it.

    The folder must be absent, empty, or a checkpoint without another file in the way of ``content``.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"cannot save to {folder}: it is a file; name a folder")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    theirs = {name for name in names if not name.startswith(f".{_OURS}")}
    if not theirs or READY in names:
        return
    advice = "Nothing was changed. Choose an empty folder or an earlier checkpoint's"
    if LAYOUT.manifest not in theirs:
        raise CheckpointError(f"cannot save over {folder}: {foreign(str(folder), theirs)}. {advice}")
    try:
        earlier = _earlier(folder) | {LAYOUT.card, LAYOUT.manifest}
    except CheckpointError as error:
        raise CheckpointError(f"cannot save over {folder}: {error}. {advice}") from error
    if blocked := sorted(theirs & set(content) - earlier):
        why = f"its {blocked[0]!r} is not part of the existing checkpoint"
        raise CheckpointError(f"cannot save over {folder}: {why}. {advice}")


def _move_up(folder: Path) -> None:
    """Finish a save that was decided: its files replace the earlier checkpoint's, the manifest last."""
    ready = folder / READY
    if ready.is_symlink():
        raise CheckpointError(f"{ready} is a symbolic link, which palmette never makes: remove it")
    if not ready.is_dir():
        return
    if (ready / LAYOUT.manifest).is_file():  # else only the emptied stage was left
        listed = read_manifest((ready / LAYOUT.manifest).read_bytes(), str(folder))
        for name in _earlier(folder) - listed.keys():
            (folder / name).unlink(missing_ok=True)
        for name in (*listed, LAYOUT.card, LAYOUT.manifest):
            if (ready / name).exists():
                (ready / name).replace(folder / name)
        fsync_folder(folder)
    ready.rmdir()


def _earlier(folder: Path) -> set[str]:
    path = folder / LAYOUT.manifest
    return set(read_manifest(path.read_bytes(), str(folder))) if path.is_file() else set()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk and the lock into CheckpointError."""
    try:
        yield
    except LockedError as error:
        raise CheckpointError(f"{error} (it has been saving for {_PATIENCE:g} s)") from error
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint to {folder}: {error.strerror or error}. What was there before is"
            " unchanged; make room, or choose a folder that can be written"
        ) from error


# -- checkpoints ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """Files of a model, verified when opened and once more when read.

    Tensors may be read long after opening, when another process has saved a new model into the folder: one model's
    options must never meet another's weights.
    """

    path: Path
    config: dict[str, Any]
    fingerprint: str
    """SHA-256 over what determines the model's results, equal on every machine."""
    files: Mapping[str, Entry] = field(repr=False)
    origin: str | None = None
    """Hub repository it came from, if any; ``revision`` is the commit."""
    revision: str | None = None

    @property
    def extras(self) -> list[str]:
        """Names of the files besides config and weights."""
        return [name for name in self.files if name not in (LAYOUT.config, LAYOUT.weights)]

    @property
    def card(self) -> str:
        """Text of the model card; empty if there is none."""
        path = self.path / LAYOUT.card
        with reading(self.path, CheckpointError):
            return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def tensors(self) -> dict[str, Tensor]:
        """Read the weights by name, from safetensors."""
        from safetensors.torch import load

        tensors: dict[str, Tensor] = self._stored(load)
        return tensors

    def weights(self, prefix: str) -> tuple[dict[str, NDArray[Any]], dict[str, Tensor]]:
        """Read the weights whose names begin with ``prefix`` as arrays, and the others as tensors.

        torch is imported only where there are others.
        """
        from safetensors import deserialize

        stored = dict(self._stored(deserialize))
        arrays = {name: stored.pop(name) for name in list(stored) if name.startswith(prefix)}
        if unknown := [name for name in arrays if arrays[name]["dtype"] not in _DTYPES]:
            kind = arrays[unknown[0]]["dtype"]
            raise CheckpointError(f"{self.path}: {unknown[0]} has the type {kind}, not float32; save it again")
        read = {
            name: np.frombuffer(facts["data"], _DTYPES[facts["dtype"]]).reshape(facts["shape"])
            for name, facts in arrays.items()
        }
        tensors = self.tensors() if stored else {}
        return read, {name: tensors[name] for name in stored}

    def _stored(self, read: Callable[[bytes], Any]) -> Any:
        from safetensors import SafetensorError

        try:
            return read(self.file(LAYOUT.weights))
        except SafetensorError as error:  # the sum is right, so it was written so
            reason = f"{LAYOUT.weights} is no safetensors file ({error})"
            raise CheckpointError(f"{self.path}: {reason}; save it again") from error

    def file(self, name: str) -> bytes:
        """Read one file of the checkpoint."""
        if name not in self.files:
            raise NotFoundError(
                f"the checkpoint in {self.path} has no file {name!r}; it has: {', '.join(sorted(self.files))}"
            )
        try:
            data = (self.path / name).read_bytes()
        except OSError as error:
            reason = f"{name} can no longer be read ({error.strerror})"
            raise CheckpointError(f"{self.path}: {reason}; open it again") from error
        if Entry.of(data) != self.files[name]:
            reason = f"{name} has changed since the checkpoint was opened"
            raise CheckpointError(f"{self.path}: {reason}; open it again")
        return data


def save_checkpoint(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    card: str,
    *,
    files: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint of JSON values, tensors, a card and more files to a folder, whole or not at all.

    The folder is new, empty, or an earlier checkpoint's, which is replaced; any other one is refused. Equal tensors
    give equal files on every machine.
    """
    if reserved := sorted(set(files or ()) & {LAYOUT.config, LAYOUT.weights}):
        raise CheckpointError(f"files={reserved[0]!r} is written by palmette itself; choose another name")
    try:
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{LAYOUT.config} must hold JSON values only: {error}") from error
    content = {LAYOUT.config: text + b"\n", LAYOUT.weights: dump_tensors(tensors), **(files or {})}
    folder = check_path(path)
    return read_checkpoint(folder, write_folder(folder, content, card))


def open_folder(folder: Path) -> Checkpoint:
    """Open and verify a checkpoint on this machine."""
    with reading(folder, CheckpointError):
        if (folder / READY).is_dir():  # a save was decided, and killed before its files had moved up
            with _writing(folder), folder_lock(folder, _PATIENCE):
                _move_up(folder)
        if not (folder / LAYOUT.manifest).is_file():
            raise foreign(str(folder), [item.name for item in folder.iterdir()])
        files = read_manifest((folder / LAYOUT.manifest).read_bytes(), str(folder))
        for name, flaw in flaws(files, folder).items():
            raise CheckpointError(f"{folder}: {name} {flaw}. Save or pull the checkpoint again")
        return read_checkpoint(folder, files)


def read_checkpoint(
    folder: Path, files: Mapping[str, Entry], origin: str | None = None, revision: str | None = None
) -> Checkpoint:
    """Read the checkpoint of a folder whose files have just been verified."""
    try:
        config = parse_json((folder / LAYOUT.config).read_bytes())
        if not isinstance(config, dict):
            raise ValueError(f"an object is needed, got {type(config).__name__}")
        fingerprint = fingerprint_of(config, files)
    except ValueError as error:
        message = f"{folder}: {LAYOUT.config} is unusable ({error}); save the checkpoint again"
        raise CheckpointError(message) from error
    return Checkpoint(folder, config, fingerprint, files, origin, revision)


def dump_tensors(tensors: Mapping[str, Any]) -> bytes:
    """Write the file of weights, tensors or arrays: a copy of each, so that views and tied weights are written out."""
    arrays = {name: value.copy() for name, value in tensors.items() if isinstance(value, np.ndarray)}
    if len(arrays) == len(tensors):
        from safetensors.numpy import save as save_arrays

        return save_arrays(arrays, {"format": "pt"})
    import torch
    from safetensors.torch import save

    every = {name: torch.as_tensor(arrays.get(name, value)) for name, value in tensors.items()}
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in every.items()}
    return save(copies, {"format": "pt"})


def fingerprint_of(config: Mapping[str, Any], files: Mapping[str, Entry]) -> str:
    """SHA-256 over the config's ``method``, ``config`` and ``encoder``, and all files but config.json and notes.

    An encoder that has a ``fingerprint`` enters by it alone, since a path is the machine's.
    """
    encoder = config.get("encoder")
    if isinstance(encoder, dict) and "fingerprint" in encoder:
        encoder = encoder["fingerprint"]
    aside = (LAYOUT.config, *LAYOUT.notes)
    content = {
        **{name: config.get(name) for name in ("method", "config")},
        "encoder": encoder,
        "files": {name: entry.sha256 for name, entry in files.items() if name not in aside},
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
