"""An index folder's beginning."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from palmette.errors import CorruptIndexError, StoreError
from palmette.store.database import DATABASE, SCHEMA, write_meta
from palmette.store.lock import LOCK, OWNER
from palmette.store.manifest import MANIFEST, Manifest
from palmette.store.segments import SEGMENTS

__all__ = ["check_vacant", "prepare"]


def check_vacant(folder: Path) -> None:
    """Raise unless the folder is empty, or holds what a killed ``create`` left there."""
    found = {entry.name for entry in folder.iterdir()} - {LOCK, OWNER}
    if MANIFEST in found:
        raise StoreError(f"{folder} already holds an index: open it, or create the new one in another folder")
    database = {DATABASE + end for end in ("", "-wal", "-shm", "-journal")}
    if others := sorted(found - database - {SEGMENTS, f"{MANIFEST}.tmp"}):
        raise StoreError(
            f"{folder} is not empty (it holds {others[0]!r}): create the index in a new or empty folder"
        )
    segments = folder / SEGMENTS
    if segments.exists() and any(segments.iterdir()):
        raise CorruptIndexError(
            f"{folder / MANIFEST} is missing, but there are arrays: restore it from a backup"
        )


def prepare(folder: Path, manifest: Manifest, *, durable: bool) -> None:
    """Make an empty index; the manifest comes last, so that a folder with a manifest is whole."""
    (folder / SEGMENTS).mkdir(exist_ok=True)
    connection = sqlite3.connect(folder / DATABASE, isolation_level=None)
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
        for name, value in (("fingerprint", manifest.fingerprint), ("generation", 0), ("next_key", 1)):
            write_meta(connection, name, value)
        connection.execute("COMMIT")
    finally:
        connection.close()
    manifest.write(folder, durable=durable)
