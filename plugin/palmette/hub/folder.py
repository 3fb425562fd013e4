"""Writing a checkpoint's folder: killed at any moment, it holds the old checkpoint or the new one, whole.

Everything is first written to a stage inside the folder and flushed to the disk. Renaming the stage to
``READY`` is the one step that decides; after it the files only move up, manifest last, which whoever comes
next can finish. Working inside the folder, rather than swapping it for another, leaves alone what else a user
keeps there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from palmette.errors import CheckpointError
from palmette.hub.layout import LAYOUT, Manifest, foreign

__all__ = ["check_target", "settle", "write_folder"]

_OURS = ".palmette-"
_STAGE, READY, _LOCK = _OURS + "stage-", _OURS + "ready", _OURS + "lock"
_PATIENCE = 60.0  # seconds: far longer than a save takes


def write_folder(folder: Path, files: Mapping[str, bytes], card: str) -> Manifest:
    """Make ``folder`` the checkpoint of these files and card, replacing an earlier one there."""
    manifest = Manifest.of(files)
    content = {**files, LAYOUT.card: card.encode(), LAYOUT.manifest: manifest.dump()}
    check_target(folder)
    with _writing(folder):
        _claim(folder, content)  # before anything is written there, the lock file included
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _settle(folder)
            _claim(folder, content)
            for stale in folder.glob(_STAGE + "*"):  # of a process that was killed, since we hold the lock
                shutil.rmtree(stale)
            stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=folder))
            try:
                for name, data in content.items():
                    _write(stage / name, data)
                _flush(stage)
                stage.rename(folder / READY)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
            _flush(folder)
            _settle(folder)
    return manifest


def check_target(folder: Path) -> None:
    """Raise unless a checkpoint may be saved there: better before an hour of training than after it."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"cannot save to {folder}: it is a file; name a folder")
    _claim(folder, {})


def settle(folder: Path) -> None:
    """Finish a save that was decided but killed before its files had moved up."""
    if (folder / READY).is_dir():
        with _writing(folder), _locked(folder):
            _settle(folder)


def _settle(folder: Path) -> None:
    ready = folder / READY
    if not ready.is_dir():
        return
    if (ready / LAYOUT.manifest).is_file():  # else only the emptied stage was left
        listed = Manifest.parse((ready / LAYOUT.manifest).read_bytes(), str(folder)).files
        for name in _earlier(folder):
            if name not in listed:
                (folder / name).unlink(missing_ok=True)
        for name in (*listed, LAYOUT.card, LAYOUT.manifest):
            if (ready / name).exists():
                (ready / name).replace(folder / name)
        _flush(folder)
    ready.rmdir()


def _earlier(folder: Path) -> set[str]:
    """The files of the checkpoint that is there now."""
    path = folder / LAYOUT.manifest
    return set(Manifest.parse(path.read_bytes(), str(folder)).files) if path.is_file() else set()


def _claim(folder: Path, content: Mapping[str, bytes]) -> None:
    """Raise unless ``folder`` is absent, empty, or a checkpoint with no other file in the way."""
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir() if not path.name.startswith(_OURS)}
    if not names or (folder / READY).is_dir():
        return
    advice = "Nothing was changed. Choose an empty folder or an earlier checkpoint's"
    if LAYOUT.manifest not in names:
        raise CheckpointError(f"cannot save over {folder}: {foreign(str(folder), names)}. {advice}")
    try:
        earlier = _earlier(folder) | {LAYOUT.card, LAYOUT.manifest}
    except CheckpointError as error:
        raise CheckpointError(f"cannot save over {folder}: {error}. {advice}") from error
    if blocked := sorted(names & set(content) - earlier):
        raise CheckpointError(
            f"cannot save over {folder}: its {blocked[0]!r} is not of the checkpoint there. {advice}"
        )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint to {folder}: {error.strerror or error}. What was there before is"
            " unchanged; make room, or choose a folder that can be written"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / _LOCK, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout as error:
        raise CheckpointError(
            f"another process has been saving to {folder} for {_PATIENCE:g} s; end it, or wait"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Make renames in ``folder`` durable, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
