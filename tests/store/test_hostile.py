"""What a stranger may put into an index folder with every sum right: refused by name, before a loop or a query runs."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette.errors import CorruptIndexError, PalmetteError, StoreError
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import TABLES, bounded, check_schema, connect
from palmette.store.local.folder import json_digest
from support import hostile
from support.effort import little_work
from support.forks import in_child
from support.stores import SPECS, delete, doc, plan, put, state_of


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "index"
    with LocalBackend.create(path, SPECS, fingerprint="model") as backend:
        put(backend, *(doc(f"d{i}", f"red cat {i} {'owl' if i % 3 else 'fox'} sings", n=i) for i in range(40)))
        delete(backend, "d3")
        state_of(backend)  # loops are compiled
    return path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "index")
    (tmp_path / "victim").write_text("precious")
    return tmp_path / "index"


def use(folder: Path, verify: Any = "fast") -> None:
    """Search every way, read, write and merge."""
    with LocalBackend.open(folder, verify=verify) as backend:
        with backend.read() as view:
            for text in ("red cat", '"red cat" 7', "owl sings", "fox 12", "zzz"):
                view.words(text, 5)
                view.words(text, 0, only=view.keys())
            view.candidates(plan(), 5)
            view.ragged("sentences", view.keys())
        list(backend.scan())
        put(backend, doc("new"))
        backend.compact()


# -- arrays that steer loops --------------------------------------------------------------------------------


def words(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Change an array of the postings."""

    def harm(folder: Path) -> None:
        path = next(folder.glob(f"segments/*/{name}.npy"))
        hostile.write_array(path, change(np.load(path)))
        hostile.seal(folder)

    return harm


def last(value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[-1] = np.array(value % 2**64, np.uint64).astype(array.dtype)
        return array

    return change


def everywhere(value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, np.array(value % 2**64, np.uint64).astype(array.dtype))


ROW = 1 << 6
ARRAYS: dict[str, Callable[[Path], None]] = {
    "a hit beyond the documents": words("words-hits", lambda a: a + np.uint32(40 * ROW)),
    "hits far beyond": words("words-hits", everywhere(2**32 - 1)),
    "hits that repeat": words("words-hits", everywhere(5 * ROW + 1)),
    "hits that fall": words("words-hits", lambda a: a[::-1].copy()),
    "hits of one document beyond": words("words-once_hits", everywhere(2**32 - 1)),
    "heads that fall": words("words-heads", lambda a: a[::-1].copy()),
    "heads beyond": words("words-heads", last(10**9)),
    "negative heads": words("words-once_heads", lambda a: a - 5),
    "bases beyond": words("words-bases", last(2**62)),
    "starts beyond": words("words-starts", everywhere(2**32 - 1)),
    "negative lengths": words("words-lengths", everywhere(-1)),
    "few lengths": words("words-lengths", lambda a: a[:3]),
    "no lengths": words("words-lengths", lambda a: a[:0]),
    "lengths in rows": words("words-lengths", lambda a: a[:, None]),
    "keys that fall": words("keys", lambda a: a[::-1].copy()),
    "equal keys": words("keys", everywhere(7)),
    "negative keys": words("keys", lambda a: a - 100),
    "keys beyond": words("keys", last(2**62)),
    "sentences that fall": words("sentences.starts", lambda a: a[::-1].copy()),
    "sentences beyond": words("sentences.starts", last(10**9)),
}
LATER = ("a hit beyond the documents", "hits", "starts")
"""What is found when a word is looked up, or segments are merged."""


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("verify", ["fast", False])
def test_arrays_that_steer_loops(name: str, verify: Any, folder: Path) -> None:
    """In a child: some of these ended the process."""
    ARRAYS[name](folder)

    def work() -> None:
        if not name.startswith(LATER):
            with pytest.raises(CorruptIndexError, match="is damaged"):
                LocalBackend.open(folder, verify=verify)
        with pytest.raises(CorruptIndexError, match="is damaged"):
            use(folder, verify)

    in_child(work)


def test_damaged_postings_are_not_merged_into_new_ones(folder: Path) -> None:
    """A merge would give them sums of their own, and the damage would be gone for good."""
    ARRAYS["hits that fall"](folder)
    with LocalBackend.open(folder) as backend:
        with pytest.raises(CorruptIndexError, match="are not rising rows of its 40 documents"):
            backend.compact()
        with pytest.raises(CorruptIndexError, match="are not rising rows"):
            put(backend, *(doc(f"new{n}") for n in range(40)))  # so many rows that the segment before joins them
        assert len(list(backend.scan())) == 39


def test_segments_that_overlap(folder: Path) -> None:
    with LocalBackend.open(folder) as backend:
        put(backend, doc("late"))
    with closing(connect(folder / "index.sqlite3", "mode=rw")) as connection:
        rows = connection.execute("SELECT name, count, files FROM segments ORDER BY position DESC").fetchall()
        connection.execute("DELETE FROM segments")
        connection.executemany("INSERT INTO segments(name, count, files) VALUES (?, ?, ?)", rows)
    hostile.seal(folder)
    with pytest.raises(CorruptIndexError, match=r"keys\.npy is damaged: expected keys above"):
        LocalBackend.open(folder, verify=False)


# -- the schema ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", dict.fromkeys(hostile.SCHEMAS))
def test_a_schema_that_is_not_ours(statement: str, folder: Path) -> None:
    """Refused before a table is read: a view in its place could go on for ever."""
    with closing(hostile.raw(folder)) as connection:
        connection.execute(statement).fetchall()
    for verify in ("fast", False):
        with little_work(1), pytest.raises(CorruptIndexError, match="its schema has"):
            LocalBackend.open(folder, verify=verify)
    with closing(connect(folder / "index.sqlite3", "mode=rw")) as connection:
        assert len(TABLES) == 5
        with pytest.raises(CorruptIndexError):
            check_schema(connection, folder)


def test_a_query_that_runs_on_ends(folder: Path) -> None:
    path = folder / "index.sqlite3"
    with closing(connect(path, "mode=rw")) as connection:
        refused = pytest.raises(CorruptIndexError, match="longer than its .* bytes explain")
        with little_work(2), refused, bounded(connection, path):
            connection.execute(f"SELECT count(*) FROM ({hostile.ENDLESS} FROM n)").fetchall()
        assert connection.execute("SELECT count(*) FROM documents").fetchall() == [(39,)]


@pytest.mark.parametrize("seed", range(8))
def test_pages_in_a_knot(seed: int, folder: Path) -> None:
    """A page whose children are all one page, several levels deep: five pages, billions of rows."""
    draw = random.Random(seed)
    while "levels" not in hostile.knot_pages(folder, draw):
        shutil.rmtree(folder)
        return
    for verify in ("fast", False):
        with little_work(2), pytest.raises(PalmetteError, match="longer than its .* bytes explain|ptrmap"):
            LocalBackend.open(folder, verify=verify).verify()


# -- JSON, NULL, bytes --------------------------------------------------------------------------------------

NOTES = [
    '{"generation": Infinity, "digest": "x"}',
    '{"generation": 1e999, "digest": "x"}',
    hostile.NESTED,
    "[1]",
    "null",
]
NOTES += ['{"generation": true, "digest": "x"}', '{"generation": 1, "digest": null}', '{"a":' * 100_000, " " * 100_000]


@pytest.mark.parametrize("text", NOTES, ids=range(len(NOTES)))
@pytest.mark.parametrize("name", ["commit.json", "manifest.json"])
def test_notes_that_are_none(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    with pytest.raises(PalmetteError):
        LocalBackend.open(folder)


COLUMNS = [(table, column) for table, columns in hostile.COLUMNS_OF.items() for column in columns]


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_values_of_other_types(table: str, column: str, folder: Path) -> None:
    """NULL, bytes, text for a number and a number for text, wherever SQLite would not store them itself."""
    for seed in range(6):
        copy = folder.with_name(f"copy{seed}")
        shutil.copytree(folder, copy)
        hostile.set_values(copy, table, column, [None, b"\xff", "x", 1.5, "[" * 1000, 2**62][seed], "")
        for verify in ("fast", False):
            with suppress(PalmetteError):
                use(copy, verify)


# -- files that are none ------------------------------------------------------------------------------------

PLACES = [*hostile.FILES, "index.sqlite3", "segments/*/keys.npy", "segments/*/words-hits.npy"]


def place(folder: Path, name: str) -> Path:
    return next(folder.glob(name)) if "*" in name else folder / name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_pipes_and_links_are_refused(name: str, kind: str, folder: Path) -> None:
    """A pipe without a writer would be waited for."""
    path = place(folder, name)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(folder.parent / "victim")
    told = "a named pipe" if kind == "pipe" else "a symbolic link"
    with pytest.raises(CorruptIndexError, match=rf"{path.name}.* is {told}|is {told}"):
        LocalBackend.open(folder)
    assert (folder.parent / "victim").read_text() == "precious"


@pytest.mark.parametrize("name", PLACES)
def test_another_name_of_a_file_is_not_written_through(name: str, folder: Path) -> None:
    """A hard link cannot be told from the file itself, but by the count of its names."""
    path, victim = place(folder, name), folder.parent / "victim"
    path.unlink(missing_ok=True)
    path.hardlink_to(victim)
    with suppress(StoreError):
        use(folder)
    assert victim.read_text() == "precious"
    if name in (".owner.json", "commit.json.tmp"):  # written anew, as a file of its own
        assert not path.exists()
        with LocalBackend.open(folder, verify="full") as backend:
            assert backend.get(["new"])[0]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """No use of a hostile folder may block."""
    with little_work(30):
        yield


def test_a_manifest_of_impossible_arrays(folder: Path) -> None:
    for shape in ([1e999], [10**9], [-1], ["x"], [True], 8, None):
        content = json.loads((folder / "manifest.json").read_text())
        content["arrays"][0]["shape"] = shape
        del content["digest"]
        (folder / "manifest.json").write_text(json.dumps({**content, "digest": json_digest(content)}))
        with pytest.raises(PalmetteError, match="array"):
            LocalBackend.open(folder)
