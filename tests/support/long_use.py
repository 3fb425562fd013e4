"""What grows in a process with its number of writes and questions: run as a program, which prints a line for each look.

``python tests/support/long_use.py index|service COUNT FOLDER``: so many times a write, and a question after it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import random
import re
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOOKS = 5
"""Number of looks."""
FIRST = 40
"""Smallest number of writes before the first look, which comes after a fiftieth of them."""
KEPT = 200
"""Number of ids that are written again and again."""


def state(folder: Path, scratch: Path) -> dict[str, int]:
    """Memory in MB, items of the process's containers and caches, open files, threads, and files and bytes on disk."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    objects = gc.get_objects()
    anonymous = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return {
        "memory": int(anonymous[1]) >> 10 if anonymous else 0,
        "items": sum(len(each) for each in objects if type(each) in (dict, list, set, OrderedDict)),
        "cached": sum(each.cache_info().currsize for each in objects if type(each) is functools._lru_cache_wrapper),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "on disk": sum(1 for place in (folder, scratch) for _ in place.rglob("*")),
        "log": log_of(folder),
    }


def log_of(folder: Path) -> int:
    """Bytes of SQLite's log."""
    return (folder / "index.sqlite3-wal").stat().st_size


def sentence(draw: random.Random) -> str:
    """A text with words that no other has."""
    known = " ".join(draw.choices("owl hen cat house garden night sings flies sleeps eats red green".split(), k=12))
    return f"The {known}. It was seen {draw.random()} times in x{draw.getrandbits(40):x}."


def write(index: Any, number: int, draw: random.Random) -> None:
    """Replace a document; now and then delete some, write many, and sync a source."""
    from palmette import Document

    ids = [f"d{draw.randrange(KEPT)}" for _ in range(30 if number % 100 == 0 else 1)]
    documents = [Document(id, sentence(draw), {"tenant": number % 7, "at": number}) for id in dict.fromkeys(ids)]
    delete = [f"d{draw.randrange(KEPT)}" for _ in range(number % 3)]
    index.upsert(documents, delete=[id for id in delete if id not in ids], progress=False)
    if number % 50 == 0:
        source = [Document(f"s{n}", sentence(draw), {"tenant": "s"}) for n in range(draw.randrange(9))]
        index.sync(source, f"source {number % 4}", progress=False)
    if number % 1000 == 0:
        index.compact()


def ask(index: Any, number: int, draw: random.Random) -> None:
    """Search in several ways, filtered by values that come once."""
    question = sentence(draw)
    filter = [None, {"tenant": number % 7}, {"at": {"$lt": number}}][number % 3]
    hits = index.search(question, 5, filter=filter)
    if number % 20 == 0:
        index.filtered({"at": {"$gt": number - 50}}).search(question, 3)
        index.explain(question, hits[0].id)
        index.context(question, 50)
    if number % 500 == 0:
        with type(index).open(index.path, index.model) as other:
            other.search(question)


def post(service: Any, number: int, draw: random.Random) -> None:
    """Write and ask over HTTP."""
    documents = [{"id": f"d{draw.randrange(KEPT)}", "text": sentence(draw), "metadata": {"at": number}}]
    question = sentence(draw)
    replies = [
        service.post("upsert", documents=documents, delete=[] if number % 3 else [f"x{number}"]),
        service.post("search", query=question, k=5, filter={"at": {"$lt": number}} if number % 5 == 0 else None),
        service.post("answer", question=question),
        service.post("feedback", query=question, id=documents[0]["id"], useful=True),
        service.http.get("/metrics"),
    ]
    assert {reply.status_code for reply in replies} == {200}, [reply.text[:300] for reply in replies]


@contextmanager
def of_index(index: Any) -> Iterator[Callable[[int, random.Random], None]]:
    """Use an index in this process."""

    def act(number: int, draw: random.Random) -> None:
        write(index, number, draw)
        ask(index, number, draw)

    yield act


@contextmanager
def of_service(index: Any) -> Iterator[Callable[[int, random.Random], None]]:
    """Use an index through a service that has opened it too."""
    from support.services import running

    with running(index.path, write=True, rate=1e9) as service:
        yield lambda number, draw: post(service, number, draw)


def main(kind: str, count: int, place: str) -> None:
    """Print what there is at each look."""
    from palmette import Document, FakeEncoder, Index, SpaceModel
    from palmette.index.index import SCOPES

    folder, scratch, draw, longest = Path(place) / "index", Path(place) / "scratch", random.Random(56), 0
    scratch.mkdir()
    tempfile.tempdir = str(scratch)
    looks = {max(count // 50, FIRST), *(count * n // LOOKS for n in range(2, LOOKS + 1))}
    with Index.create(folder, SpaceModel.untrained(FakeEncoder(16))) as index:
        # fill the caches that hold a fixed number of words, with words as `sentence` draws them
        words = " ".join(f"{draw.random()} x{draw.getrandbits(40):x}." for _ in range(70_000))
        index.add([Document("words", words)], progress=False)
        index.upsert(
            [Document(f"d{n}", sentence(draw), {"tenant": 0, "at": 0}) for n in range(KEPT)],
            delete=["words"],
            progress=False,
        )
        if count >= 20 * SCOPES:  # as many filtered indexes as are remembered
            for number in range(SCOPES):
                index.filtered({"at": {"$gt": -1 - number}}).search("owl", 1)
        with {"index": of_index, "service": of_service}[kind](index) as act:
            for number in range(1, count + 1):
                act(number, draw)
                longest = max(longest, log_of(folder))
                if number in looks:
                    index.compact()
                    print(
                        json.dumps({"number": number} | state(folder, scratch) | {"longest log": longest}), flush=True
                    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
