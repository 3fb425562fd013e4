"""An index's folder: its manifest, its write lock, and how it comes into being as a whole."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import apsw
import numpy as np
from filelock import FileLock, Timeout

from palmette.config import parse_json
from palmette.errors import ConfigError, CorruptIndexError, FormatError, InputError, LockedError, NotFoundError, shown
from palmette.lexical.analyser import LANGUAGE, SCHEME, check_language, stemmer_version
from palmette.search.plan import ArraySpec
from palmette.store.database import DATABASE, REPAIR, create_database, no_fork, read_meta, storage_errors

FORMAT = 4
MOST_NUMBERS = 2**22
"""Largest array of a document."""
MANIFEST, SEGMENTS, LOCK, OWNER = "manifest.json", "segments", ".lock", ".owner.json"
COMMIT = "commit.json"
_KIND = "palmette index"


@dataclass(frozen=True)
class Manifest:
    """Written once, when the index is created, and last: a folder with a manifest is a whole index."""

    fingerprint: str
    arrays: tuple[ArraySpec, ...]
    language: str | None = LANGUAGE
    """Stemmer of the documents' words; see :class:`palmette.lexical.analyser.Analyser`."""
    tenant: str | None = None
    """Metadata name that parts the documents; see :mod:`palmette.store.tenants`."""

    def __post_init__(self) -> None:
        check_language(self.language)
        check_tenant(self.tenant)
        seen = {"keys"}
        for spec in self.arrays:
            if not spec.name.isidentifier() or not spec.name.isascii() or spec.name.lower() in seen:
                raise InputError(f"array name {spec.name!r} must be an identifier, used once, and not 'keys'")
            seen.add(spec.name.lower())
            try:
                numbers = np.dtype(spec.dtype).kind in "fiub"
            except TypeError:
                numbers = False
            if not numbers or min(spec.shape, default=1) < 1 or math.prod(spec.shape) > MOST_NUMBERS:
                wanted = f"numbers of a NumPy dtype in a shape of sizes ≥ 1, {MOST_NUMBERS} at most"
                raise InputError(f"array {spec.name!r} must hold {wanted}; got {spec.dtype} {spec.shape}")

    def write(self, folder: Path, *, durable: bool) -> None:
        """Write atomically."""
        try:
            version = importlib.metadata.version("palmette")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            version = "unknown"
        content = {"kind": _KIND, **asdict(self), "words": SCHEME, "format": FORMAT, "created_with": version}
        content["arrays"] = [spec.layout for spec in self.arrays]
        draft = draft_json(folder / MANIFEST, {**content, "digest": _digest(content)}, durable=durable)
        draft.replace(folder / MANIFEST)
        if durable:
            fsync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read, or say what is wrong with the folder; touches nothing."""
        content = _read_content(folder)
        found: Any = content.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise FormatError(
                f"{folder} has index format {found}, written by palmette {content.get('created_with')}; this "
                f"version reads up to format {FORMAT}. Run: pip install --upgrade palmette"
            )
        if found in range(1, FORMAT) or content.get("words", SCHEME) != SCHEME:
            raise FormatError(
                f"{folder} has index format {found}; this version reads {FORMAT} only. Index the documents anew: "
                "`palmette repair` reads them out of it, with a --model of this version"
            )
        try:
            if found != FORMAT:
                raise ValueError(f"format is {found!r}, expected {FORMAT}")
            if content.pop("digest", None) != _digest(content):
                raise ValueError("its digest is another")
            arrays = tuple(ArraySpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in content["arrays"])
            tenant = content.get("tenant")
            return cls(str(content["fingerprint"]), arrays, content["language"], check_tenant(tenant))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{folder / MANIFEST} is damaged ({error}); {REPAIR}") from error


def check_tenant(tenant: object) -> str | None:
    """Check the metadata name that parts documents."""
    if tenant is None or (isinstance(tenant, str) and tenant and not tenant.startswith("$")):
        return tenant
    raise ConfigError(f"tenant must be a metadata name such as 'tenant', or None; got {shown(tenant)}")


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def draft_json(path: Path, content: object, *, durable: bool) -> Path:
    """Write JSON beside ``path``, on the disk before it is renamed into place."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return temporary


class Commit(NamedTuple):
    """The last commit, noted outside the database: a database or log that has lost its end is older than that."""

    generation: int
    digest: str
    """SHA-256 of what the database says of segments (their files' SHA-256 included) and deleted keys."""

    @classmethod
    def of(cls, connection: apsw.Connection) -> Commit:
        """Describe the state that a transaction sees."""
        generation, key = (int(read_meta(connection, name)) for name in ("generation", "next_key"))
        segments = connection.execute("SELECT name, count, files FROM segments ORDER BY position").fetchall()
        dead = connection.execute("SELECT count(*), sum(key) FROM dead").fetchall()
        return cls(generation, _digest([generation, key, segments, dead]))

    def draft(self, folder: Path, *, durable: bool) -> Path:
        """Write the note beside its place: renaming it needs no room."""
        return draft_json(folder / COMMIT, self._asdict(), durable=durable)


def note_commit(connection: apsw.Connection, folder: Path, *, durable: bool = True) -> None:
    """Note the state that a transaction sees."""
    Commit.of(connection).draft(folder, durable=durable).replace(folder / COMMIT)


def read_commit(folder: Path) -> Commit:
    """Read the note of the last commit."""
    try:
        content = json.loads((folder / COMMIT).read_text(encoding="utf-8"))
        return Commit(int(content["generation"]), str(content["digest"]))
    except FileNotFoundError as error:
        what = "expected the number of the last commit, found no file"
        raise CorruptIndexError(f"{folder / COMMIT} is damaged: {what}; {REPAIR}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptIndexError(f"{folder / COMMIT} is damaged ({error!r}); {REPAIR}") from error


def check_commit(connection: apsw.Connection, folder: Path, noted: Commit) -> None:
    """Raise where the database is older than the last commit, or its pages have lost their checksums.

    The note may be older: a kill between the commit and its note leaves it so.
    """
    generation = int(read_meta(connection, "generation"))
    if generation < noted.generation:
        raise CorruptIndexError(
            f"{folder / DATABASE} or its log {DATABASE}-wal has lost its end: commit {noted.generation} was made "
            f"({COMMIT}), the last one found is {generation}; {REPAIR}"
        )
    if connection.execute("PRAGMA checksum_verification").fetchall() != [("1",)]:
        raise CorruptIndexError(f"{folder / DATABASE} is damaged: its header names no checksums; {REPAIR}")


def _read_content(folder: Path) -> dict[str, Any]:
    path, ours = folder / MANIFEST, (folder / DATABASE).exists()
    if not folder.exists():
        raise NotFoundError(f"there is no index at {folder}: no such folder; create it first")
    if not path.is_file():
        if ours:
            raise CorruptIndexError(f"{path} is missing; {REPAIR}")
        raise NotFoundError(
            f"{folder} is not a palmette index: it has no {MANIFEST}; give the folder an index was created in"
        )
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        if ours:
            raise CorruptIndexError(f"{path} is damaged ({error}); {REPAIR}") from error
        content = None
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise NotFoundError(f"{folder} is not a palmette index: its {MANIFEST} belongs to something else")
    return content


def create_files(folder: Path, manifest: Manifest, *, durable: bool) -> None:
    """Make an empty index; the manifest comes last, so that a folder with a manifest is whole."""
    (folder / SEGMENTS).mkdir()
    values: dict[str, str | int] = {"fingerprint": manifest.fingerprint, "generation": 0, "next_key": 1}
    values["stemmer"] = stemmer_version()
    with no_fork, closing(create_database(folder / DATABASE, durable=durable, **values)) as connection:
        note_commit(connection, folder, durable=durable)
    manifest.write(folder, durable=durable)


@contextmanager
def write_lock(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the folder's write lock, one writer across threads and processes; LockedError names the owner."""
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(timeout=timeout, poll_interval=0.02)
    except Timeout as error:
        raise LockedError(
            f"{folder} is being written by {_read_owner(folder)}; waited {timeout:g} s. "
            "Retry when that write is done, or give a longer lock_timeout"
        ) from error
    pid = os.getpid()
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"pid": pid, "host": socket.gethostname(), "since": since}
        with suppress(OSError):  # a courtesy
            (folder / OWNER).write_text(json.dumps(note))
        yield
    finally:
        if os.getpid() == pid:  # a forked child shares the lock, and must not give it up
            with suppress(OSError):
                (folder / OWNER).unlink()
            lock.release()


def _read_owner(folder: Path) -> str:
    try:
        note = json.loads((folder / OWNER).read_text())
        pid, host, since = note["pid"], note["host"], note["since"]
    except (OSError, ValueError, KeyError, TypeError):  # the note is a courtesy, and may be half written
        return "another writer"
    if pid == os.getpid():
        return f"this process (pid {pid}), in a write() that is still open, since {since}"
    return f"process {pid} on {host} since {since}"


def fsync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut; nothing to do where folders cannot be opened (Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_occupied(path: Path) -> bool:
    """Whether a file or a folder with content exists there."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, moved to ``path`` on a clean exit; whatever lies at ``path`` is never touched."""
    if is_occupied(path):
        raise InputError(f"{path} exists and is not an empty folder: choose another, or Index.open it")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"{path} cannot be made: {parent} is a file; choose another folder")
    draft = path.with_name(f".{path.name}.{uuid4().hex}.new")
    try:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            if path.is_dir():
                path.rmdir()  # empty: a move onto a folder is not allowed everywhere
            draft.replace(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
