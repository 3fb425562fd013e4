"""Sources of an index that stay in step with their folders, loaders and iterables."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from index.conftest import Counting
from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import InputError, NotFoundError
from palmette.index import sync as syncing
from palmette.index.copies import update_copy

FEW = {"tokens": 20}


def section(name: str, number: int) -> str:
    return f"## {name} {number}\n\nThe {name} number {number} sings at night and eats by day.\n\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def encoder() -> Counting:
    return Counting(16)


@pytest.fixture
def index(place: Callable[[], str | Path], encoder: Counting) -> Iterator[Index]:
    with Index.create(place(), SpaceModel.untrained(encoder), passages=FEW) as made:
        yield made


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    for name in ("owl", "hen", "fox"):
        write(folder, **{f"{name}_md": "".join(section(name, n) for n in range(4))})
    write(folder, sub__ant_txt="The ant is small.")
    return folder


def holds(index: Index, folder: Path, source: str) -> bool:
    """Whether an index has exactly the files of a folder under a source's name."""
    files = {
        f"{source}/{path.relative_to(folder).as_posix()}": path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {one.key: one.text for one in index.documents() if one.key.startswith(f"{source}/")} == files


def test_a_folder_is_brought_up_to_date(index: Index, encoder: Counting, notes: Path) -> None:
    index.add([Document("mine", "Nobody touches this."), Document("handbook/fox.md", "This neither.")])
    first = index.sync(notes, source="handbook")
    assert sorted(first.added) == ["handbook/hen.md", "handbook/owl.md", "handbook/sub/ant.txt"]
    assert first.skipped == [("handbook/fox.md", first.skipped[0][1])]
    assert "added by itself" in first.skipped[0][1]
    assert first.encoded == 9
    index.delete(["handbook/fox.md"])
    assert index.sync(notes, source="handbook").added == ["handbook/fox.md"]
    assert holds(index, notes, "handbook")
    encoder.texts = 0
    again = index.sync(notes, source="handbook")
    assert (again.added, again.changed, again.removed, again.unchanged, encoder.texts) == ([], [], [], 4, 0)

    (notes / "owl.md").write_text(section("newt", 9) + (notes / "owl.md").read_text())  # every passage moves
    (notes / "hen.md").rename(notes / "sub" / "bird.md")
    (notes / "sub" / "ant.txt").unlink()
    write(notes, bee_md=section("bee", 1))
    report = index.sync(notes, source="handbook")
    assert (report.added, report.changed) == (["handbook/bee.md", "handbook/sub/bird.md"], ["handbook/owl.md"])
    assert sorted(report.removed) == ["handbook/hen.md", "handbook/sub/ant.txt"]
    assert (report.encoded, encoder.texts) == (2, 2), "one new passage in each of two files"
    assert holds(index, notes, "handbook")
    assert index.get(["mine"])[0].text == "Nobody touches this."
    hit = index.search("which hen number 2 sings?", 1)[0]
    assert (hit.id, hit.document.metadata["source"]) == ("handbook/sub/bird.md", "sub/bird.md")
    index.verify()


def test_sources_of_one_index_do_not_meet(index: Index, tmp_path: Path) -> None:
    write(tmp_path, one__docs__index_md="The owl.", two__docs__index_md="The hen.")
    index.sync(tmp_path / "one" / "docs", source="one")
    index.sync(tmp_path / "two" / "docs", source="two")
    assert {one.key: one.text for one in index.documents()} == {"one/index.md": "The owl.", "two/index.md": "The hen."}
    shutil.rmtree(tmp_path / "two" / "docs")
    with pytest.raises(NotFoundError, match="no file or folder"):
        index.sync(tmp_path / "two" / "docs", source="two")
    assert len(index) == 2
    (tmp_path / "two" / "docs").mkdir()
    assert index.sync(tmp_path / "two" / "docs", source="two").removed == ["two/index.md"]
    assert [one.key for one in index.documents()] == ["one/index.md"]


def test_a_copy_knows_the_folders_of_its_sources(
    index: Index, place: Callable[[], str | Path], notes: Path, tmp_path: Path
) -> None:
    index.sync(notes)
    write(tmp_path, other__notes__owl_md="Another owl.", wiki__ant_md="The ant.", other__wiki__ant_md="Another ant.")
    with index.copy_to(place()) as copy:
        with pytest.raises(InputError, match="the source 'notes' of this index is"):
            copy.sync(tmp_path / "other" / "notes")
        assert copy.sync(notes).unchanged == 4
        index.sync(tmp_path / "wiki")
        update_copy(index.backend, copy.backend, copy.model)
        with pytest.raises(InputError, match="the source 'wiki' of this index is"):
            copy.sync(tmp_path / "other" / "wiki")
        assert copy.sync(tmp_path / "wiki").unchanged == 1


def test_names_that_are_no_text(index: Index, notes: Path, tmp_path: Path) -> None:
    """A folder may lie in one whose name is no UTF-8; a source, whose name begins its ids, needs a name that is."""
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(notes, odd / "notes")
    assert len(index.sync(odd / "notes").added) == index.sync(odd / "notes").unchanged == 4
    with pytest.raises(InputError, match="a source needs a name in UTF-8"):
        index.sync(odd)
    assert len(index.sync(odd, source="other").added) == 4


def test_what_cannot_be_read_stays_as_it_was(index: Index, notes: Path) -> None:
    write(notes, data_jsonl='{"id": "1", "text": "The bee."}\n{"id": "2", "text": "The cow."}\n')
    index.sync(notes)
    before = {one.key: one.text for one in index.documents()}
    assert {"notes/owl.md", "notes/data.jsonl#1", "notes/data.jsonl#2"} <= before.keys()
    (notes / "owl.md").write_bytes(b"\0\1\2\0")
    (notes / "data.jsonl").write_text("no JSON\n")
    report = index.sync(notes)
    assert {Path(path).name for path, _ in report.skipped} == {"owl.md", "data.jsonl"}
    assert (report.removed, {one.key: one.text for one in index.documents()}) == ([], before)
    (notes / "owl.md").unlink()
    assert index.sync(notes, exclude=["sub/"]).removed == ["notes/owl.md", "notes/sub/ant.txt"]
    assert sorted(index.sync(notes, include=["*.md"]).removed) == ["notes/data.jsonl#1", "notes/data.jsonl#2"]


def test_iterables_and_loaders(index: Index, notes: Path) -> None:
    given = [Document("a", "The owl."), Document("b", "The hen.")]
    assert index.sync(given, source="db").added == ["a", "b"]
    report = index.sync([Document("a", "The owl sings."), {"id": "c", "text": "The fox."}, ""], source="db")
    assert (report.changed, report.added, report.removed) == (["a"], ["c"], ["b"])
    assert report.skipped[0][0] == "document 2"
    for call in (lambda: index.sync(given), lambda: index.sync(given, source=" "), lambda: index.sync(3, source="x")):
        with pytest.raises(InputError, match="source"):
            call()


def test_frameworks_loaders(index: Index, encoder: Counting, notes: Path) -> None:
    pytest.importorskip("llama_index.core")
    from langchain_core.document_loaders import BaseLoader
    from langchain_core.documents import Document as Loaded
    from llama_index.core import SimpleDirectoryReader

    class Loader(BaseLoader):
        def lazy_load(self) -> Iterator[Loaded]:
            for path in sorted(notes.rglob("*.*")):
                yield Loaded(page_content=path.read_text(), metadata={"source": str(path)})

    def reader() -> Any:
        return SimpleDirectoryReader(str(notes), recursive=True)

    for name, make in (("langchain", Loader), ("llama", reader)):
        assert len(index.sync(make(), source=name).added) == 4
        encoder.texts = 0
        again = index.sync(make(), source=name)
        assert (again.unchanged, again.added, again.removed, encoder.texts) == (4, [], [], 0)
    (notes / "owl.md").write_text("Short now.")
    for name, make in (("langchain", Loader), ("llama", reader)):
        report = index.sync(make(), source=name)
        assert (len(report.changed), report.unchanged) == (1, 3)


def test_tenants_have_sources_of_their_own(place: Callable[[], str | Path], notes: Path) -> None:
    with Index.create(place(), SpaceModel.untrained(FakeEncoder(16)), tenant="who", passages=FEW) as index:
        for who in ("ada", "bob"):
            mine = index.filtered({"who": who})
            assert len(mine.sync(notes, source="docs", metadata={"who": who}).added) == 4
            assert mine.sync(notes, source="docs", metadata={"who": who}).unchanged == 4
        assert (len(index), len(index.filtered({"who": "ada"}))) == (8, 4)
        (notes / "owl.md").unlink()
        assert index.filtered({"who": "ada"}).sync(notes, source="docs", metadata={"who": "ada"}).removed == [
            "docs/owl.md"
        ]
        assert len(index.filtered({"who": "bob"})) == 4


def state(index: Index) -> dict[str, str]:
    """Texts of whole documents, each checked to be the sum of its passages."""
    found = {}
    with index.backend.read() as view:
        for document in index.documents():
            parts = view.documents(view.keys_of([document.key])[document.key])
            assert "".join("".join(part.text for part in parts).split()) == "".join(document.text.split())
            found[document.key] = document.text
    return found


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(8, 200))]
)
def test_a_kill_leaves_every_document_whole(
    seed: int, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync is killed at any moment: each document is as before or as after, others untouched."""
    monkeypatch.setattr(syncing, "DOCUMENTS_PER_COMMIT", 2)
    model, draw = SpaceModel.untrained(FakeEncoder(16)), random.Random(seed)
    with Index.create(tmp_path / "index", model, passages=FEW) as index:
        index.add([Document("mine", "Nobody touches this.")])
        index.sync(notes, source="s", progress=False)
        before = state(index)
    for name in ("owl", "fox"):
        write(notes, **{f"{name}_md": "".join(section(name, n) for n in range(2, 9))})
    (notes / "hen.md").rename(notes / "bird.md")
    (notes / "sub" / "ant.txt").unlink()
    write(notes, **{f"new{n}_md": section("newt", n) for n in range(3)})
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0, 0.08))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            with Index.open(tmp_path / "index", model) as index:
                index.sync(notes, source="s", progress=False)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    with Index.open(tmp_path / "index", model, verify="full") as index:
        found = state(index)
        after = {f"s/{path.relative_to(notes).as_posix()}": path.read_text() for path in notes.rglob("*.*")}
        after["mine"] = before["mine"]
        assert all(text in (before.get(id), after.get(id)) for id, text in found.items())
        assert all(id in found for id in before.keys() & after.keys())
        index.sync(notes, source="s", progress=False)
        assert state(index) == after
