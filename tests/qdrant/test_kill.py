"""Clients killed or stopped in the middle of a write, by the system: acknowledged documents are there, and no others.

The server is the one that ``PALMETTE_QDRANT_URL`` names, or the engine of a process beside (``support.edge_server``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest

from palmette.errors import LockedError
from palmette.types import Document
from palmette_qdrant import lease
from palmette_qdrant.backend import QdrantBackend
from palmette_qdrant.client import Collection
from support.forks import ended, forked
from support.stores import SPECS, delete, doc, environment, fast_place, put, run_program, state_for, state_of

pytest.importorskip("qdrant_edge")
from support import edge  # noqa: F401 - adds its scheme

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
KILLS = [pytest.param(120, marks=pytest.mark.exhaustive), 3]
DOCUMENTS = 12
"""Documents of a write."""


@pytest.fixture
def server() -> Iterator[str]:
    """URL of a new collection of a server that outlives its clients."""
    name = f"palmette-{uuid4().hex}"
    if named := os.environ.get("PALMETTE_QDRANT_URL"):
        yield f"{named}/{name}"
        Collection(f"{named}/{name}")("delete_collection")
        return
    with TemporaryDirectory(dir=fast_place()) as folder:
        program = [sys.executable, "-m", "support.edge_server", folder]
        with subprocess.Popen(program, env=environment(), stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            yield f"qdrant://127.0.0.1:{running.stdout.readline().strip()}/{name}"
            running.kill()


SPANS = [f"s{n}" for n in range(40)]  # several requests a write
GONE = ["base", *SPANS[::2]]


def documents(n: int) -> list[Document]:
    return [doc(id, f"{id} of {n}") for id in ["base", *SPANS]]


def step(backend: Any, n: int) -> None:
    """One write: upserts that replace, new documents, deletions."""
    if n % 4 == 3:
        delete(backend, *GONE)
    else:
        put(backend, *documents(n))


def expected(done: int) -> list[Document]:
    """Documents after so many steps."""
    if done % 4 or not done:
        return documents(done - 1) if done else []
    return [one for one in documents(done - 2) if one.key not in GONE]


def kill(url: str, kills: int) -> None:
    """Kill writers of a collection at random moments, and compare the whole state with what they had acknowledged.

    The engine is killed with its writer if it is in this process (``qdrant+edge://``); a server lives on. Runs in a
    process that never opens the engine itself, whose threads a fork would not copy.
    """
    lease.LEASE_TTL = 0.3
    rng, at, counts = random.Random(5), 0, {"before": 0, "after": 0}

    def create(pipe: Any) -> None:
        QdrantBackend.create(url, SPECS, fingerprint="model", language="english")

    def write(pipe: Any) -> None:
        backend = QdrantBackend.open(url)
        for n in range(at, at + 1000):
            print(n, file=pipe, flush=True)  # everything before n is acknowledged
            step(backend, n)

    def check(pipe: Any) -> None:
        backend = QdrantBackend.open(url)
        with backend.write():  # what the killed writer has sent arrives before, or is refused
            pass
        found = state_of(backend)
        print(json.dumps([found == state_for(expected(n)) for n in (at, at + 1)]), file=pipe, flush=True)
        backend.verify()

    ended(forked(create))
    for _ in range(kills):
        writer = forked(write)
        writer[1].readline()
        time.sleep(rng.uniform(0, 0.25))
        os.kill(writer[0], signal.SIGKILL)
        at = max(at, *map(int, writer[1].read().split() or [at]))
        reader = forked(check)
        before, after = json.loads(reader[1].read() or "[false, false]")
        assert ended(writer, reader) == [-signal.SIGKILL, 0]
        assert before or after, f"after a kill in step {at} the index is neither as before nor as after it"
        counts["after" if after else "before"] += 1
        at += int(after)
        print(json.dumps(counts), flush=True)


def killed(url: str, kills: int) -> None:
    done = run_program(__file__, url, kills, timeout=550)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1]).values()) == kills


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_random_times(kills: int) -> None:
    with TemporaryDirectory(dir=fast_place()) as folder:
        killed(f"qdrant+edge://{folder}/docs", kills)


@pytest.mark.parametrize("kills", KILLS)
def test_killed_while_the_server_lives_on(kills: int, server: str) -> None:
    killed(server, kills)


@pytest.mark.parametrize("stops", [pytest.param(100, marks=pytest.mark.exhaustive), 6])
def test_stopped_for_longer_than_a_lease(stops: int, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_TTL", 0.3)
    QdrantBackend.create(server, SPECS, fingerprint="model", language="english")
    rng = random.Random(7)

    def write(name: str, pipe: Any) -> None:
        backend = QdrantBackend.open(server, lock_timeout=60)
        for n in range(10**6):
            with suppress(LockedError):  # another writer took over
                put(backend, *(doc(f"{name}-{n}-{part}") for part in range(DOCUMENTS)))
                print(f"{name}-{n}", file=pipe, flush=True)

    children = [forked(lambda pipe, name=name: write(name, pipe)) for name in "abc"]
    acknowledged = {pipe.readline().strip() for _, pipe in children}  # each has written once
    for _ in range(stops):
        child, _ = rng.choice(children)
        os.kill(child, signal.SIGSTOP)
        time.sleep(rng.uniform(0, 1))
        os.kill(child, signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.2))
    for child, _ in children:
        os.kill(child, signal.SIGKILL)
    acknowledged |= {line for _, pipe in children for line in pipe.read().split()}
    ended(*children)
    backend = QdrantBackend.open(server, lock_timeout=60)
    put(backend, doc("last"))  # whatever they have sent arrives before, or is refused
    parts = [one.key.rpartition("-")[0] for one in backend.scan() if one.key != "last"]
    assert acknowledged <= set(parts)
    assert all(parts.count(write) == DOCUMENTS for write in set(parts)), "whole writes"
    assert len(set(parts) - acknowledged) <= len(children), "at most the last of each was not acknowledged"
    backend.verify()
    backend.close()


if __name__ == "__main__":
    kill(sys.argv[1], int(sys.argv[2]))
