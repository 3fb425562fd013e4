"""An index's folder: its manifest, its write lock, and how it comes into being as a whole."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import numpy as np
from filelock import FileLock, Timeout

from palmette.config import parse_json
from palmette.errors import (
    REPAIR,
    ConfigError,
    CorruptIndexError,
    FormatError,
    InputError,
    LockedError,
    NotFoundError,
    StoreError,
    shown,
)
from palmette.lexical.analyser import LANGUAGE, SCHEME, check_language, stemmer_version
from palmette.machine.files import flaw_of, fsync_folder, read_regular, write_anew
from palmette.machine.folders import atomic_folder, between, is_occupied
from palmette.search.plan import ArraySpec
from palmette.store.local.database import DATABASE, OpenedFolder, create_database, no_fork, read_number, storage_errors

FORMAT = 5
MOST_NUMBERS = 2**22
"""Largest array of a document."""
MANIFEST = "manifest.json"
"""File that tells the format, the model and the arrays of an index."""
SEGMENTS = "segments"
"""Folder of the arrays, a file for each array and write."""
LOCK = ".lock"
"""File that a writer locks."""
OWNER = ".owner.json"
"""File in which a writer says who it is."""
COMMIT = "commit.json"
"""File whose replacement makes a write visible."""
_KIND = "palmette index"
_SHORT = 1 << 16
"""Bytes that the notes of the last commit and of the writer have at most."""
_LONG = 1 << 20
"""Bytes that a manifest has at most."""
_POLL = 0.02
"""Seconds between two attempts to take the write lock."""


@dataclass(frozen=True)
class Manifest:
    """Written once, when the index is created, and last: a folder with a manifest is a whole index."""

    fingerprint: str
    arrays: tuple[ArraySpec, ...]
    language: str | None = LANGUAGE
    """Stemmer of the documents' words; see :class:`palmette.lexical.analyser.Analyser`."""
    tenant: str | None = None
    """Metadata name that parts the documents; see :mod:`palmette.store.tenants`."""
    passages: Mapping[str, Any] | None = None
    """How documents are cut into passages, see :mod:`palmette.sources.cutting`; ``None``: they are not."""

    def __post_init__(self) -> None:
        check_language(self.language)
        check_tenant(self.tenant)
        taken_names = {"keys", "numbers"}
        for spec in self.arrays:
            if not spec.name.isidentifier() or not spec.name.isascii() or spec.name.lower() in taken_names:
                raise InputError(
                    f"array name {spec.name!r} must be an identifier, used once, and not 'keys' or 'numbers'"
                )
            taken_names.add(spec.name.lower())
            try:
                numbers = np.dtype(spec.dtype).kind in "fiub"
            except TypeError:
                numbers = False
            if not numbers or min(spec.shape, default=1) < 1 or math.prod(spec.shape) > MOST_NUMBERS:
                expected = f"numbers of a NumPy dtype in a shape of sizes ≥ 1, {MOST_NUMBERS} at most"
                raise InputError(f"array {spec.name!r} must hold {expected}; got {spec.dtype} {spec.shape}")

    def write(self, folder: Path, *, durable: bool) -> None:
        """Write atomically."""
        try:
            version = importlib.metadata.version("palmette")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            version = "unknown"
        content = {"kind": _KIND, **asdict(self), "words": SCHEME, "format": FORMAT, "created_with": version}
        content["arrays"] = [spec.layout for spec in self.arrays]
        draft = draft_json(folder / MANIFEST, {**content, "digest": json_digest(content)}, durable=durable)
        draft.replace(folder / MANIFEST)
        if durable:
            fsync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read, or say what is wrong with the folder; touches nothing."""
        content = _read_content(folder)
        version: Any = content.get("format")
        if (isinstance(version, int) and version != FORMAT) or content.get("words", SCHEME) != SCHEME:
            newer = isinstance(version, int) and version > FORMAT
            raise FormatError(
                f"{folder} has index format {version}, written by palmette {content.get('created_with')}; this version "
                f"reads {FORMAT} only. {'Run: pip install --upgrade palmette' if newer else 'Index the documents anew'}"
            )
        try:
            if version != FORMAT:
                raise ValueError(f"format is {version!r}, expected {FORMAT}")
            if content.pop("digest", None) != json_digest(content):
                raise ValueError("its digest is another")
            fingerprint, language, tenant = content["fingerprint"], content["language"], content.get("tenant")
            if not isinstance(fingerprint, str) or not isinstance(language, str | None):
                raise ValueError(f"its fingerprint is {shown(fingerprint)}, its language {shown(language)}")
            passages = content.get("passages")
            if not isinstance(passages, dict | None):
                raise ValueError(f"its passages are {shown(passages)}")
            arrays = tuple(map(_spec_of, content["arrays"]))
            return cls(fingerprint, arrays, language, check_tenant(tenant), passages)
        except (KeyError, TypeError, ValueError, RecursionError, ConfigError) as error:
            raise CorruptIndexError(f"{folder / MANIFEST} is damaged ({error}); {REPAIR}") from error


def _spec_of(layout: Any) -> ArraySpec:
    match layout:
        case {"name": str(name), "shape": list(shape), "dtype": str(dtype), "ragged": bool(ragged), **more} if not more:
            if all(type(size) is int for size in shape):
                return ArraySpec(name, tuple(shape), dtype, ragged)
    raise ValueError(f"{shown(layout)} describes no array")


def check_tenant(tenant: object) -> str | None:
    """Check the metadata name that separates tenants."""
    if tenant is None or (isinstance(tenant, str) and tenant and not tenant.startswith("$")):
        return tenant
    raise ConfigError(f"tenant must be a metadata name such as 'tenant', or None; got {shown(tenant)}")


def json_digest(content: object) -> str:
    """Hash JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def draft_json(path: Path, content: object, *, durable: bool) -> Path:
    """Write JSON beside ``path``, on the disk before it is renamed into place."""
    temporary = path.with_name(f"{path.name}.tmp")
    write_anew(temporary, json.dumps(content, indent=2).encode() + b"\n", durable=durable)
    return temporary


class Commit(NamedTuple):
    """The last commit, noted outside the database: a database or log that has lost its end is older than that."""

    generation: int
    digest: str
    """SHA-256 of what the database says of segments (their files' SHA-256 included) and deleted keys."""

    @classmethod
    def of(cls, connection: apsw.Connection) -> Commit:
        """Describe the state that a transaction sees."""
        generation, key = (read_number(connection, name) for name in ("generation", "next_key"))
        segments = connection.execute("SELECT name, count, files FROM segments ORDER BY position").fetchall()
        dead = connection.execute("SELECT count(*), sum(key) FROM dead").fetchall()
        return cls(generation, json_digest([generation, key, segments, dead]))

    def draft(self, folder: Path, *, durable: bool) -> Path:
        """Write the note beside its place: renaming it needs no room."""
        return draft_json(folder / COMMIT, self._asdict(), durable=durable)


def note_commit(connection: apsw.Connection, folder: Path, *, durable: bool = True) -> None:
    """Note the state that a transaction sees."""
    Commit.of(connection).draft(folder, durable=durable).replace(folder / COMMIT)


def read_commit(folder: Path) -> Commit:
    """Read the note of the last commit."""
    try:
        content = parse_json(read_regular(folder / COMMIT, _SHORT))
        match content:
            case {"generation": int(generation), "digest": str(digest)} if not isinstance(generation, bool):
                return Commit(generation, digest)
        raise ValueError("it names no generation and digest")
    except FileNotFoundError as error:
        what = "expected the number of the last commit, found no file"
        raise CorruptIndexError(f"{folder / COMMIT} is damaged: {what}; {REPAIR}") from error
    except ValueError as error:
        raise CorruptIndexError(f"{folder / COMMIT} is damaged ({error!r}); {REPAIR}") from error


def check_commit(connection: apsw.Connection, folder: Path, noted: Commit) -> None:
    """Raise where the database is older than the last commit, or its pages have lost their checksums.

    The note may be older: a kill between the commit and its note leaves it so.
    """
    generation = read_number(connection, "generation")
    if generation < noted.generation:
        raise CorruptIndexError(
            f"{folder / DATABASE} or its log {DATABASE}-wal has lost its end: commit {noted.generation} was made "
            f"({COMMIT}), the last one found is {generation}; {REPAIR}"
        )
    if connection.execute("PRAGMA checksum_verification").fetchall() != [("1",)]:
        raise CorruptIndexError(f"{folder / DATABASE} is damaged: its header names no checksums; {REPAIR}")


def _check_exchange(folder: Path) -> None:
    """Raise where a process was killed while it exchanged an index for another."""
    if (waiting := between(folder)).is_dir():
        raise StoreError(f"{folder} was being exchanged when a process was killed: rename {waiting} to {folder.name}")


def _read_content(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index folder; errors tell a damaged index from a folder that is none."""
    path, ours = folder / MANIFEST, (folder / DATABASE).exists()
    if not folder.exists():
        _check_exchange(folder)
        raise NotFoundError(f"there is no index at {folder}: no such folder; create it first")
    if not path.is_file():
        if ours:
            raise CorruptIndexError(f"{path} is missing; {REPAIR}")
        raise NotFoundError(
            f"{folder} is not a palmette index: it has no {MANIFEST}; give the folder an index was created in"
        )
    try:
        content = parse_json(read_regular(path, _LONG))
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
def write_lock(opened: OpenedFolder, timeout: float) -> Iterator[None]:
    """Hold the folder's write lock, one writer across threads and processes; LockedError names the owner.

    Inside it, the path leads to the folder that was opened.
    """
    folder, until = opened.path, time.monotonic() + timeout
    lock = FileLock(folder / LOCK, thread_local=False)
    while True:
        opened.check()  # a lock makes folders that are missing
        check_own(folder / LOCK)
        try:
            lock.acquire(timeout=0)
            break
        except Timeout as error:
            if time.monotonic() >= until:
                raise LockedError(
                    f"{folder} is being written by {_read_owner(folder)}; waited {timeout:g} s. "
                    "Retry when that write is done, or give a longer lock_timeout"
                ) from error
        time.sleep(_POLL)
    pid = os.getpid()
    try:
        opened.check()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"pid": pid, "host": socket.gethostname(), "since": since}
        with suppress(OSError):  # a courtesy
            write_anew(folder / OWNER, json.dumps(note).encode())
        yield
    finally:
        if os.getpid() == pid:  # a forked child shares the lock, and must not give it up
            with suppress(OSError):
                if opened.is_there():
                    (folder / OWNER).unlink()
            lock.release()


def check_own(path: Path) -> None:
    """Raise unless a file that is written in place is a regular one with one name, or is not there."""
    if flaw := flaw_of(path, written=True):
        raise CorruptIndexError(f"{path} {flaw}: an index has none such; copy the files themselves")


def check_entries(folder: Path) -> list[Path]:
    """Return the folders in a folder of an index; raises where a link or a pipe lies there, which leads elsewhere."""
    folders = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                flaw = flaw_of(Path(entry.path))
                raise CorruptIndexError(f"{entry.path} {flaw}: an index has none; copy the files themselves")
    return folders


def _read_owner(folder: Path) -> str:
    try:
        note = parse_json(read_regular(folder / OWNER, _SHORT))
        pid, host, since = note["pid"], note["host"], note["since"]
    except (OSError, ValueError, KeyError, TypeError):  # the note is a courtesy, and may be half written
        return "another writer"
    if pid == os.getpid():
        return f"this process (pid {pid}), in a write() that is still open, since {since}"
    return f"process {pid} on {host} since {since}"


@contextmanager
def new_index_folder(path: Path) -> Iterator[Path]:
    """Yield where to make an index, moved to ``path`` on a clean exit; it flushes its own files."""
    if is_occupied(path):
        raise InputError(f"{path} exists and is not an empty folder: choose another, or Index.open it")
    _check_exchange(path)
    with storage_errors(path), atomic_folder(path, flush=False) as draft:
        yield draft
