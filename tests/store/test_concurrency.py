"""Many readers and one writer at a time, in threads, processes and forks: nobody sees half a write."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from palmette.errors import LockedError, StoreError
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import View
from palmette.types import Document
from support.forks import ended, forked, in_child
from support.stores import SPECS, delete, doc, key_of, plan, put, run_python, state_for, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LocalBackend.create(tmp_path / "index", SPECS, fingerprint="model").close()
    return tmp_path / "index"


def generation(n: int) -> list[Document]:
    """What the writers below keep whole: ten documents of one version."""
    return [doc(f"d{i}", f"version {n}", version=n) for i in range(10)]


def check_whole(backend: LocalBackend) -> int:
    """Everything seen in one view belongs to one version; returns it."""
    with backend.read({"version": {"$gte": 0}}) as view:
        keys = view.keys().tolist()
        found = view.candidates(plan(metric="overlap"), 99)
        documents, leaves = view.documents(keys), view.rows("leaves", keys)
    [version] = {document.metadata["version"] for document in documents}
    assert sorted(found.keys[0]) == keys
    expected = state_for(generation(version))
    assert {document.key: document for document in documents} == {id: one for id, (one, _) in expected.items()}
    for document, leaf in zip(documents, leaves, strict=True):
        assert expected[document.key][1].startswith(leaf.tobytes())
    return int(version)


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_threads_read_whole_states_while_one_writes(place: str, folder: Path) -> None:
    backend = LocalBackend.open(folder) if place == "folder" else LocalBackend.in_memory(SPECS)
    put(backend, *generation(0))
    done = threading.Event()

    def read() -> list[int]:
        seen = [check_whole(backend)]
        while not done.is_set():
            seen.append(check_whole(backend))
        return seen

    with backend, ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        try:
            for n in range(1, 8):
                put(backend, *generation(n))
                if n % 3 == 0:
                    backend.compact()
        finally:
            done.set()
        for reader in readers:
            seen = reader.result()
            assert seen == sorted(seen)
        assert check_whole(backend) == 7
        backend.verify()


def test_processes_read_whole_states_while_one_writes(folder: Path) -> None:
    def read(pipe: TextIO) -> None:
        with LocalBackend.open(folder) as backend:
            print("ready", file=pipe, flush=True)
            seen = [check_whole(backend)]
            while seen[-1] < 10:
                seen.append(check_whole(backend))
                assert seen[-2] <= seen[-1]
            print(len(set(seen)), file=pipe)

    with LocalBackend.open(folder) as backend:
        put(backend, *generation(0))
        readers = [forked(read) for _ in range(2)]
        assert [pipe.readline() for _, pipe in readers] == ["ready\n"] * 2
        for n in range(1, 11):
            put(backend, *generation(n))
            if n % 4 == 0:
                backend.compact()
        assert all(int(pipe.read()) >= 2 for _, pipe in readers)
        assert ended(*readers) == [0, 0]
        backend.verify()


def test_two_processes_with_two_threads_write_in_turns(folder: Path) -> None:
    def write(name: str) -> None:
        with LocalBackend.open(folder, lock_timeout=60) as backend, ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda i: put(backend, doc(f"{name}{i}"), doc("shared", f"{name}{i}")), range(8)))

    assert ended(*[forked(lambda _, name=name: write(name)) for name in "ab"]) == [0, 0]
    with LocalBackend.open(folder) as backend:
        assert set(state_of(backend)) == {"shared", *(f"{name}{i}" for name in "ab" for i in range(8))}
        backend.verify()
        with backend.read() as view:
            assert len(np.unique(view.keys())) == 17


def test_a_held_lock_names_its_owner(folder: Path) -> None:
    def hold(pipe: TextIO) -> None:
        with LocalBackend.open(folder).write():
            print("holding", file=pipe, flush=True)
            signal.pause()

    owner = forked(hold)
    assert owner[1].readline() == "holding\n"
    with LocalBackend.open(folder, lock_timeout=0.1) as backend:
        assert state_of(backend) == {}  # reading is free
        with pytest.raises(LockedError, match=rf"process {owner[0]} on .* since 20.*waited 0\.1 s"):
            put(backend, doc("a"))
        os.kill(owner[0], signal.SIGKILL)
        assert ended(owner) == [-signal.SIGKILL]
        put(backend, doc("a"))  # a dead owner holds nothing
        assert set(state_of(backend)) == {"a"}


def test_a_write_within_a_write_is_refused(folder: Path) -> None:
    told = pytest.raises(LockedError, match=rf"this process \(pid {os.getpid()}\), in a write\(\) that is still open")
    with LocalBackend.open(folder, lock_timeout=0.1) as backend, backend.write(), told, backend.write():
        pass


def test_a_view_stays_as_it_was(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, doc("a", "red owl", n=1), doc("b", "fox", n=1))
        with backend.read({"n": 1}) as view:
            keys = view.keys().tolist()

            def seen() -> tuple:
                return (view.documents(keys), view.rows("leaves", keys).tolist(), view.words("owl", 9).keys.tolist())

            before = seen()
            delete(backend, "a")
            put(backend, doc("b", "changed", n=2), doc("c", "owl owl", n=1))
            backend.compact()
            assert len(view) == 2
            assert seen() == before
            assert key_of(view, "c") is None
            assert sorted(view.candidates(plan(), 9).keys[0]) == keys
        assert set(state_of(backend)) == {"b", "c"}


def test_one_view_serves_many_threads(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        documents = [doc(f"d{i}") for i in range(50)]
        put(backend, *documents)
        with backend.read() as view, ThreadPoolExecutor(8) as threads:
            keys = view.keys().tolist()

            def use(i: int) -> bool:
                return view.documents([keys[i]]) == [documents[i]] and key_of(view, f"d{i}") == keys[i]

            assert all(threads.map(use, list(range(50)) * 4))


def test_forked_children_read_and_write(folder: Path) -> None:
    with LocalBackend.open(folder) as stored, LocalBackend.in_memory(SPECS) as memory:
        for backend in (stored, memory):
            put(backend, doc("parent"))
            with backend.read() as view:

                def child(backend: LocalBackend = backend, view: View = view) -> None:
                    with pytest.raises(StoreError, match="the process that was forked"):
                        key_of(view, "parent")
                    assert set(state_of(backend)) == {"parent"}
                    put(backend, doc("child"))
                    backend.verify()
                    backend.close()

                in_child(child)
                assert key_of(view, "child") is None
            assert set(state_of(backend)) == {"parent", "child"}
            put(backend, doc("again"))
            backend.verify()
        assert memory.path.exists()


@pytest.mark.parametrize("children", [3, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_children_forked_while_a_thread_writes(children: int, folder: Path) -> None:
    """A fork waits for the write to end, and for reads of other threads."""
    backend, done = LocalBackend.open(folder, lock_timeout=30), threading.Event()
    put(backend, doc("base"))

    def write() -> None:
        for n in range(10_000):
            put(backend, *(doc(f"d{i}", f"text {n}") for i in range(9)))
            if n % 3 == 2:
                backend.compact()
            if done.is_set():
                break

    def read() -> None:
        while not done.is_set():
            state_of(backend)

    with backend, ThreadPoolExecutor(2) as threads:
        running = [threads.submit(use) for use in (write, read)]
        try:
            for n in range(children):
                time.sleep(0.02 * (n % 5))

                def child(id: str = f"child{n}") -> None:
                    assert "base" in state_of(backend)
                    put(backend, doc(id))
                    assert backend.get([id])[0]

                in_child(child)
        finally:
            done.set()
        for one in running:
            one.result()
        assert set(state_of(backend)) == {"base", *(f"d{i}" for i in range(9)), *(f"child{n}" for n in range(children))}
        backend.verify()


def test_a_child_of_an_open_write_cannot_harm_it(folder: Path) -> None:
    script = """
import os, signal, sys
import pytest
from palmette.errors import StoreError
from palmette.store.local.backend import LocalBackend
from palmette.types import Document
from support.stores import arrays_of, state_for, state_of
os.register_at_fork(after_in_child=lambda: signal.alarm(30))
backend = LocalBackend.open(sys.argv[1])
long = {"more than SQLite keeps in memory": "x" * 300_000}
many = [Document(f"d{i}", f"text {i}", payload=long) for i in range(100)]
with backend.write() as writer:
    writer.put(many[:80], arrays_of(many[:80]))
    pid = os.fork()
    if pid == 0:
        with pytest.raises(StoreError, match="open in the process that was forked"):
            writer.delete(["d1"])
        for use in (lambda: state_of(backend), lambda: LocalBackend.open(sys.argv[1])):
            with pytest.raises(StoreError, match="was in use when this process was forked.*spawn"):
                use()
        sys.exit(0)  # leaves the write by an exception, and Python by its front door
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(StoreError, match="this process"), LocalBackend.open(sys.argv[1], lock_timeout=0.1).write():
        pass
    writer.put(many[80:], arrays_of(many[80:]))
backend.verify()
assert state_of(backend) == state_for(many)
"""
    done = run_python(script, folder)
    assert done.returncode == 0, done.stderr


def test_a_child_forked_while_another_thread_still_reads_is_told(folder: Path) -> None:
    opened, done = threading.Event(), threading.Event()
    with LocalBackend.open(folder, lock_timeout=1) as backend, ThreadPoolExecutor(1) as threads:
        put(backend, doc("a"))

        def read() -> None:
            with backend.read() as view:
                assert key_of(view, "a")
                opened.set()
                done.wait()
                assert backend.get(["a"])  # a second connection of one thread

        def child() -> None:
            with pytest.raises(StoreError, match="was in use when this process was forked"):
                backend.get(["a"])

        reading = threads.submit(read)
        opened.wait()
        try:
            in_child(child)
        finally:
            done.set()
        reading.result()
        put(backend, doc("b"))
        in_child(lambda: put(backend, doc("c")))
        assert set(state_of(backend)) == {"a", "b", "c"}
