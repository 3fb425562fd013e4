"""One writer at a time, across threads and processes, and a note of who it is."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from palmette.errors import LockedError

__all__ = ["LOCK", "OWNER", "write_lock"]

LOCK = ".lock"
OWNER = ".owner.json"


@contextmanager
def write_lock(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the folder's write lock; LockedError names the owner when it does not come free in time."""
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(timeout=timeout, poll_interval=0.02)
    except Timeout as error:
        raise LockedError(
            f"{folder} is being written by {_owner(folder)}; waited {timeout:g} s. "
            "Retry when that write is done, or give a longer lock_timeout"
        ) from error
    try:
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (folder / OWNER).write_text(json.dumps(note))
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        note = json.loads((folder / OWNER).read_text())
        pid, host, since = note["pid"], note["host"], note["since"]
    except (OSError, ValueError, KeyError, TypeError):  # the note is a courtesy, and may be half written
        return "another writer"
    who = (
        f"this process (pid {pid}), in a write() that is still open,"
        if pid == os.getpid()
        else f"process {pid} on {host}"
    )
    return f"{who} since {since}"
