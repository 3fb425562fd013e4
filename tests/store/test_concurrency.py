"""Many readers and one writer at a time, in threads, processes and forks: nobody sees half a write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from palmette.errors import LockedError
from palmette.store.local import LocalBackend
from palmette.types import Document
from support.stores import SPECS, delete, doc, plan, program_environment, put, run_python, state_for, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LocalBackend.create(tmp_path / "index", SPECS, fingerprint="model").close()
    return tmp_path / "index"


def start(script: str, *arguments: object, **pipes: object) -> subprocess.Popen:
    """Start a script in a fresh Python."""
    program = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(program, env=program_environment(), text=True, **pipes)


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


READER = """
import sys, os
sys.path.insert(0, sys.argv[2])
from test_concurrency import check_whole
from palmette.store.local import LocalBackend
backend = LocalBackend.open(sys.argv[1])
print("ready", flush=True)
seen = [check_whole(backend)]
while seen[-1] < 10:
    seen.append(check_whole(backend))
    assert seen[-2] <= seen[-1]
print(len(set(seen)))
"""


def test_processes_read_whole_states_while_one_writes(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, *generation(0))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        readers = [start(READER, folder, Path(__file__).parent, **pipes) for _ in range(2)]
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        for n in range(1, 11):
            put(backend, *generation(n))
            if n % 4 == 0:
                backend.compact()
        for reader in readers:
            output, errors = reader.communicate(timeout=60)
            assert reader.returncode == 0, errors
            assert int(output) >= 2
        backend.verify()


def test_two_processes_with_two_threads_write_in_turns(folder: Path) -> None:
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
from support.stores import doc, put
from palmette.store.local import LocalBackend
backend, name = LocalBackend.open(sys.argv[1], lock_timeout=60), sys.argv[2]
with ThreadPoolExecutor(2) as threads:
    list(threads.map(lambda i: put(backend, doc(f"{name}{i}"), doc("shared", f"{name}{i}")), range(8)))
"""
    assert [writer.wait(60) for writer in [start(script, folder, name) for name in "ab"]] == [0, 0]
    with LocalBackend.open(folder) as backend:
        assert set(state_of(backend)) == {"shared", *(f"{name}{i}" for name in "ab" for i in range(8))}
        backend.verify()
        with backend.read() as view:
            assert len(np.unique(view.keys())) == 17


def test_a_held_lock_names_its_owner(folder: Path) -> None:
    script = """
import sys
from palmette.store.local import LocalBackend
with LocalBackend.open(sys.argv[1]).write():
    print("holding", flush=True)
    sys.stdin.read()
"""
    with start(script, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == "holding\n"
        with LocalBackend.open(folder, lock_timeout=0.1) as backend:
            assert state_of(backend) == {}  # reading is free
            with pytest.raises(LockedError, match=rf"process {owner.pid} on .* since 20.*waited 0\.1 s"):
                put(backend, doc("a"))
            owner.kill()
            owner.wait()
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
            assert view.key_of("c") is None
            assert sorted(view.candidates(plan(), 9).keys[0]) == keys
        assert set(state_of(backend)) == {"b", "c"}


def test_one_view_serves_many_threads(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        documents = [doc(f"d{i}") for i in range(50)]
        put(backend, *documents)
        with backend.read() as view, ThreadPoolExecutor(8) as threads:
            keys = view.keys().tolist()

            def use(i: int) -> bool:
                return view.documents([keys[i]]) == [documents[i]] and view.key_of(f"d{i}") == keys[i]

            assert all(threads.map(use, list(range(50)) * 4))


def in_fork(use: Callable[[], object]) -> None:
    """Run in a forked child; its failure is ours."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            use()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def run_forking(script: str, folder: Path, lock_timeout: float = 30) -> None:
    """Run a script of which children are forked; one that hangs is killed."""
    start = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[2])
import pytest
from palmette.errors import StoreError
from palmette.store.local import LocalBackend
from support.stores import SPECS, arrays_of, doc, put, state_for, state_of
from test_concurrency import in_fork
os.register_at_fork(after_in_child=lambda: signal.alarm(30))
backend = LocalBackend.open(sys.argv[1], lock_timeout=LIMIT)
"""
    done = run_python(start.replace("LIMIT", str(lock_timeout)) + script, folder, Path(__file__).parent)
    assert done.returncode == 0, done.stderr


def test_forked_children_read_and_write(folder: Path) -> None:
    run_forking(
        """
memory = LocalBackend.in_memory(SPECS)
for one in (backend, memory):
    put(one, doc("parent"))
    with one.read() as view:
        def child():
            with pytest.raises(StoreError, match="the process that was forked"):
                view.key_of("parent")
            assert set(state_of(one)) == {"parent"}
            put(one, doc("child"))
            one.verify()
            one.close()
        in_fork(child)
        assert view.key_of("child") is None
    assert set(state_of(one)) == {"parent", "child"}
    put(one, doc("again"))
    one.verify()
assert memory.path.exists()
memory.close()
""",
        folder,
    )


@pytest.mark.parametrize("children", [3, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_children_forked_while_a_thread_writes(children: int, folder: Path) -> None:
    """A fork waits for the write to end, and for reads of other threads."""
    run_forking(
        f"""
put(backend, doc("base"))
done = threading.Event()
def write():
    for n in range(10_000):
        put(backend, *(doc(f"d{{i}}", f"text {{n}}") for i in range(9)))
        if n % 3 == 2:
            backend.compact()
        if done.is_set():
            break
def read():
    while not done.is_set():
        state_of(backend)
threads = [threading.Thread(target=use) for use in (write, read)]
for thread in threads:
    thread.start()
for n in range({children}):
    time.sleep(0.02 * (n % 5))
    def child():
        assert "base" in state_of(backend)
        put(backend, doc(f"child{{n}}"))
        assert backend.get([f"child{{n}}"])[0]
    in_fork(child)
done.set()
for thread in threads:
    thread.join()
assert set(state_of(backend)) == {{"base", *(f"d{{i}}" for i in range(9)), *(f"child{{n}}" for n in range({children}))}}
backend.verify()
""",
        folder,
    )


def test_a_child_of_an_open_write_cannot_harm_it(folder: Path) -> None:
    run_forking(
        """
many = [doc(f"d{i}", f"{i} " + "x" * 30_000) for i in range(900)]  # more than SQLite keeps in memory
with backend.write() as writer:
    writer.put(many[:700], arrays_of(many[:700]))
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
    writer.put(many[700:], arrays_of(many[700:]))
backend.verify()
assert state_of(backend) == state_for(many)
""",
        folder,
    )


def test_a_child_forked_while_another_thread_still_reads_is_told(folder: Path) -> None:
    run_forking(
        """
put(backend, doc("a"))
opened, done = threading.Event(), threading.Event()
def read():
    with backend.read() as view:
        assert view.key_of("a")
        opened.set()
        done.wait()
        assert backend.get(["a"])  # a second connection of one thread
thread = threading.Thread(target=read)
thread.start()
opened.wait()
def child():
    with pytest.raises(StoreError, match="was in use when this process was forked"):
        backend.get(["a"])
in_fork(child)
done.set()
thread.join()
put(backend, doc("b"))
in_fork(lambda: put(backend, doc("c")))
assert set(state_of(backend)) == {"a", "b", "c"}
""",
        folder,
        lock_timeout=1,
    )
