"""A handle belongs to the index that it opened: whatever comes to lie at its path stays whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import StoreError
from palmette.store.local.backend import LocalBackend
from palmette.store.local.folder import new_index_folder
from palmette.store.local.view import Snapshots
from support.forks import in_child
from support.stores import SPECS, State, arrays_of, delete, doc, plan, put, state_of

TOLD = r"holds another index|is no longer there"


def create(folder: Path, name: str, count: int = 4) -> LocalBackend:
    backend = LocalBackend.create(folder, SPECS, fingerprint="model")
    put(backend, *(doc(f"{name}{number}", name=name) for number in range(count)))
    return backend


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_deleted_folder_stays_deleted(tmp_path: Path) -> None:
    """A failed write leaves no .lock, which would keep `restore` from writing there."""
    with create(tmp_path / "live", "old") as old:
        shutil.rmtree(tmp_path / "live")
        for use in (lambda: put(old, doc("late")), old.compact, old.stats):
            with pytest.raises(StoreError, match="no longer there: it was moved or deleted"):
                use()
    assert not (tmp_path / "live").exists()


def test_a_folder_that_is_replaced_as_it_is_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live"
    for folder in (live, tmp_path / "next"):
        create(folder, folder.name).close()
    begin = Snapshots.open_snapshot

    def replaced(self: Snapshots, connection: Any) -> Any:
        if self.folder == live:
            live.rename(tmp_path / "former")
            (tmp_path / "next").rename(live)
        return begin(self, connection)

    monkeypatch.setattr(Snapshots, "open_snapshot", replaced)
    with pytest.raises(StoreError, match="holds another index"):
        LocalBackend.open(live)


@pytest.mark.parametrize("step", ["begun", "put"])
def test_a_folder_that_is_replaced_under_a_write(step: str, tmp_path: Path) -> None:
    live = tmp_path / "live"
    create(tmp_path / "next", "new").close()
    with create(live, "old") as old:
        before = state_of(old)
        with pytest.raises(StoreError, match=TOLD), old.write() as writer:
            if step == "put":
                writer.put([doc("late")], arrays_of([doc("late")]))
            live.rename(tmp_path / "former")
            (tmp_path / "next").rename(live)
            kept = everything(live)
            if step == "begun":
                writer.put([doc("late")], arrays_of([doc("late")]))
    assert everything(live) == kept
    for path, count in ((tmp_path / "former", 4), (live, 4)):
        with LocalBackend.open(path, verify="full") as backend:
            assert len(state_of(backend)) == count
            put(backend, doc("next"))
            assert not [entry for entry in (path / "segments").iterdir() if entry.name.endswith(".tmp")]
    assert before.keys() == {f"old{number}" for number in range(4)}


# -- histories ----------------------------------------------------------------------------------------------


class World:
    """Some indexes in folders, a path that leads to one of them or to none, handles of any age, and what each holds."""

    def __init__(self, home: Path, draw: random.Random) -> None:
        self.home, self.draw, self.made = home, draw, 0
        self.live = home / "live"
        self.states: dict[tuple[int, int], State] = {}  # acknowledged content by inode of the folder
        self.handles: list[tuple[LocalBackend, tuple[int, int]]] = []
        self.linked = draw.random() < 0.5
        self.place(self.new())
        self.open()

    def identity(self, folder: Path) -> tuple[int, int]:
        state = folder.stat()
        return state.st_dev, state.st_ino

    def new(self) -> Path:
        self.made += 1
        folder = self.home / f"index{self.made}"
        with create(folder, f"n{self.made}-", self.draw.randrange(1, 5)) as backend:
            self.states[self.identity(folder)] = state_of(backend)
        return folder

    def place(self, folder: Path) -> None:
        if self.linked:
            fresh = self.home / "link"
            fresh.symlink_to(folder)
            fresh.replace(self.live)
        else:
            folder.rename(self.live)

    def clear(self) -> None:
        if self.linked:
            self.live.unlink(missing_ok=True)
        elif self.live.exists():
            self.live.rename(self.home / f"former{self.made}-{self.draw.random()}")

    def open(self) -> None:
        if self.live.exists():
            self.handles.append((LocalBackend.open(self.live, verify=False), self.identity(self.live)))

    # steps: each is named in a failure

    def switch(self) -> None:
        following = self.new()
        self.clear()
        self.place(following)

    def copied(self) -> None:
        """A copy of the live index takes its place: same documents, same commit, another folder."""
        if self.live.exists():
            self.made += 1
            copy, state = self.home / f"copy{self.made}", dict(self.states[self.identity(self.live)])
            shutil.copytree(self.live, copy)
            self.states[self.identity(copy)] = state
            self.clear()
            self.place(copy)

    def lose(self) -> None:
        if self.live.exists() and not self.linked:
            del self.states[self.identity(self.live)]
            shutil.rmtree(self.live)
        else:
            self.clear()

    def restore(self) -> None:
        if not self.live.exists():
            self.place(self.new())

    def close(self) -> None:
        if self.handles:
            self.handles.pop(self.draw.randrange(len(self.handles)))[0].close()

    def use(self) -> None:
        """Use any handle: refused exactly where the path leads elsewhere than it did when the handle was opened."""
        if not self.handles:
            return
        backend, opened = self.draw.choice(self.handles)
        reached, known = self.identity(self.live) if self.live.exists() else None, self.states.get(opened, {})
        call = self.draw.choice([self.put, self.delete, self.compact, self.search, self.get])
        try:
            call(backend, known)
        except StoreError as error:
            if reached == opened or "open it" not in str(error):  # the folder that was opened, or no advice
                raise
            return
        assert reached == opened, f"{call.__name__} went through although the path leads elsewhere"

    def put(self, backend: LocalBackend, known: State) -> None:
        fresh = doc(f"w{self.made}-{self.draw.randrange(99)}")
        put(backend, fresh)
        known[fresh.key] = (fresh, b"")

    def delete(self, backend: LocalBackend, known: State) -> None:
        ids = list(known)[:1]
        assert delete(backend, *ids) == ids
        for id in ids:
            del known[id]

    def compact(self, backend: LocalBackend, _: State) -> None:
        backend.compact()

    def get(self, backend: LocalBackend, known: State) -> None:
        assert backend.get(list(known)) == [document for document, _ in known.values()]

    def search(self, backend: LocalBackend, known: State) -> None:
        with backend.read() as view:
            assert len(view) == len(known)
            assert len(view.candidates(plan(), 3).keys[0]) == min(3, len(known))

    def check(self) -> None:
        """Every folder holds what was acknowledged in it, and nothing else."""
        for folder in self.home.iterdir():
            if folder.is_dir() and not folder.is_symlink():
                expected = self.states[self.identity(folder)]
                with LocalBackend.open(folder, verify="full") as backend:
                    assert state_of(backend).keys() == expected.keys(), folder


STEPS: list[tuple[Callable[[World], None], int]] = [
    (World.use, 8), (World.open, 3), (World.switch, 2), (World.copied, 2), (World.lose, 1), (World.restore, 2),
    (World.close, 1),
]  # fmt: skip


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_histories_of_replaced_folders_under_old_handles(count: int, tmp_path: Path) -> None:
    """Refused exactly where the path leads elsewhere; every folder keeps what was acknowledged in it."""
    steps, weights = zip(*STEPS, strict=True)
    for seed in range(count):
        home = tmp_path / str(seed)
        home.mkdir()
        draw, told = random.Random(seed), list[str]()
        world = World(home, draw)
        try:
            for step in draw.choices(steps, weights, k=24):
                told.append(step.__name__)
                step(world)
            world.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, links {world.linked}: {' '.join(told)}")
            raise
        finally:
            for backend, _ in world.handles:
                backend.close()
        shutil.rmtree(home)


# -- what kills leave ---------------------------------------------------------------------------------------


def test_the_draft_of_a_killed_process_goes_with_the_next_try(tmp_path: Path) -> None:
    """And one of a process that is still at work does not."""
    path = tmp_path / "index"

    def begin() -> None:
        with new_index_folder(path) as draft:
            create(draft, "killed").close()
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError):
        in_child(begin)
    [left] = tmp_path.iterdir()
    with new_index_folder(path) as slow:
        create(slow, "slow").close()
        assert not left.exists()
        with new_index_folder(path) as quick:
            create(quick, "quick").close()
        assert slow.exists()
        shutil.rmtree(path)
    with LocalBackend.open(path) as backend:
        assert len(state_of(backend)) == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]
