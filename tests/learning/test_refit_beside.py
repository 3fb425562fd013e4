"""A refit and the way back beside syncs, writers, readers, voters and other refits: nothing acknowledged is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from learning.conftest import QUIET, TOPICS, VOTES
from palmette import Document, Index
from palmette.data.listing import list_source
from palmette.errors import LockedError, PalmetteError, StoreError
from palmette.learning import refit as module
from palmette.learning.refit import refit, restore_former


@pytest.fixture
def path(voted: Path, tmp_path: Path) -> Path:
    """A copy of the index."""
    shutil.copytree(voted, tmp_path / "index")
    return tmp_path / "index"


def fingerprint(path: Path) -> str:
    with Index.open(path, verify="full") as index:
        return index.model.fingerprint


def test_a_refit_that_cannot_exchange_keeps_the_former_index(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.2)
    untrained = fingerprint(path)
    assert refit(path, **QUIET).exchanged
    restore_former(path)
    trained = fingerprint(path.with_name("index.former"))
    with Index.open(path) as index, index.backend.write(), pytest.raises(LockedError):
        refit(path, seed=1, **QUIET)
    assert (fingerprint(path), fingerprint(path.with_name("index.former"))) == (untrained, trained)
    assert sorted(item.name for item in path.parent.iterdir()) == ["index", "index.former"]


def test_two_refits_at_once(path: Path) -> None:
    untrained, results = fingerprint(path), list[object]()

    def act(seed: int) -> None:
        try:
            results.append(refit(path, seed=seed, **QUIET).exchanged)
        except StoreError as error:
            results.append(str(error))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, (0, 1)))
    assert True in results
    assert results == [True, True] or any("holds another index" in str(result) for result in results)
    assert fingerprint(path) != untrained
    if results != [True, True]:  # the one that came second has exchanged nothing
        assert fingerprint(path.with_name("index.former")) == untrained
    restore_former(path)
    with Index.open(path, verify="full") as index:
        assert len(index) == 2 * TOPICS
        assert len(index.feedback_log.votes()) == VOTES


def test_a_folder_of_the_users_is_not_deleted(path: Path, tmp_path: Path) -> None:
    theirs = path.with_name("index.former")
    theirs.mkdir()
    (theirs / "letter.txt").write_text("dear reader")
    with pytest.raises(StoreError, match="is no index, but refit keeps the former index there"):
        refit(path, **QUIET)
    assert (theirs / "letter.txt").read_text() == "dear reader"
    shutil.rmtree(theirs)
    theirs.symlink_to(path)
    with pytest.raises(StoreError, match="is no index"):
        refit(path, **QUIET)


def test_an_exchange_in_the_middle_of_a_sync(path: Path) -> None:
    pages = [Document(f"page{number}", f"text {number}") for number in range(6)]

    def exchange(done: int, total: int) -> bool:
        if done == 2:
            assert refit(path, **QUIET).exchanged
        return True

    with Index.open(path) as index, pytest.raises(StoreError, match="another index than the one that was opened"):
        index.sync_listing("pages", list_source(pages, "pages"), batch_size=1, per_commit=1, on_commit=exchange)
    for step in (lambda: None, lambda: restore_former(path)):
        step()
        with Index.open(path, verify="full") as index:
            assert {"page0", "page1"} <= {document.id for document in index.documents()}
            report = index.sync(pages, "pages", **QUIET)
            assert (report.removed, report.changed, len(index)) == ([], [], 2 * TOPICS + 6)


def repeat(path: Path, act: Callable[[Index, int], None], over: threading.Event) -> None:
    """Act until all is over; whoever is told that the index is another one opens it again."""
    number = 0
    while not over.is_set():
        try:
            with Index.open(path, verify=False) as index:
                while not over.is_set():
                    act(index, number)
                    number += 1
        except PalmetteError as error:
            if not any(told in str(error) for told in ("holds another index", "no longer there", "of model")):
                raise


def test_writers_voters_and_readers_beside_exchanges(path: Path) -> None:
    assert refit(path, **QUIET).exchanged
    over, written, votes = threading.Event(), list[str](), list[str]()

    def write(index: Index, number: int) -> None:
        index.add([Document(f"w{number}", f"a written text {number}")], **QUIET)
        written.append(f"w{number}")

    def vote(index: Index, number: int) -> None:
        index.feedback(f"vote {number}", "d1", useful=True)
        votes.append(f"vote {number}")

    def search(index: Index, number: int) -> None:
        assert index.search("beta3 beta3", 1)[0].id in ("d3", "d33")

    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(repeat, path, act, over) for act in (write, vote, search)]
        try:
            for _ in range(8):
                restore_former(path)
        finally:
            over.set()
        for end in ends:
            end.result()
    assert written
    with Index.open(path, verify="full") as index:
        assert set(written) <= {document.id for document in index.documents()}
        assert set(votes) <= {vote.query for vote in index.feedback_log.votes()}
