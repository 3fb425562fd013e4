"""A checkpoint that was opened and found whole, and how one is saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import CheckpointError, NotFoundError
from palmette.hub.folder import settle, write_folder
from palmette.hub.layout import LAYOUT, Entry, Manifest, canonical, foreign, refuse_executables

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checkpoint", "fingerprint_of", "open_folder", "read_checkpoint", "save_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A model's files, verified when opened and once more when read.

    The second check costs little and matters: tensors may be read long after opening, when another process
    has saved a new model into the folder, and one model's options must never meet another's weights.

    Attributes:
        path: The folder it lies in.
        config: The content of ``config.json``.
        fingerprint: SHA-256 over what determines the model's results, the same on every machine: the config's
            ``method``, ``config`` and ``encoder`` (of the latter its ``fingerprint`` alone, if it has one,
            since a path is the machine's) and the sums of all files but ``config.json`` and the notes. The
            training's record, metrics, card and palmette's version do not enter.
        files: Name → what the file must be.
        origin: The Hub repository it came from, if any.
        revision: The commit it came from, if any.
    """

    path: Path
    config: dict[str, Any]
    fingerprint: str
    files: Mapping[str, Entry] = field(repr=False)
    origin: str | None = None
    revision: str | None = None

    @property
    def extras(self) -> list[str]:
        """Names of the files besides config and weights."""
        return [name for name in self.files if name not in (LAYOUT.config, LAYOUT.weights)]

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        """Name → tensor, from safetensors."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(self.file(LAYOUT.weights))
        except SafetensorError as error:  # the sum is right, so it was written so
            raise CheckpointError(
                f"{self.path}: {LAYOUT.weights} is no safetensors file ({error}); save it again"
            ) from error
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def file(self, name: str) -> bytes:
        """The content of one file of the checkpoint."""
        if name not in self.files:
            raise NotFoundError(
                f"the checkpoint in {self.path} has no file {name!r}; it has: {', '.join(sorted(self.files))}"
            )
        try:
            data = (self.path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: {name} can no longer be read ({error.strerror}); open it again"
            ) from error
        if Entry.of(data) != self.files[name]:
            raise CheckpointError(
                f"{self.path}: {name} has changed since the checkpoint was opened; open it again"
            )
        return data

    @property
    def card(self) -> str:
        """The text of the model card; empty if there is none."""
        path = self.path / LAYOUT.card
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def save_checkpoint(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    card: str,
    *,
    files: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint to a folder; a kill at any moment leaves the old one there or the new one.

    Args:
        path: A new or empty folder, or an earlier checkpoint's, which is replaced; any other one is refused.
        config: JSON values; see :class:`Checkpoint` for the keys that make the fingerprint.
        tensors: The weights; equal tensors give equal files on every machine.
        card: The model card, from :func:`palmette.hub.render_card`.
        files: More files by name, ``.json``, ``.txt``, ``.md`` or ``.safetensors``.
    """
    extra = dict(files or {})
    if taken := sorted(extra.keys() & {LAYOUT.config, LAYOUT.weights}):
        raise CheckpointError(f"files={taken[0]!r} is written by palmette itself; choose another name")
    try:
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{LAYOUT.config} must hold JSON values only: {error}") from error
    content = {LAYOUT.config: text.encode() + b"\n", LAYOUT.weights: _weights(tensors), **extra}
    folder = Path(path).expanduser()
    return read_checkpoint(folder, write_folder(folder, content, card))


def fingerprint_of(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], files: Mapping[str, bytes] | None = None
) -> str:
    """The fingerprint that :func:`save_checkpoint` would give these."""
    return _fingerprint(config, Manifest.of({**(files or {}), LAYOUT.weights: _weights(tensors)}))


def _weights(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    # A copy each, so that views and tied weights are written out.
    return save(
        {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()},
        {"format": "pt"},
    )


def open_folder(folder: Path) -> Checkpoint:
    """Open and verify a checkpoint on this machine."""
    settle(folder)
    if not (folder / LAYOUT.manifest).is_file():
        raise foreign(str(folder), [item.name for item in folder.iterdir()])
    manifest = Manifest.parse((folder / LAYOUT.manifest).read_bytes(), str(folder))
    refuse_executables(folder)
    for name, flaw in manifest.flaws(folder).items():
        raise CheckpointError(f"{folder}: {name} {flaw}. Save or pull the checkpoint again")
    return read_checkpoint(folder, manifest)


def read_checkpoint(
    folder: Path, manifest: Manifest, origin: str | None = None, revision: str | None = None
) -> Checkpoint:
    """The checkpoint in a folder whose files have just been verified."""
    try:
        config = json.loads((folder / LAYOUT.config).read_bytes())
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: {LAYOUT.config} is no JSON ({error}); save the checkpoint again"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{folder}: {LAYOUT.config} must hold an object, got {type(config).__name__}; save it again"
        )
    return Checkpoint(folder, config, _fingerprint(config, manifest), manifest.files, origin, revision)


def _fingerprint(config: Mapping[str, Any], manifest: Manifest) -> str:
    encoder = config.get("encoder")
    if isinstance(encoder, dict) and "fingerprint" in encoder:
        encoder = encoder["fingerprint"]
    aside = (LAYOUT.config, *LAYOUT.notes)
    sums = {name: entry.sha256 for name, entry in manifest.files.items() if name not in aside}
    content = {
        "method": config.get("method"),
        "config": config.get("config"),
        "encoder": encoder,
        "files": sums,
    }
    return hashlib.sha256(canonical(content)).hexdigest()
