"""Kill writers of a collection of the engine in this process, again and again, and check what is left.

    python -m support.edge_kills FOLDER KILLS

Every round forks a writer, kills it at a random moment, and forks a reader that compares the whole state with what the
writer had acknowledged. This process itself never opens the engine, whose threads a fork would not copy.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from palmette.store.qdrant import QdrantBackend
from palmette.types import Document
from support import edge  # noqa: F401
from support.stores import SPECS, delete, doc, put, state_for, state_of

SPANS = [doc(f"s{n}") for n in range(40)]  # several requests a write


def step(backend: Any, n: int) -> None:
    """One write: upserts that replace, new documents, deletions."""
    if n % 4 == 3:
        delete(backend, "base", *(one.key for one in SPANS[::2]))
    else:
        put(backend, doc("base", f"version {n}"), *(doc(one.key, f"{one.key} of {n}") for one in SPANS))


def expected(done: int) -> list[Document]:
    """Documents after so many steps."""
    held: dict[str, Document] = {}
    for n in range(max(0, done - 8), done):
        if n % 4 == 3:
            held = {id: one for id, one in held.items() if id not in {"base", *(s.key for s in SPANS[::2])}}
        else:
            held |= {"base": doc("base", f"version {n}")}
            held |= {one.key: doc(one.key, f"{one.key} of {n}") for one in SPANS}
    return list(held.values())


def forked(work: Callable[[Any], None]) -> tuple[int, Any]:
    """Run in a child that writes to a pipe: its id, and the pipe's end to read."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                work(pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return child, os.fdopen(reading)


def main(folder: str, kills: int) -> None:
    """Print after every kill how often the last write was there, and how often not."""
    url, rng, at, counts = f"qdrant+edge://{folder}/docs", random.Random(5), 0, {"before": 0, "after": 0}

    def create(pipe: Any) -> None:
        QdrantBackend.create(url, SPECS, fingerprint="model", language="english")

    def write(pipe: Any) -> None:
        backend = QdrantBackend.open(url)
        for n in range(at, at + 1000):
            print(n, file=pipe, flush=True)  # everything before n is acknowledged
            step(backend, n)

    def check(pipe: Any) -> None:
        backend = QdrantBackend.open(url)
        found = state_of(backend)
        print(json.dumps([found == state_for(expected(n)) for n in (at, at + 1)]), file=pipe, flush=True)
        backend.verify()

    os.waitpid(forked(create)[0], 0)
    for _ in range(kills):
        child, pipe = forked(write)
        pipe.readline()
        time.sleep(rng.uniform(0, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        at = max(at, *map(int, pipe.read().split() or [at]))
        child, pipe = forked(check)
        before, after = json.loads(pipe.read() or "[false, false]")
        assert os.waitpid(child, 0)[1] == 0
        assert before or after, f"after a kill in step {at} the index is neither as before nor as after it"
        counts["after" if after else "before"] += 1
        at += int(after)
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
