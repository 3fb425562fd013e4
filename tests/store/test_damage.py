"""What is broken, foreign, newer, read-only or full is named, and left exactly as it was."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from palmette.errors import (
    CorruptIndexError,
    FormatError,
    ModelMismatchError,
    NotFoundError,
    PalmetteError,
    ReadOnlyError,
    StorageFullError,
    StoreError,
)
from palmette.store.local import LocalBackend
from support.stores import SPECS, delete, doc, put, run_python, state_of


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "index"
    with LocalBackend.create(path, SPECS, fingerprint="model") as backend:
        put(backend, *(doc(f"d{i}", lang="en") for i in range(50)))
        put(backend, doc("late"))
        delete(backend, "d3")
    return path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "index")
    return tmp_path / "index"


def everything(folder: Path) -> dict[str, bytes]:
    """The bytes of every file (the lock file, which says nothing, apart)."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def segment_file(folder: Path, name: str = "leaves.npy") -> Path:
    return max(folder.glob(f"segments/*/{name}"), key=lambda path: path.stat().st_size)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def sql(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "index.sqlite3")
    connection.execute(statement)
    connection.commit()
    connection.close()


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "truncated array": (lambda f: truncate(segment_file(f)), ["leaves.npy", "1856 bytes", "1851"]),
    "truncated keys": (lambda f: truncate(segment_file(f, "keys.npy")), ["keys.npy"]),
    "flipped bit": (lambda f: flip(segment_file(f)), ["leaves.npy", "sha256", "backup"]),
    "flipped bit in a header": (lambda f: flip(segment_file(f), 9), ["leaves.npy"]),
    "flipped bit in words": (lambda f: flip(segment_file(f, "words-rows.npy"), -1), ["words-rows"]),
    "no array": (lambda f: segment_file(f, "tokens.npy").unlink(), ["tokens.npy", "no file"]),
    "no segment": (lambda f: shutil.rmtree(segment_file(f).parent), ["keys.npy", "no file"]),
    "no database": (lambda f: (f / "index.sqlite3").unlink(), ["index.sqlite3", "no file"]),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), ["manifest.json", "missing"]),
    "half a manifest": (lambda f: truncate(f / "manifest.json"), ["manifest.json", "damaged"]),
    "no database at all": (lambda f: (f / "index.sqlite3").write_bytes(b"x" * 9000), ["index.sqlite3"]),
    "truncated database": (lambda f: os.truncate(f / "index.sqlite3", 8192), ["index.sqlite3"]),
    "a lost row": (lambda f: sql(f, "DELETE FROM documents WHERE id = 'd7'"), ["49", "50"]),
    "another's manifest": (lambda f: edit_manifest(f, fingerprint="x"), ["model x", "model model"]),
    "impossible format": (lambda f: edit_manifest(f, format="new"), ["'new'"]),
}
REFUSALS: dict[str, tuple[Callable[[Path], object], type[PalmetteError], list[str]]] = {
    **{name: (harm, CorruptIndexError, words) for name, (harm, words) in DAMAGES.items()},
    "a lost table": (lambda f: sql(f, "DROP TABLE segments"), StoreError, ["segments"]),
    "newer format": (
        lambda f: edit_manifest(f, format=99),
        FormatError,
        ["99", "2", "pip install --upgrade"],
    ),
    "older format": (lambda f: edit_manifest(f, format=1), FormatError, ["kept no words"]),
    "foreign manifest": (lambda f: edit_manifest(f, kind="npm"), NotFoundError, ["not a palmette index"]),
}


@pytest.mark.parametrize("damage", REFUSALS)
def test_opening_what_is_damaged(folder: Path, damage: str) -> None:
    harm, expected, words = REFUSALS[damage]
    harm(folder)
    before = everything(folder)
    with pytest.raises(expected) as caught:
        LocalBackend.open(folder, fingerprint=None)
    assert type(caught.value) is expected
    assert not [word for word in [*words, str(folder)] if word not in str(caught.value)], str(caught.value)
    assert everything(folder) == before


def test_a_wrong_model_changes_nothing(folder: Path) -> None:
    before = everything(folder)
    with pytest.raises(ModelMismatchError, match="model model, but the model given is other"):
        LocalBackend.open(folder, fingerprint="other")
    assert everything(folder) == before


def test_what_is_not_an_index(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        LocalBackend.open(tmp_path / "nowhere")
    (tmp_path / "photos").mkdir()
    with pytest.raises(NotFoundError, match=r"photos is not a palmette index: it has no manifest\.json"):
        LocalBackend.open(tmp_path / "photos")
    assert not list((tmp_path / "photos").iterdir())
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotFoundError, match="not a palmette index"):
        LocalBackend.open(tmp_path / "file")


def test_damage_under_an_open_index_is_found_by_verify(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        backend.verify()
        flip(segment_file(folder))
        with pytest.raises(CorruptIndexError, match="sha256"):
            backend.verify()
        segment_file(folder).unlink()
        with pytest.raises(CorruptIndexError, match="no file"):
            backend.verify()


@pytest.mark.parametrize(
    ("column", "value"),
    [("text", "another text"), ("metadata", '{"lang": "xx"}'), ("fields", "no JSON"), ("payload", "[]")],
)
def test_a_document_that_is_not_what_was_written_is_found_by_verify(
    folder: Path, column: str, value: str
) -> None:
    with closing(sqlite3.connect(folder / "index.sqlite3")) as connection:
        connection.execute(f"UPDATE documents SET {column} = ? WHERE id = 'd7'", [value])
        connection.commit()
    with (
        LocalBackend.open(folder) as backend,
        pytest.raises(CorruptIndexError, match="document 'd7' with digest"),
    ):
        backend.verify()


def test_a_segment_lost_without_a_word_is_damage_not_a_race(folder: Path) -> None:
    shutil.rmtree(segment_file(folder).parent)
    with pytest.raises(CorruptIndexError, match="no file"):
        LocalBackend.open(folder, verify=False)


LITTLE_ROOM = """
import resource, shutil, sys
from support.stores import delete, doc, put, state_of
from palmette.errors import StorageFullError
from palmette.store.local import LocalBackend
big = [doc(f"big{i}", "word " * 100) for i in range(300)]
for limit in map(int, sys.argv[2:]):
    folder = f"{sys.argv[1]}-{limit}"
    shutil.copytree(sys.argv[1], folder)
    backend = LocalBackend.open(folder)
    before, full = state_of(backend), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    changes = (lambda: put(backend, *big), lambda: delete(backend, *(f"d{i}" for i in range(40))), backend.compact)
    for change in changes:
        try:
            change()
        except StorageFullError as error:
            assert folder in str(error) and "no room" in str(error), error
            full += 1
            assert state_of(backend) == before
        before = state_of(backend)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    backend.verify()
    put(backend, doc("after"))
    assert set(state_of(backend)) == {*before, "after"}
    backend.verify()
    assert len(list((backend.path / "segments").iterdir())) == backend.stats().segments
    assert full >= 1, limit
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_leaves_the_index_as_it_was(folder: Path) -> None:
    done = run_python(LITTLE_ROOM, folder, 0, 300, 3000, 8000, 20_000, 60_000, 150_000)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["fsync", "mkdir", "rename"])
def test_a_disk_that_fills_up_at_any_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with LocalBackend.open(folder) as backend:
        before = state_of(backend)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with pytest.raises(StorageFullError, match="no room"):
                put(backend, doc("new"))
        assert state_of(backend) == before
        put(backend, doc("new"))
        assert len(state_of(backend)) == len(before) + 1
        backend.verify()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write, and other users may read."""
    for parent in folder.parents:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o055)
    inside = [folder, *folder.rglob("*")]
    for path in inside:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in inside:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX users")
def test_a_read_only_folder_can_be_searched_but_not_written(folder: Path) -> None:
    script = """
import os, sys
from palmette.errors import ReadOnlyError
from palmette.store.filters import parse_filter
from palmette.store.local import LocalBackend
from support.stores import SPECS, become_nobody, doc, plan, put, state_of
become_nobody()
assert not os.access(sys.argv[1], os.W_OK)
backend = LocalBackend.open(sys.argv[1], fingerprint="model")
with backend.read(parse_filter({"lang": "en"})) as view:
    print(len(view), len(view.candidates(plan(), 5).keys[0]))
for change in (lambda: put(backend, doc("new")), backend.compact):
    try:
        change()
    except ReadOnlyError as error:
        assert sys.argv[1] in str(error), error
    else:
        raise AssertionError("written")
try:
    LocalBackend.create(sys.argv[1] + "/inner", SPECS, fingerprint="model")
except ReadOnlyError:
    print("refused")
"""
    before = everything(folder)
    with read_only(folder):
        done = run_python(script, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["49", "5", "refused"]
    assert everything(folder) == before


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX users")
def test_a_read_only_copy_of_a_killed_writers_index(folder: Path) -> None:
    """Its last commits lie in the WAL: they are read, or the reader is told; they are never silently left out."""
    killed = """
import os, signal, sys
from support.stores import doc, put
from palmette.store.local import LocalBackend
backend = LocalBackend.open(sys.argv[1])
put(backend, doc("last"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(killed, folder).returncode == -signal.SIGKILL
    assert (folder / "index.sqlite3-wal").stat().st_size
    reader = """
import sys
from palmette.errors import ReadOnlyError
from palmette.store.local import LocalBackend
from support.stores import become_nobody
become_nobody()
try:
    print(LocalBackend.open(sys.argv[1]).get(["last"])[0].id)
except ReadOnlyError as error:
    print(error)
"""
    found = []
    for shm in (True, False):
        if not shm:
            (folder / "index.sqlite3-shm").unlink()
        with read_only(folder):
            done = run_python(reader, folder)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert all(text == "last\n" or "open it once where it can be written" in text for text in found), found
    with LocalBackend.open(folder) as backend:
        assert backend.get(["last"])[0] is not None


def test_a_read_only_error_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "somewhere")

    with LocalBackend.open(folder) as backend:
        monkeypatch.setattr(os, "mkdir", refuse)
        with pytest.raises(ReadOnlyError, match="Read-only file system: somewhere"):
            put(backend, doc("new"))
