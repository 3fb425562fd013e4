"""The exchange of a refit and the way back, killed at each of their system calls."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning.conftest import QUIET, TOPICS, VOTES
from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import InputError, StoreError
from palmette.learning.refit import refit, restore_former
from palmette.machine.folders import between
from support.syscalls import KILL, is_possible, watch

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs seccomp's user notifications")


@pytest.fixture(scope="module")
def voted(voted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a document of a source, too."""
    path = Path(shutil.copytree(voted, tmp_path_factory.mktemp("synced") / "index"))
    with Index.open(path) as index:
        index.sync([Document("page", "the first text")], "pages", **QUIET)
    return path


def refitted(path: Path) -> None:
    assert refit(path, **QUIET).exchanged


def returned(path: Path) -> None:
    with Index.open(path) as index:
        index.add([Document("late", "a late document")], **QUIET)
        index.feedback("a late question", "d1", useful=True)
    restore_former(path)


def count_calls(work: Callable[[], object], folder: Path, verdict: Callable[[str], int]) -> int:
    """Number of system calls that change the folder."""
    calls = 0

    def decide(number: int, name: str) -> int:
        nonlocal calls
        calls = number + 1
        return verdict(name)

    assert watch(work, folder, decide) == 0
    return calls


def check(path: Path, *, late: bool) -> None:
    """Everything that was acknowledged is there, and the next write, refit and way back work."""
    if not path.exists():  # between two renames, where the system has no exchange
        with pytest.raises(StoreError, match="was being exchanged"):
            Index.open(path)
        with pytest.raises((StoreError, InputError), match="was being exchanged"):
            Index.build([], SpaceModel.untrained(FakeEncoder(64)), path)
        between(path).rename(path)
    with Index.open(path, verify="full") as index:
        ids = {document.key for document in index.documents()}
        assert {f"d{n}" for n in range(2 * TOPICS)} | {"page"} <= ids
        assert len(index.feedback_log.votes()) >= VOTES
        assert index.search("alpha3 alpha3", k=3)
        index.add([Document("more", "a further document")], **QUIET)
        report = index.sync([Document("page", "the second text")], "pages", **QUIET)
        assert report.changed == ["page"]
        if late and "late" in ids:
            assert index.feedback_log.votes()
    former = path.with_name(f"{path.name}.former")
    if former.exists():
        restore_former(path)
        with Index.open(path, verify="full") as index:
            assert "more" in index
            assert index.get(["page"])[0] == Document("page", "the second text")
            assert len(index.feedback_log.votes()) >= VOTES


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("step", [refitted, returned])
@pytest.mark.parametrize("count", [3, pytest.param(60, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3000)])])
def test_kills_lose_nothing(count: int, step: Any, exchange: bool, voted: Path, tmp_path: Path) -> None:
    """A refit is killed in its last calls, a way back in any."""
    home = tmp_path / "home"

    def fresh() -> Path:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(voted.parent, home)
        if step is returned:
            refitted(home / "index")
        return home / "index"

    def verdict(name: str) -> int:
        return errno.EINVAL if name == "renameat2" and not exchange else 0

    path = fresh()
    calls = count_calls(lambda: step(path), home, verdict)
    check(path, late=step is returned)
    draw = np.random.default_rng(0)
    last = min(calls, 120) if step is refitted else calls
    for place in np.sort(draw.choice(last, min(count, last), replace=False)).tolist():
        killed, path = calls - 1 - place, fresh()
        watch(lambda path=path: step(path), home, lambda n, name, at=killed: KILL if n == at else verdict(name))
        check(path, late=step is returned)
