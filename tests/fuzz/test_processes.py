"""Processes as users have them.

tests/store/test_damage.py has read-only folders and full disks, tests/store/test_concurrency.py processes and forks.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.encoder.cache import EncodingCache
from palmette.errors import LockedError, PalmetteError, StoreError
from support.forks import in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
MODEL = SpaceModel.untrained(FakeEncoder(16))


def documents(word: str, count: int = 4) -> list[Document]:
    return [Document(f"{word}{number}", f"the {word} number {number}") for number in range(count)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build(documents("fox"), MODEL, tmp_path / "index", progress=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_holding_the_lock(index: Index) -> None:
    held: list[Any] = []

    def begin() -> None:
        held.append(index.backend.write())
        held[0].__enter__()

    def end() -> None:
        with index.backend.write():
            raise SystemExit

    for work in (end, begin):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    impatient = Index.open(index.path, MODEL, lock_timeout=0.1)
    with pytest.raises(LockedError, match="this process"):  # somebody still holds the write
        impatient.add(documents("owl"), progress=False)
    held.clear()
    gc.collect()
    impatient.add(documents("owl"), progress=False)
    assert len(index) == 8


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files")
def test_few_open_files(index: Index) -> None:
    for number in range(6):  # a segment each
        index.add(documents(f"owl{number}-"), progress=False)
    index.close()

    def work() -> None:
        refused = 0
        for spare in itertools.count(0, 3):
            open_now = len(list(Path("/proc/self/fd").iterdir()))
            low = open_now + spare
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            try:
                with Index.open(index.path, MODEL) as opened:
                    opened.search("fox", 3)
                    opened.upsert(documents("late"), progress=False)
                break
            except PalmetteError:
                refused += 1
        assert refused, "never refused"

    in_child(work)
    with Index.open(index.path, MODEL) as opened:
        assert len(opened) == 32


def test_an_index_replaced_under_an_open_reader(index: Index, tmp_path: Path) -> None:
    """A view goes on with what it opened; what comes after says that the index was replaced; nobody mixes the two."""
    Index.build(documents("owl"), MODEL, tmp_path / "other", progress=False).close()
    assert index.search("fox number 1", 1)[0].id == "fox1"
    with index.backend.read() as view:
        (tmp_path / "index").rename(tmp_path / "former")
        (tmp_path / "other").rename(tmp_path / "index")
        assert {document.id for document in view.documents(view.keys().tolist())} == {f"fox{n}" for n in range(4)}
        for _ in range(2):  # by another connection, then by an idle one
            with pytest.raises(StoreError, match="holds another index than the one that was opened: open it again"):
                index.search("number 1", 9)
    with Index.open(tmp_path / "index", MODEL) as opened:
        assert [hit.id for hit in opened.search("owl number 1", 1)] == ["owl1"]


def test_clocks_that_jump(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = itertools.cycle([0, 4e9, -1.6e9, 1e9])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: max(0.0, now() + next(jumps)))
    cache = EncodingCache(tmp_path / "cache")
    for number in range(5):
        index.upsert(documents(f"owl{number}-"), progress=False)
        assert len(cache.encode(MODEL.encoder, [f"text {number}", "text"])) == 2
    assert len(index.search("owl", 50)) == 24
    assert sum(entry.texts for entry in cache.entries()) == 6
    index.compact()
    index.close()
    with Index.open(index.path, MODEL) as opened:
        assert len(opened) == 24
