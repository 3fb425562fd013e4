"""SQLite's log: it stays short after any number of writes, and gives its room back on a full disk."""

from __future__ import annotations

import itertools
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.data.listing import list_source
from palmette.errors import StorageFullError, StoreError
from palmette.store.local import backend as local
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import LONG_LOG
from support.stores import SPECS, delete, doc, put, state_of

MODEL = SpaceModel.untrained(FakeEncoder(16))
COMMIT = 400_000
"""Bytes of a write of these tests."""
SHORT = LONG_LOG + 2 * COMMIT
numbers = itertools.count()


def bulky(id: str) -> Document:
    """A document that makes a commit long, of few words."""
    return Document(id, f"an owl, seen {next(numbers)} times", payload={"bulk": "x" * COMMIT})


def log_of(folder: Path) -> int:
    return (folder / "index.sqlite3-wal").stat().st_size


def upserts(index: Index, count: int) -> Iterator[None]:
    for n in range(count):
        index.upsert([bulky(f"d{n % 3}")], progress=False)
        yield


def vectors(index: Index, count: int) -> Iterator[None]:
    for n in range(count):
        documents = [bulky(f"d{n % 3}")]
        encoded = index.model.encoder.encode([document.content for document in documents])
        index.upsert(documents, embeddings=encoded, progress=False)
        yield


def syncs(index: Index, count: int) -> Iterator[None]:
    """One sync of many transactions."""
    listing, sizes = list_source([bulky(f"d{n}") for n in range(count)], "notes"), list[None]()
    index.sync_listing("notes", listing, batch_size=1, per_commit=1, on_commit=lambda *_: sizes.append(None) or True)
    yield from sizes


@pytest.mark.parametrize("write", [upserts, vectors, syncs])
def test_no_writer_keeps_its_own_log_from_being_cut(write: Callable[[Index, int], Iterator[None]]) -> None:
    with Index.in_memory(MODEL) as index:
        folder, count = Path(index.stats().location), 2 * LONG_LOG // COMMIT
        for _ in write(index, count):
            assert log_of(folder) <= SHORT
        stats = index.stats()
        assert stats.log == log_of(folder) <= LONG_LOG
        assert stats.bytes > stats.log


def test_readers_who_overlap_without_a_pause_do_not_keep_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("d0"))
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                with backend.read() as view:
                    time.sleep(0.02)
                    view.documents(view.keys()[:1].tolist())

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        try:
            for n in range(3 * LONG_LOG // COMMIT):
                put(backend, bulky(f"d{n % 3}"))
                assert log_of(backend.path) <= 2 * LONG_LOG
        finally:
            done.set()
            for reader in readers:
                reader.join()
        assert backend.stats().log <= SHORT


@pytest.mark.parametrize("ends", ["is read to its end", "is left"])
def test_a_reader_who_held_the_log_leaves_none(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a view is open the log must keep its state; writers wait little for it, and say what it takes."""
    monkeypatch.setattr(local, "PATIENCE", 0.0)
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{n}") for n in range(3)))
        documents = backend.scan()
        seen = [next(documents)]
        for n in range(2 * LONG_LOG // COMMIT):
            put(backend, bulky(f"d{n % 3}"))
        stats = backend.stats()
        assert stats.bytes > stats.log == log_of(backend.path) > 1.8 * LONG_LOG
        if ends == "is left":
            documents.close()
        seen += documents
        assert seen == [doc(f"d{n}") for n in range(len(seen))]
        assert log_of(backend.path) == 0
        backend.verify()


def test_a_released_view_reads_arrays_of_its_own_state_and_nothing_else() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("d0"), doc("d1"))
        with backend.read() as view:
            keys = view.keys().tolist()
            before = view.rows("leaves", keys), view.ragged("sentences", keys).values
            view.release()
            view.release()
            delete(backend, "d0")
            put(backend, doc("d1", "another text"))
            backend.compact()
            after = view.rows("leaves", keys), view.ragged("sentences", keys).values
            assert all((one == other).all() for one, other in zip(before, after, strict=True))
            for read in (view.stored, view.ids, view.documents, lambda keys: list(view.scan(keys))):
                with pytest.raises(StoreError, match="has been released"):
                    read(keys)


@contextmanager
def full_disk(place: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(backend: LocalBackend) -> int:
    """Write until no room is left; returns the number of documents."""
    for n in itertools.count():
        with suppress(StorageFullError):
            put(backend, Document(f"d{n}", f"owl {n}", payload={"bulk": "x" * 100_000}))
            continue
        return n
    raise AssertionError


def test_a_full_disk_fails_cleanly_and_recovers(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk, LocalBackend.create(disk / "index", SPECS, fingerprint="m") as backend:
        (disk / "others").write_bytes(bytes(1 << 20))
        count, gone = fill(backend), set[str]()
        for n in range(count // 2):
            with suppress(StorageFullError):  # the last bytes may have gone to the log: the failure gives them back
                gone |= set(delete(backend, f"d{n}"))
        with suppress(StorageFullError):
            backend.compact()
        assert set(state_of(backend)) == {f"d{n}" for n in range(count)} - gone
        backend.verify()
        (disk / "others").unlink()
        delete(backend, f"d{count - 1}")
        backend.compact()
        put(backend, doc("new"))
        assert "new" in state_of(backend)
        backend.verify()


def test_deletions_and_compact_work_within_a_quota(tmp_path: Path) -> None:
    """A limit of the size of files, and so of the log, which is seen only when a write fails."""
    with LocalBackend.create(tmp_path / "index", SPECS, fingerprint="m") as backend:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            count = fill(backend)
            for n in range(count):
                assert delete(backend, f"d{n}") == [f"d{n}"]
            backend.compact()
            put(backend, doc("new"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert set(state_of(backend)) == {"new"}
        backend.verify(documents=True)
