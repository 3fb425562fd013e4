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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel, load_data, load_encoder, load_model
from palmette.encoder.cache import EncodingCache
from palmette.errors import LockedError, PalmetteError, StoreError
from palmette.reader import Reader, load_reading
from support.forks import as_nobody, in_child
from support.tiny_encoder import save_tiny_encoder

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
            taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
            low = next(itertools.islice((n for n in itertools.count() if n not in taken), spare, None))  # so many free
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


# -- what may not be read -----------------------------------------------------------------------------------


INSIDE = "commit.json fox.md index.sqlite3 keys.npy manifest.json model 1_Pooling tokenizer.json".split()
"""Files and folders that are made unreadable by themselves, beside the whole folder."""


def unreadable(home: Path) -> dict[str, tuple[Callable[[], Any], Path]]:
    """Places that are read, by what reads them."""
    folder = home / "index"
    Index.build(documents("fox"), MODEL, folder, progress=False).close()
    checkpoint, encoder = MODEL.save_pretrained(home / "checkpoint"), save_tiny_encoder(home / "encoder")
    (home / "texts").mkdir()
    (home / "texts" / "fox.md").write_text("a fox")
    for name, content in (("docs.jsonl", '{"text": "x"}\n'), ("docs.csv", "text\nx\n"), ("squad.json", "[]")):
        (home / name).write_text(content)
    return {
        "index": (lambda: Index.open(folder).search("fox"), folder),
        "repair": (lambda: Index.repair(folder, home / "texts" / uuid4().hex, progress=False), folder / "model"),
        "model": (lambda: load_model(checkpoint), checkpoint),
        "reader": (lambda: Reader.from_pretrained(checkpoint), checkpoint),
        "save": (lambda: MODEL.save_pretrained(checkpoint), checkpoint),
        "encoder": (lambda: load_encoder(encoder, device="cpu", dtype="float32").encode(["a"]), encoder),
        "texts": (lambda: load_data(home / "texts"), home / "texts"),
        "cache": (lambda: EncodingCache(home / "texts" / "cache").entries(), home / "texts"),
        **{path.name: (lambda path=path: load_data(path), path) for path in home.glob("docs.*")},
        "squad.json": (lambda: load_reading(home / "squad.json"), home / "squad.json"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX users")
def test_folders_and_files_that_may_not_be_read(tmp_path: Path) -> None:
    """Any of them by itself: what needs it says so in an error of palmette's."""
    uses = unreadable(tmp_path)
    for parent in (*tmp_path.parents, tmp_path, *tmp_path.rglob("*")):
        if parent.stat().st_uid == os.getuid() and parent.is_relative_to("/tmp"):
            parent.chmod(0o777 if parent.is_dir() else 0o666)

    def attempt(use: Callable[[], Any]) -> None:
        with suppress(PalmetteError):
            use()

    for use, _ in uses.values():  # what it imports may be unreadable, too
        with suppress(PalmetteError):
            use()
    for use, place in uses.values():
        inside = [path for path in place.rglob("*") if path.name in INSIDE] if place.is_dir() else []
        for path in (place, *inside):
            mode = path.stat().st_mode
            path.chmod(0)
            as_nobody(partial(attempt, use))
            path.chmod(mode)
