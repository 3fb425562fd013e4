"""Kill writers of a collection, again and again, and check what is left.

    python -m support.collection_kills URL KILLS

The engine is killed with its writer if it is in this process (``qdrant+edge://``); a server lives on. Every round forks
a writer, kills it at a random moment, and forks a reader that compares the whole state with what the writer had
acknowledged. This process itself never opens the engine, whose threads a fork would not copy.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

from palmette.types import Document
from palmette_qdrant import lease
from palmette_qdrant.backend import QdrantBackend
from support import edge  # noqa: F401
from support.forks import ended, forked
from support.stores import SPECS, delete, doc, put, state_for, state_of

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


def main(url: str, kills: int) -> None:
    """Print after every kill how often the last write was there, and how often not."""
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
