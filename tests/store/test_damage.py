"""What is broken, foreign, newer, read-only or full is named, and left exactly as it was."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palmette.errors import CorruptIndexError, FormatError, NotFoundError, ReadOnlyError, StorageFullError, StoreError
from palmette.store.filters import parse_filter
from palmette.store.local.backend import LocalBackend
from palmette.store.local.folder import json_digest
from palmette.store.local.segments import Column
from support.forks import as_nobody
from support.stores import SPECS, arrays_of, delete, doc, flip, plan, put, spoil_page, sql, state_of


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


def lose_a_row(path: Path) -> None:
    """Let a header count a row less than there is."""
    begin, rows, end = re.split(rb"(?<=\()(\d+)", path.read_bytes(), maxsplit=1)
    path.write_bytes(begin + str(int(rows) - 1).rjust(len(rows)).encode() + end)


def edit_manifest(folder: Path, **changes: object) -> None:
    """Write a manifest that is not damaged, but says something else."""
    path = folder / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    content["digest"] = json_digest({name: value for name, value in content.items() if name != "digest"})
    path.write_text(json.dumps(content))


def at(name: str, harm: Callable[..., object], *place: int) -> Callable[[Path], object]:
    return lambda folder: harm(segment_file(folder, name), *place)


REFUSALS: dict[str, tuple] = {  # harm, words of the error, and its type if it is not CorruptIndexError
    "truncated array": (at("leaves.npy", truncate), ["leaves.npy", "1856 bytes", "1851"]),
    "flipped bit": (at("leaves.npy", flip), ["leaves.npy", "sha256", "backup"]),
    "flipped bit in starts": (at("sentences.starts.npy", flip), ["sentences.starts"]),
    "a row less in a header": (at("sentences.npy", lose_a_row), ["sentences.npy is damaged"]),
    "no starts": (at("sentences.starts.npy", Path.unlink), ["sentences.starts.npy", "no file"]),
    "flipped bit in words": (at("words-once_hits.npy", flip, -1), ["words-once_hits"]),
    "no segment": (lambda f: shutil.rmtree(segment_file(f).parent), ["keys.npy", "no file"]),
    "no database": (lambda f: (f / "index.sqlite3").unlink(), ["index.sqlite3", "no file"]),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), ["manifest.json", "missing"]),
    "no database at all": (lambda f: (f / "index.sqlite3").write_bytes(b"x" * 9000), ["index.sqlite3"]),
    "truncated database": (lambda f: os.truncate(f / "index.sqlite3", 8192), ["index.sqlite3"]),
    "a lost row": (lambda f: sql(f, "DELETE FROM documents WHERE id = 'd7'"), ["49", "50"]),
    "another's manifest": (lambda f: edit_manifest(f, fingerprint="x"), ["model x", "model model"]),
    "impossible format": (lambda f: edit_manifest(f, format="new"), ["'new'"]),
    "a lost table": (lambda f: sql(f, "DROP TABLE segments"), ["segments"]),
    "a lost value": (
        lambda f: sql(f, "DELETE FROM meta WHERE name = 'generation'"),
        ["index.sqlite3", "no 'generation'"],
        CorruptIndexError,
    ),
    "newer format": (lambda f: edit_manifest(f, format=99), ["99", "5", "pip install --upgrade"], FormatError),
    "older format": (
        lambda f: edit_manifest(f, format=1),
        ["index format 1", "reads 5 only", "Index the documents anew"],
        FormatError,
    ),
    "foreign manifest": (lambda f: edit_manifest(f, kind="npm"), ["not a palmette index"], NotFoundError),
}


@pytest.mark.parametrize("damage", REFUSALS)
def test_opening_what_is_damaged(folder: Path, damage: str) -> None:
    harm, words, expected = (*REFUSALS[damage], CorruptIndexError)[:3]
    harm(folder)
    before = everything(folder)
    if damage == "no segment":  # and not a race with a writer
        with pytest.raises(CorruptIndexError, match="no file"):
            LocalBackend.open(folder, verify=False)
    with pytest.raises(expected) as caught:
        LocalBackend.open(folder, fingerprint=None)
    assert type(caught.value) is expected
    assert not [word for word in [*words, str(folder)] if word not in str(caught.value)], str(caught.value)
    assert everything(folder) == before


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
def test_a_document_that_is_not_what_was_written_is_found_by_verify(folder: Path, column: str, value: str) -> None:
    """Or at once where it is read."""
    sql(folder, f"UPDATE documents SET {column} = ? WHERE id = 'd7'", value)
    told = r"document 'd7' is damaged in index\.sqlite3 .*palmette repair"
    with LocalBackend.open(folder) as backend:
        for use in (backend.verify, lambda: backend.get(["d7"])):
            with pytest.raises(CorruptIndexError, match=told):
                use()
    with pytest.raises(CorruptIndexError, match=told):
        LocalBackend.open(folder, verify="full")


def test_a_lost_row_is_named_where_it_is_read(folder: Path) -> None:
    sql(folder, "DELETE FROM documents WHERE id = 'd9'")
    with LocalBackend.open(folder, verify=False) as backend, backend.read() as view:
        with pytest.raises(CorruptIndexError, match="expected a row for document 10, found none"):
            view.documents([9, 10])
        assert backend.get(["d8"]) == [doc("d8", lang="en")]


@pytest.mark.parametrize("table", ["documents", "metadata"])
def test_a_zeroed_page_is_noticed(folder: Path, table: str) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, doc("zeros", "\0" * 20_000))  # pages of zeros that are as they were written
    LocalBackend.open(folder).close()
    with LocalBackend.open(folder) as backend:
        put(backend, doc("long", "x" * 5000, note="y" * 5000))
    spoil_page(folder, table, "overflow", b"\0", last=True)
    with pytest.raises(CorruptIndexError, match=r"'long'|sound database"):
        LocalBackend.open(folder)


def test_columns_to_filter_by_that_differ_are_noticed(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, *(doc(f"more{i}", lang="en") for i in range(300)))
    sql(folder, "UPDATE metadata SET value = 'fr' WHERE key = 9")
    with LocalBackend.open(folder) as backend:
        for use in (backend.verify, lambda: list(backend.scan(parse_filter({"lang": "fr"})))):
            with pytest.raises(CorruptIndexError, match="document 'd8'"):
                use()
    sql(folder, "DELETE FROM metadata WHERE key = 9")
    with pytest.raises(CorruptIndexError, match="columns to filter document 'd8'"):
        LocalBackend.open(folder, verify="full")


def test_a_log_that_has_lost_its_end(folder: Path) -> None:
    live = folder.with_name("live")
    with LocalBackend.open(folder) as backend:
        put(backend, doc("one"))
        put(backend, doc("two"))
        shutil.copytree(folder, live)
        older = (folder / "commit.json").read_text()
        put(backend, doc("three"))
    os.truncate(live / "index.sqlite3-wal", (live / "index.sqlite3-wal").stat().st_size // 2)
    for verify in ("fast", False):
        with pytest.raises(CorruptIndexError, match=r"has lost its end: commit 5 was made.*the last one found is \d"):
            LocalBackend.open(live, verify=verify)
    (folder / "commit.json").write_text(older)  # a kill between commit and note
    LocalBackend.open(folder).close()
    noted = json.loads(older)
    (folder / "commit.json").write_text(json.dumps({**noted, "generation": 6}))
    with pytest.raises(CorruptIndexError, match="expected commit 6 with digest"):
        LocalBackend.open(folder)
    (folder / "commit.json").unlink()
    with pytest.raises(CorruptIndexError, match=r"commit\.json is damaged.*no file"):
        LocalBackend.open(folder)


FULL = [("fsync", errno.ENOSPC), ("mkdir", errno.EDQUOT), ("rename", errno.EFBIG)]


@pytest.mark.parametrize(("call", "code"), [*FULL, ("mkdir", errno.EROFS)])
def test_a_disk_that_fails_at_any_call(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "somewhere")

    full = code != errno.EROFS
    told = rf"no room to write {folder} \(.*somewhere" if full else "cannot be written.*Read-only.*: somewhere"
    with LocalBackend.open(folder) as backend:
        before = state_of(backend)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with pytest.raises(StorageFullError if full else ReadOnlyError, match=told):
                put(backend, doc("new"))
        assert state_of(backend) == before
        put(backend, doc("new"))
        assert len(state_of(backend)) == len(before) + 1
        backend.verify()


def test_a_step_that_stops_half_way_spoils_the_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with LocalBackend.open(folder) as backend:
        before = state_of(backend)
        with pytest.raises(StoreError, match="is over or has failed"), backend.write() as writer:
            other = [doc("d1", "other")]
            with monkeypatch.context() as patch, pytest.raises(StorageFullError):
                patch.setattr(Column, "append", refuse)
                writer.put(other, arrays_of(other))
        assert state_of(backend) == before


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
    def use() -> None:
        assert not os.access(folder, os.W_OK)
        with LocalBackend.open(folder, fingerprint="model") as backend:
            with backend.read(parse_filter({"lang": "en"})) as view:
                assert (len(view), len(view.candidates(plan(), 5).keys[0])) == (49, 5)
            for change in (lambda: put(backend, doc("new")), backend.compact):
                with pytest.raises(ReadOnlyError, match=re.escape(str(folder))):
                    change()
        with pytest.raises(ReadOnlyError):
            LocalBackend.create(folder / "inner", SPECS, fingerprint="model")

    before = everything(folder)
    with read_only(folder):
        as_nobody(use)
    assert everything(folder) == before


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX users")
def test_a_read_only_copy_of_a_killed_writers_index(folder: Path) -> None:
    """Its last commits lie in the WAL: they are read, or the reader is told; they are never silently left out."""
    whole, part = folder.with_name("whole"), folder.with_name("part")
    with LocalBackend.open(folder) as backend:
        put(backend, doc("last"))
        for copy in (whole, part):  # the files as a kill leaves them now
            shutil.copytree(folder, copy)
    (part / "index.sqlite3-shm").unlink()
    assert (whole / "index.sqlite3-wal").stat().st_size

    def read(copy: Path) -> None:
        try:
            with LocalBackend.open(copy) as backend:
                assert backend.get(["last"]) == [doc("last")]
        except ReadOnlyError as error:
            if "open it once where it can be written" not in str(error):
                raise

    for copy in (whole, part):
        with read_only(copy):
            as_nobody(lambda copy=copy: read(copy))
        with LocalBackend.open(copy) as backend:
            assert backend.get(["last"])[0] is not None
