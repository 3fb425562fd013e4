"""Backups of an index that is being written, and what is saved of a damaged one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from palmette import Document, Index
from palmette.cli import main
from palmette.errors import CheckpointError, CorruptIndexError, InputError, StoreError
from support import tiny
from support.stores import flip, spoil_page, sql


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Index.build(tiny.documents()[:30], tiny.tree(), tmp_path / "index", progress=False) as index:
        index.add([Document("long", "sings " * 2000, {"colour": "red"})])
    return tmp_path / "index"


def contents(path: Path) -> list[object]:
    with Index.open(path) as index:
        hits = index.search("where does the red owl live?", 8)
        return [*index.documents(), *((hit.id, hit.score) for hit in hits)]


def test_a_backup_is_one_state_of_an_index_that_is_written(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    with Index.open(folder) as index:
        with index.backend.write() as writer:  # open, and in the way of nobody
            writer.delete(["red-cat"])
            index.backup(tmp_path / "copy")
        index.compact()
        with pytest.raises(InputError, match="exists and is not an empty folder"):
            index.backup(tmp_path / "copy")
        with pytest.raises(StoreError, match="copy_to"):
            index.filtered({"colour": "red"}).backup(tmp_path / "part")
    assert contents(tmp_path / "copy") == before
    with Index.restore(tmp_path / "copy", tmp_path / "again") as index:
        index.add(["it can be written"])
    assert contents(tmp_path / "copy") == before
    sql(tmp_path / "copy", "UPDATE documents SET text = 'other' WHERE id = 'long'")
    with pytest.raises(CorruptIndexError, match="document 'long'"):
        Index.restore(tmp_path / "copy", tmp_path / "third")


DAMAGES: dict[str, tuple[Callable[[Path], object], int, int]] = {
    "an array": (lambda f: flip(next(f.glob("segments/*/adapted.npy")), -9), 31, 0),
    "the keys": (lambda f: flip(next(f.glob("segments/*/keys.npy")), -7), 31, 0),
    "a long text": (lambda f: spoil_page(f, "documents", "overflow", b"\xee"), 30, 1),
    "rows": (lambda f: spoil_page(f, "documents", "leaf", b"\xee"), 0, 2),
    "the manifest": (lambda f: (f / "manifest.json").unlink(), 31, 0),
    "the last commit": (lambda f: (f / "commit.json").write_text("{"), 31, 0),
}
"""How to damage an index, and how many documents are saved (0: most) and lost (2: some) of 31."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_whole_is_saved(damage: str, folder: Path, tmp_path: Path) -> None:
    harm, saved, lost = DAMAGES[damage]
    before = {document.key: document for document in contents(folder) if isinstance(document, Document)}
    harm(folder)
    left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CorruptIndexError, match="palmette repair"):
        Index.open(folder, verify="full")
    report = Index.repair(folder, tmp_path / "new")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == left
    assert report.documents == saved or (10 < report.documents < 31 and not saved)
    assert len(report.lost) == lost or lost == 2 < len(report.lost)
    assert report.documents + len(report.lost) == 31
    assert (report.encoded > 0) == (damage in ("an array", "the keys", "the manifest"))
    with Index.open(tmp_path / "new", verify="full") as index:
        found = {document.key: document for document in index.documents()}
    assert found == {key: document for key, document in before.items() if key not in report.lost}
    if damage == "an array":
        assert "adapted.npy is damaged" in report.damaged[0]


def test_sources_and_feedback_are_brought_over(folder: Path, tmp_path: Path) -> None:
    """A folder that was synced may be synced again from its own place, and from no other."""
    place, moved = tmp_path / "here" / "notes", tmp_path / "there" / "notes"
    for path in (place, moved):
        path.mkdir(parents=True)
        (path / "a.md").write_text("the first owl")
    with Index.open(folder) as index:
        index.sync(place, progress=False)
        index.feedback("owl", "notes/a.md", useful=True)
    spoil_page(folder, "documents", "overflow", b"\xee")
    assert Index.repair(folder, tmp_path / "new").lost == ["long"]
    with Index.open(tmp_path / "new", verify="full") as index:
        with pytest.raises(InputError, match="give this one a name of its own"):
            index.sync(moved, progress=False)
        assert index.sync(place, progress=False).unchanged == 1
        assert [vote.document for vote in index.feedback_log.votes()] == ["notes/a.md"]
    (folder / "feedback.sqlite3").write_bytes(b"no database" * 500)
    report = Index.repair(folder, tmp_path / "again")
    assert "feedback.sqlite3" in str(report.damaged)
    with Index.open(tmp_path / "again", verify="full") as index:
        assert index.feedback_log.votes() == []


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, new, again = (str(tmp_path / name) for name in ("copy", "new", "again"))
    assert main(["backup", str(folder), copy]) == 0
    spoil_page(folder, "documents", "overflow", b"\xee")
    assert main(["search", str(folder), "red owl"]) == 1
    assert "palmette repair" in capsys.readouterr().err
    assert main(["repair", str(folder), new, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["lost"]) == (30, ["long"])
    shutil.rmtree(folder / "model")
    with pytest.raises(CheckpointError, match="as model= or --model"):
        main(["repair", str(folder), again, "--debug"])
    assert main(["repair", str(folder), again, "--model", str(tmp_path / "copy" / "model")]) == 0
    assert "30 documents saved, 0 of them encoded" in (out := capsys.readouterr().out)
    assert "lost: long" in out
    shutil.rmtree(folder)
    assert main(["restore", copy, str(folder)]) == 0
    assert "31 documents restored" in capsys.readouterr().out


def test_a_collection_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folders are repaired, not collections"):
        Index.repair("qdrant://localhost:6333/docs", tmp_path / "out")
    assert not (tmp_path / "out").exists()
