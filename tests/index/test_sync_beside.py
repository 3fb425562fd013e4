"""Syncs of one source beside each other, beside a watching command, and killed while another waits."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.data.listing import list_source
from palmette.errors import LockedError, PalmetteError, StoreError
from palmette.index import sync as syncing
from palmette.machine.folders import draft_beside, exchange_folders
from support.services import until
from support.stores import watching

MODEL = SpaceModel.untrained(FakeEncoder(16))
QUIET: dict[str, Any] = {"progress": False}


def pages(**texts: str) -> list[Document]:
    return [Document(name, text) for name, text in texts.items()]


def held(index: Index) -> dict[str, str]:
    return {document.key: document.text for document in index.documents()}


def test_what_another_sync_has_written_is_not_deleted(tmp_path: Path) -> None:
    """One sync lists a source without a page; before it deletes that, another sync has written the page anew."""
    with Index.build([], MODEL, tmp_path / "index", **QUIET) as index:
        index.sync(pages(a="one", x="the page"), "pages", **QUIET)
        latest = pages(a="one", b="two", c="three", x="the page, written anew")

        def beside(done: int, total: int) -> bool:
            if done == 1:
                with Index.open(tmp_path / "index", MODEL) as other:
                    assert other.sync(pages(a="one", b="two", x=latest[3].text), "pages", **QUIET).changed == ["x"]
            return True

        listing = list_source(pages(a="one", b="two", c="three"), "pages")
        with pytest.raises(LockedError, match="document 'x' was changed by another writer meanwhile: sync again"):
            index.sync_listing("pages", listing, batch_size=1, per_commit=1, on_commit=beside)
        assert held(index)["x"] == latest[3].text
        index.sync(latest, "pages", **QUIET)
        assert held(index) == {page.key: page.text for page in latest}


def test_many_create_an_index_at_once(tmp_path: Path) -> None:
    for attempt in range(4):
        barrier = threading.Barrier(4)

        def create(number: int, path: Path = tmp_path / f"{attempt}", barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            with Index.build([], MODEL, path) as index:
                index.add([Document(f"d{number}", f"text {number}")], **QUIET)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(create, range(4)))
        with Index.open(tmp_path / f"{attempt}", verify="full") as index:
            assert set(held(index)) == {"d0", "d1", "d2", "d3"}


def test_drafts_sweep_no_draft_of_others(tmp_path: Path) -> None:
    def draft(_: int) -> None:
        for _ in range(150):
            with draft_beside(tmp_path / "index") as folder:
                (folder / "file").touch()
                assert (folder / "file").exists()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(draft, range(6)))
    assert not list(tmp_path.iterdir())


def test_one_of_many_creates(tmp_path: Path) -> None:
    for attempt in range(4):
        barrier = threading.Barrier(4)

        def create(_: int, path: Path = tmp_path / f"{attempt}", barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            try:
                Index.create(path, MODEL).close()
            except PalmetteError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(create, range(4)))
        assert told.count("") == 1, told
        known = ("was made by another process meanwhile", "exists and is not an empty folder")
        assert all(not text or any(part in text for part in known) for text in told), told


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.exhaustive)], ids=len)
def test_two_processes_sync_one_folder(seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes sync one folder at once; one of them may be killed. Each ends well, or says what to do."""
    monkeypatch.setattr(syncing, "DOCUMENTS_PER_COMMIT", 2)
    for seed in seeds:
        draw, home = random.Random(seed), tmp_path / f"{seed}"
        notes = home / "notes"
        notes.mkdir(parents=True)
        for number in range(12):
            (notes / f"n{number}.md").write_text(f"Note {number} of seed {seed}.")
        with Index.create(home / "index", MODEL) as index:
            index.add([Document("mine", "Nobody touches this.")], **QUIET)
            if draw.random() < 0.5:
                index.sync(notes, **QUIET)
        for number in range(0, 12, 3):
            (notes / f"n{number}.md").write_text(f"Note {number}, changed.")
        (notes / "n1.md").unlink()
        (notes / "n2.md").rename(notes / "moved.md")
        children = [sync_in_child(home, draw.uniform(0.0, 0.1) if number == 0 and seed % 2 else 0) for number in (0, 1)]
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert all(os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, 3) for status in statuses), (seed, statuses)
        expected = {f"notes/{path.name}": path.read_text() for path in notes.iterdir()} | {
            "mine": "Nobody touches this."
        }
        with Index.open(home / "index", MODEL, verify="full") as index:
            if 0 in statuses:
                assert held(index) == expected, seed
            index.sync(notes, **QUIET)
            assert held(index) == expected, seed


def sync_in_child(home: Path, killed_after: float) -> int:
    """Sync in a forked process, which exits with 3 where it is told to sync again."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        if killed_after:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, killed_after)
        with Index.open(home / "index", MODEL) as index:
            index.sync(home / "notes", **QUIET)
        code = 0
    except LockedError:
        code = 3
    finally:
        os._exit(code)


def test_a_watching_command_goes_on(tmp_path: Path) -> None:
    """It waits for a writer that takes long, and follows an index that replaces the one it opened."""
    notes, place = tmp_path / "notes", tmp_path / "index"
    notes.mkdir()
    (notes / "a.md").write_text("Owls sing.")
    MODEL.save_pretrained(tmp_path / "model")

    def ids() -> set[str]:
        with Index.open(place, verify=False) as index:
            return set(held(index))

    with watching(tmp_path / "model", notes, "--out", place) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            with Index.open(place) as index, index.backend.write():
                (notes / "b.md").write_text("Hens eat.")
                assert "is being written by process" in process.stderr.readline()
            until(lambda: "notes/b.md" in ids())
            with Index.open(place) as index:
                index.copy_to(tmp_path / "other", model=SpaceModel.untrained(FakeEncoder(8)), **QUIET).close()
            exchange_folders(place, tmp_path / "other")
            (notes / "c.md").write_text("Foxes run.")
            until(lambda: "notes/c.md" in ids())
            assert process.poll() is None
        finally:
            process.terminate()
    with Index.open(tmp_path / "other", verify="full") as index, pytest.raises(StoreError, match="holds another index"):
        assert set(held(index)) == {"notes/a.md", "notes/b.md"}
        exchange_folders(place, tmp_path / "other")
        held(index)
