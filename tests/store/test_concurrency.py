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
from palmette.store.filters import parse_filter
from palmette.store.local import LocalBackend
from support.stores import (
    SPECS,
    delete,
    doc,
    plan,
    program_environment,
    put,
    run_python,
    state_for,
    state_of,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LocalBackend.create(tmp_path / "index", SPECS, fingerprint="model").close()
    return tmp_path / "index"


def start(script: str, *arguments: object, **pipes: object) -> subprocess.Popen:
    """Start a script in a fresh Python."""
    program = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(program, env=program_environment(), text=True, **pipes)


def generation(n: int) -> list:
    """What the writer below keeps whole: ten documents of one version."""
    return [doc(f"d{i}", f"version {n}", version=n) for i in range(10)]


def check_whole(backend: LocalBackend) -> int:
    """Everything seen in one view belongs to one version; returns it."""
    with backend.read(parse_filter({"version": {"$gte": 0}})) as view:
        keys = view.keys().tolist()
        found = view.candidates(plan(metric="overlap"), 99)
        documents, leaves = view.documents(keys), view.rows("leaves", keys)
    versions = {document.metadata["version"] for document in documents}
    assert len(versions) == 1
    [version] = versions
    assert sorted(found.keys[0]) == keys
    expected = state_for(generation(version))
    assert {document.key: document for document in documents} == {
        id: entry[0] for id, entry in expected.items()
    }
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

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        try:
            for n in range(1, 13):
                put(backend, *generation(n))
                if n % 5 == 0:
                    backend.compact()
        finally:
            done.set()
        for reader in readers:
            seen = reader.result()
            assert seen == sorted(seen)
    assert check_whole(backend) == 12
    backend.verify()
    backend.close()


READER = """
import sys, os
sys.path.insert(0, sys.argv[2])
from test_concurrency import check_whole
from palmette.store.local import LocalBackend
backend = LocalBackend.open(sys.argv[1])
print("ready", flush=True)
seen = [check_whole(backend)]
while seen[-1] < 16:
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
        for n in range(1, 17):
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
    list(threads.map(lambda i: put(backend, doc(f"{name}{i}"), doc("shared", f"{name}{i}")), range(12)))
"""
    assert [writer.wait(60) for writer in [start(script, folder, name) for name in "ab"]] == [0, 0]
    with LocalBackend.open(folder) as backend:
        assert set(state_of(backend)) == {"shared", *(f"{name}{i}" for name in "ab" for i in range(12))}
        backend.verify()
        with backend.read() as view:
            assert len(np.unique(view.keys())) == 25


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
    with (
        LocalBackend.open(folder, lock_timeout=0.1) as backend,
        backend.write() as writer,
        pytest.raises(
            LockedError, match=rf"this process \(pid {os.getpid()}\), in a write\(\) that is still open"
        ),
        backend.write(),
    ):
        writer.delete([])


def test_a_view_stays_as_it_was(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, doc("a", n=1), doc("b", n=1))
        with backend.read(parse_filter({"n": 1})) as view:
            keys = view.keys().tolist()
            before = view.documents(keys), view.rows("leaves", keys).tolist()
            delete(backend, "a")
            put(backend, doc("b", "changed", n=2), doc("c", n=1))
            backend.compact()
            assert len(view) == 2
            assert (view.documents(keys), view.rows("leaves", keys).tolist()) == before
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


def test_forked_children_read_and_write(folder: Path) -> None:
    script = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_concurrency import in_fork
from support.stores import SPECS, doc, put, state_of
from palmette.store.local import LocalBackend
backend = LocalBackend.open(sys.argv[1])
memory = LocalBackend.in_memory(SPECS)
for one in (backend, memory):
    put(one, doc("parent"))
    with one.read() as view:
        def child():
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
"""
    done = run_python(script, folder, Path(__file__).parent)
    assert done.returncode == 0, done.stderr
