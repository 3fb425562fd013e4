"""Names of indexes, exchanged under open readers and services, and back; two indexes compared."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, Index
from palmette.cli import main
from palmette.errors import CorruptIndexError, InputError, NotFoundError, PalmetteError, StoreError
from palmette.evaluation.compare import ComparedQuestion, compare, read_questions
from palmette.service.alias import read_alias, restore_alias, set_alias
from support.services import running, until
from support.tiny import documents, pairs, space, tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Index.build(documents(), tree(), tmp_path / "docs-v1").close()
    newer = [Document(one.id, one.text.replace("sings", "dances"), one.metadata) for one in documents()]
    Index.build(newer, space(), tmp_path / "docs-v2").close()
    return tmp_path


def test_a_name_leads_to_an_index_and_back(folder: Path) -> None:
    name = folder / "docs"
    assert set_alias(name, folder / "docs-v1").former is None
    with Index.open(name) as first:
        assert first.path == name
        assert "sings" in first.search("red owl")[0].document.text
        assert set_alias(name, folder / "docs-v2").former == folder / "docs-v1"
        assert "sings" in first.search("red owl")[0].document.text, "who has it open stays"
        first.add([Document("x", "an addition")])
        with Index.open(name) as second:
            assert "dances" in second.search("red owl")[0].document.text
            assert "x" not in second
            assert "x" in first
    assert restore_alias(name).target == folder / "docs-v1"
    assert restore_alias(name).target == folder / "docs-v2"
    assert read_alias(name).former == folder / "docs-v1"
    assert set_alias(folder / "other", name).target == folder / "docs-v2", "a name of a name leads to the index"
    assert {path.name for path in folder.iterdir()} == {"docs", ".docs.former", "docs-v1", "docs-v2", "other"}
    assert (folder / "docs").readlink() == Path("docs-v2"), "the folder of all can be moved"


def test_a_name_never_leads_to_what_does_not_open(folder: Path) -> None:
    name = folder / "docs"
    set_alias(name, folder / "docs-v1")
    (folder / "empty").mkdir()
    Index.build(documents()[:3], tree(), folder / "docs-v3").close()
    (folder / "docs-v3" / "model" / "config.json").write_text("{}")
    segment = next((folder / "docs-v2" / "segments").rglob("*.npy"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    for target, kind in (
        ("nowhere", NotFoundError),
        ("empty", NotFoundError),
        ("docs-v2", CorruptIndexError),
        ("docs-v3", PalmetteError),
    ):
        with pytest.raises(kind):
            set_alias(name, folder / target)
    assert read_alias(name).target == folder / "docs-v1"
    with pytest.raises(InputError, match="is a folder, not a name: move it to docs-v1-v1"):
        set_alias(folder / "docs-v1", folder / "docs-v2")
    with pytest.raises(NotFoundError, match="there is no index before it"):
        restore_alias(name)
    with pytest.raises(NotFoundError, match="is no name of an index"):
        read_alias(folder / "docs-v1")


def test_services_and_readers_see_no_gap(folder: Path) -> None:
    name = folder / "docs"
    set_alias(name, folder / "docs-v1")
    stop, failures, seen = threading.Event(), list[str](), set[str]()

    def ask(search: Callable[[], str]) -> None:
        while not stop.is_set():
            try:
                seen.add(search())
            except Exception as error:
                failures.append(repr(error))

    with running(name) as service:

        def by_service() -> str:
            reply = service.post("search", query="where does the red owl live?", k=1)
            assert reply.status_code == 200, reply.text
            return str(reply.json()["results"][0]["hits"][0]["text"])

        def by_opening() -> str:
            with Index.open(name) as index:
                return index.search("where does the red owl live?", 1)[0].document.text

        threads = [threading.Thread(target=ask, args=(one,)) for one in (by_service, by_service, by_opening)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                for version, word in (("docs-v2", "dances"), ("docs-v1", "sings")):
                    set_alias(name, folder / version)
                    until(lambda word=word: word in by_service())
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert service.service.served["docs"].path == str(name)
    assert failures == []
    assert len(seen) == 2


def test_names_of_names_make_no_circle(folder: Path) -> None:
    name, middle, other = folder / "docs", folder / "middle", folder / "other"
    set_alias(name, folder / "docs-v1")
    middle.symlink_to("docs")  # by hand
    other.symlink_to("middle")
    assert set_alias(name, other).target == folder / "docs-v1"
    assert set_alias(middle, other).target == folder / "docs-v1"
    with Index.open(name) as index:
        assert len(index) == 48
    name.unlink()
    name.symlink_to("docs")
    for target in (name, folder / "docs"):
        with pytest.raises(PalmetteError, match=re.escape(str(name))):
            set_alias(folder / "new", target)
    with pytest.raises(NotFoundError, match="new"):
        set_alias(folder / "new", folder / "new")
    assert not (folder / "new").is_symlink()
    with pytest.raises(NotFoundError, match="there is no folder"):
        set_alias(folder / "nowhere" / "docs", folder / "docs-v1")


def test_a_name_is_moved_by_many_at_once(folder: Path) -> None:
    """The way back leads to another index than the name does, whoever was first."""
    name, targets = folder / "docs", [folder / "docs-v1", folder / "docs-v2"]
    for attempt in range(12):
        for path in folder.glob("*docs"):
            path.unlink()
        (folder / ".docs.former").unlink(missing_ok=True)
        before, after = targets[attempt % 2], targets[1 - attempt % 2]
        set_alias(name, before)
        barrier = threading.Barrier(4)

        def move(number: int, barrier: threading.Barrier = barrier, after: Path = after) -> None:
            barrier.wait()
            set_alias(name, after)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(move, range(4)))
        alias = read_alias(name)
        assert (alias.target, alias.former) == (after, before)


def test_what_a_killed_move_left_goes(folder: Path) -> None:
    left = folder / f".docs.{'0' * 32}.new"
    left.mkdir()
    (left / "docs").symlink_to("../docs-v1")
    set_alias(folder / "docs", folder / "docs-v1")
    assert {path.name for path in folder.iterdir()} == {"docs", "docs-v1", "docs-v2"}


def test_an_index_goes_while_it_is_compared(folder: Path) -> None:
    asked = [ComparedQuestion("where does the red owl live?", {"red-owl": 1})] * 3
    with Index.open(folder / "docs-v1") as old, Index.open(folder / "docs-v2") as new:
        assert compare(old, new, asked, 10**9).questions == 3
        (folder / "docs-v2").rename(folder / "elsewhere")
        with pytest.raises(StoreError, match="is no longer there: it was moved or deleted"):
            compare(old, new, asked)
        (folder / "docs-v1").rename(folder / "docs-v2")
        with pytest.raises(StoreError, match="holds another index than the one that was opened"):
            compare(new, old, asked)


def test_the_command_names_and_restores(folder: Path, capsys: Any) -> None:
    name = str(folder / "docs")
    assert main(["alias", name, str(folder / "docs-v1")]) == 0
    assert main(["alias", name, str(folder / "docs-v2")]) == 0
    capsys.readouterr()
    assert main(["alias", name, "--back", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"name": name, "index": str(folder / "docs-v1"), "before": str(folder / "docs-v2")}
    assert main(["alias", name]) == 0
    assert f"{name} leads to {folder / 'docs-v1'} (before: {folder / 'docs-v2'})" in capsys.readouterr().out
    assert main(["alias", name, "x", "--back"]) == 1
    assert main(["search", name, "red owl"]) == 0
    assert "red-owl" in capsys.readouterr().out


def test_two_indexes_are_compared(folder: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"query": question, "positive": text} for question, text in pairs()]
    file.write_text("\n".join(map(json.dumps, rows)))
    same = compare(*([Index.open(folder / "docs-v1")] * 2), read_questions(file))
    assert (same.questions, same.judged, same.overlap, same.same_first) == (48, 48, 1, 1)
    assert (same.wins, same.losses, list(same.changed)) == (0, 0, [])
    assert same.score[0] == same.score[1] > 0.5
    missing = [one for one in documents() if one.metadata["colour"] != "red"]
    with Index.build(documents(), tree()) as old, Index.build(missing, tree()) as new:
        result = compare(old, new, read_questions(file), 5)
        gone = [text for text, _ in pairs() if " red " in text]
        found = {q for q, text in pairs() if any(hit.document.text == text for hit in old.search(q, 5)) and q in gone}
        assert result.losses >= len(found) > 0
        assert result.score[1] < result.score[0]
        assert set(result.changed[:4]) <= {q for q, _ in pairs()}
        assert min(result.seconds) > 0
        ids = [ComparedQuestion("where does the red owl live?", {"red-owl": 2}, {})]
        assert compare(old, new, ids, 3).score == (1.0, 0.0)
        assert compare(new, old, ids, 3).wins == 1
        with pytest.raises(InputError, match="no question"):
            compare(old, new, [])
    text = tmp_path / "questions.txt"
    text.write_text("where does the red owl live?\n\nbees\n")
    words = ["compare", str(folder / "docs-v1"), str(folder / "docs-v2")]
    assert main([*words, str(text)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 questions: ")
    assert "judged" not in shown
    assert main([*words, str(file), "-k", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["judged"], facts["k"], len(facts["score"])) == (48, 3, 2)
    assert main([*words, str(file)]) == 0
    assert "48 judged" in capsys.readouterr().out
