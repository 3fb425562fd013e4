"""Feedback on hits: kept at once, shown and deleted by its rules, never another tenant's."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import CorruptIndexError, InputError, NotFoundError
from palmette.store.local.feedback import FEEDBACK
from support.hostile import knot
from support.stores import environment

MODEL = SpaceModel.untrained(FakeEncoder(32))
TEXTS = [Document(f"d{n}", f"text number {n}", {"t": "ab"[n % 2]}) for n in range(10)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    with Index.build(TEXTS, MODEL, tmp_path / "index", progress=False) as built:
        yield built


def test_votes_are_kept_with_the_index(index: Index, tmp_path: Path) -> None:
    assert index.feedback_log.votes() == []
    assert not (index.path / FEEDBACK).exists(), "no feedback, no file"
    index.feedback("which number?", "d3", useful=True, person="ada@example.org")
    index.feedback("which number?", "d4", useful=False)
    votes = index.feedback_log.votes()
    assert [(vote.query, vote.document, vote.useful) for vote in votes] == [
        ("which number?", "d3", True),
        ("which number?", "d4", False),
    ]
    assert b"ada@example.org" not in (index.path / FEEDBACK).read_bytes()
    assert len(votes[0].person) == 32
    index.backup(tmp_path / "backup")
    with Index.restore(tmp_path / "backup", tmp_path / "again") as again:
        assert again.feedback_log.votes() == votes
    with Index.open(index.path, MODEL, verify="full") as opened:
        assert opened.feedback_log.votes() == votes
    with Index.build(TEXTS, MODEL) as temporary:
        temporary.feedback("a", "d1", useful=True)
        assert len(temporary.feedback_log.votes()) == 1


def test_searches_are_recorded_where_that_is_turned_on(index: Index) -> None:
    log = index.feedback_log
    assert not log.record("a question", ["d1"])
    log.recording = True
    with Index.open(index.path, MODEL) as other:
        assert other.feedback_log.record("a question", ["d1", "d2"], person="ada")
    [search] = log.searches()
    assert (search.query, search.documents) == ("a question", ("d1", "d2"))
    log.recording = False
    assert not log.record("another", ["d1"])
    assert len(log.searches()) == 1
    with pytest.raises(InputError, match="recording must be True or False"):
        log.recording = "off"  # type: ignore[assignment]
    for query, ids in ((5, ["d1"]), ("q", "d1")):
        with pytest.raises(InputError, match=r"must be a str|a list of ids"):
            index.record_search(query, ids)  # type: ignore[arg-type]


def test_deleted_by_document_person_and_age(index: Index) -> None:
    log = index.feedback_log
    log.recording = True
    for n, person in enumerate(("ada", "bob", "ada", None)):
        index.feedback(f"question {n}", f"d{n}", useful=True, person=person)
        log.record(f"question {n}", [f"d{n}", "d9"], person=person)
    assert log.delete(person="eve") == 0
    assert log.delete(person="ada") == 4
    assert [vote.document for vote in log.votes()] == ["d1", "d3"]
    assert log.delete(document="d9") == 2
    assert log.delete(document="d1", before=time.time() - 60) == 0
    assert log.delete(before=time.time()) == 2
    assert log.votes() == log.searches() == []
    assert b"question" not in (index.path / FEEDBACK).read_bytes(), "deleted pages are overwritten"


def test_a_tenant_sees_and_deletes_its_own_feedback(index: Index) -> None:
    mine, other = index.filtered({"t": "a"}), index.filtered({"t": "b"})
    mine.feedback("my secret", "d2", useful=True)
    other.feedback("their secret", "d1", useful=True)
    assert [vote.query for vote in mine.feedback_log.votes()] == ["my secret"]
    assert len(index.feedback_log.votes()) == 2
    with pytest.raises(NotFoundError, match="no document 'd1'"):
        mine.feedback("my secret", "d1", useful=True)
    assert mine.feedback_log.delete(before=time.time() + 1) == 1
    assert [vote.query for vote in index.feedback_log.votes()] == ["their secret"]


def test_strange_files_are_refused(index: Index, tmp_path: Path) -> None:
    path = index.path / FEEDBACK
    index.feedback("q", "d1", useful=True)
    whole = path.read_bytes()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON votes BEGIN DELETE FROM votes; END")
    with pytest.raises(CorruptIndexError, match="other tables"):
        index.feedback("q", "d2", useful=True)
    path.write_bytes(b"no database at all" * 300)
    with pytest.raises(CorruptIndexError, match="damaged"):
        index.feedback_log.votes()
    path.unlink()
    (tmp_path / "foreign").write_bytes(whole)
    path.symlink_to(tmp_path / "foreign")
    with pytest.raises(CorruptIndexError, match="not a regular file"):
        index.feedback("q", "d2", useful=True)
    assert (tmp_path / "foreign").read_bytes() == whole
    assert index.search("text number 1", 1)[0].id == "d1", "searches do not need it"


WRITER = """
import sys
from palmette import FakeEncoder, Index, SpaceModel
with Index.open(sys.argv[1], SpaceModel.untrained(FakeEncoder(32)), verify=False) as index:
    for n in range(int(sys.argv[3])):
        index.feedback(f"{sys.argv[2]} asks {n}", "d1", useful=True)
        print(n, flush=True)
"""


MANY = [(2, 8, 10), pytest.param(4, 64, 20, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize(("processes", "threads", "each"), MANY)
def test_many_give_feedback_while_others_search(index: Index, processes: int, threads: int, each: int) -> None:
    words, paths = [sys.executable, "-c", WRITER, str(index.path)], environment()
    started = [
        subprocess.Popen([*words, f"p{n}", str(each)], stdout=subprocess.PIPE, env=paths) for n in range(processes)
    ]

    def give(name: str) -> None:
        for n in range(each):
            index.feedback(f"{name} asks {n}", "d2", useful=False)
            index.search("text number 3", 3)

    workers = [threading.Thread(target=give, args=(f"t{n}",)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [process.communicate() and process.returncode for process in started] == [0] * processes
    assert len({vote.query for vote in index.feedback_log.votes()}) == (processes + threads) * each


def test_killed_while_giving_feedback(index: Index) -> None:
    acknowledged = 0
    for round in range(5):
        command = [sys.executable, "-c", WRITER, str(index.path), f"p{round}", "100000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            for _ in range(3 + round):
                process.stdout.readline()
            process.kill()
            acknowledged += 3 + round + len(process.stdout.read().split("\n")) - 1
    votes = len(index.feedback_log.votes())
    assert acknowledged <= votes <= acknowledged + 5


def test_a_tenants_ids_are_stored_as_the_index_knows_them(tmp_path: Path) -> None:
    texts = [Document("1", f"text of {t}", {"t": t}) for t in "ab"]
    with Index.build(texts, MODEL, tmp_path / "index", tenant="t", progress=False) as index:
        a, b = (index.filtered({"t": t}) for t in "ab")
        index.feedback_log.recording = True
        a.feedback("which?", "1", useful=True)
        a.record_search("which?", ["1"])
        b.feedback("which?", "1", useful=False)
        assert [(vote.document, vote.useful) for vote in a.feedback_log.votes()] == [("1", True)]
        assert [search.documents for search in a.feedback_log.searches()] == [("1",)]
        whole = [(vote.document, vote.useful) for vote in index.feedback_log.votes()]
        assert whole == [("a/1", True), ("b/1", False)], "two documents, not one that is disputed"
        assert b.feedback_log.delete(document="1") == 1
        assert a.feedback_log.delete(document="1") == 2


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
def test_pipes_and_links_beside_the_file_are_not_waited_for(index: Index, end: str) -> None:
    index.feedback("which?", "d1", useful=True)
    beside = index.path / f"{FEEDBACK}{end}"
    mine = index.path.parent / "mine"
    mine.write_bytes(b"mine")
    for make in (lambda: os.mkfifo(beside), lambda: beside.symlink_to(mine), lambda: beside.hardlink_to(mine)):
        make()
        for call in (index.feedback_log.votes, lambda: index.feedback("which?", "d1", useful=True)):
            with pytest.raises(CorruptIndexError, match="named pipe|symbolic link|2 names"):
                call()
        beside.unlink()
    assert mine.read_bytes() == b"mine"
    assert len(index.feedback_log.votes()) == 1


@pytest.mark.parametrize("values", ["x'ff', 'd1', 1, '', ''", "'q', x'00', 1, '', ''", "'q', 'd1', 'yes', '', ''"])
def test_values_of_other_types_are_refused(index: Index, values: str) -> None:
    index.feedback("which?", "d1", useful=True)
    with sqlite3.connect(index.path / FEEDBACK) as database:
        columns = "time, scope, query, document, useful, person, run"
        database.execute(f"INSERT INTO votes ({columns}) VALUES (1, '', {values})")
    database.close()
    with pytest.raises(CorruptIndexError, match="other types"):
        index.feedback_log.votes()


def test_a_knot_of_pages_is_not_read_for_ever(tmp_path: Path) -> None:
    """Few pages that refer to each other make billions of votes."""
    with Index.build(TEXTS, MODEL, tmp_path / "index", progress=False) as index:
        for number in range(30):
            index.feedback(f"question {number}", "d1", useful=True)
    path = tmp_path / "index" / "feedback.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        [(root,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'votes'")
        [(pages,)] = database.execute("PRAGMA page_count")
    knot(path, root, pages, 4, random.Random(0))
    begun = time.process_time()
    with Index.open(tmp_path / "index") as index:
        for read in (index.feedback_log.votes, lambda: index.feedback_log.delete(before=0.0)):
            with pytest.raises(CorruptIndexError, match="is damaged"):
                read()
    assert Index.repair(tmp_path / "index", tmp_path / "new").documents == len(TEXTS)
    assert time.process_time() - begun < 10
