"""Calls for questions: none is paid in vain, none is waited for without an end, and nobody's files are replaced."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from learning.conftest import ChatServer, animal_of, animals
from palmette import Document, FakeEncoder, Index, SpaceModel, load_data
from palmette.cli import main
from palmette.errors import ConfigError, DuplicateIdError, InputError, PalmetteError
from palmette.learning.calls import AnswerLog, LoggedAnswer, key_of
from palmette.learning.questions import estimate_questions, write_questions
from palmette.machine import endpoint
from palmette.machine.llm import LLMError, OpenAI

ONE: dict[str, Any] = {"kinds": ("question",), "count": 1, "encoder": "fake:32"}
PLAIN: dict[str, Any] = {"kinds": ("question",), "count": 1, "round_trip": 0}


class Counting:
    """A function that counts its prompts."""

    def __init__(self) -> None:
        self.prompts = Counter[str]()

    def __call__(self, prompt: str) -> str:
        self.prompts[prompt] += 1
        return f"Where does the {animal_of(prompt)} live, number {len(self.prompts)}?"


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "queries.jsonl.gz", "qrels/train.tsv"])
def test_data_of_others_is_not_replaced(tmp_path: Path, name: str) -> None:
    llm, out = Counting(), tmp_path / "orchard"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    for ask in (partial(write_questions, animals(), llm, out), partial(estimate_questions, animals(), out, llm)):
        with pytest.raises(ConfigError, match=r"orchard holds .*Name a new folder"):
            ask(**PLAIN)
    assert [path.read_text() for path in out.rglob("*") if path.is_file()] == ["mine"]
    assert not llm.prompts


def test_no_answer_is_read_as_a_document(tmp_path: Path) -> None:
    llm, docs = Counting(), tmp_path / "docs"
    docs.mkdir()
    (docs / "owl.txt").write_text("The owl lives in house number 7.")
    (tmp_path / "link").symlink_to(docs)
    for out in (docs, docs / "asked", tmp_path / "link" / "asked", docs / ".." / "docs" / "asked"):
        with pytest.raises(ConfigError, match="Name a folder outside"):
            write_questions(docs, llm, out, **PLAIN)
    assert write_questions(str(docs), llm, tmp_path / "docs2", **PLAIN)[1].kept == 1
    assert len(llm.prompts) == 1


@pytest.mark.parametrize("name", ["answers.jsonl", "corpus.jsonl", "queries.jsonl", "qrels/train.tsv"])
def test_a_folder_in_place_of_a_file_and_the_other_way_round(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    llm = Counting()
    with pytest.raises(PalmetteError, match=name.partition("/")[0]):
        write_questions(animals(2), llm, tmp_path, **PLAIN)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="is a file|cannot be made"):
            write_questions(animals(2), llm, out, **PLAIN)
    assert not llm.prompts


def test_equal_passages_share_a_call(tmp_path: Path) -> None:
    llm = Counting()
    documents = [*animals(2), *(Document(f"copy{n}", animals(1)[0].text) for n in range(4))]
    data, report = write_questions(documents, llm, tmp_path, **PLAIN)
    assert set(llm.prompts.values()) == {1}
    assert (report.calls, report.kept, report.repeated) == (2, 2, 0)
    judged = sorted(data.qrels["train"].values(), key=len)
    assert [sorted(grades) for grades in judged] == [["cat"], ["copy0", "copy1", "copy2", "copy3", "owl"]]
    assert estimate_questions(documents, tmp_path, llm, kinds=("question",), count=1).calls == 0


LONG = "\n\n".join(f"# Part {n}\n\n" + f"The owl sings in tree {n}. " * 120 for n in range(5))


@pytest.mark.parametrize(
    ("documents", "error", "words"),
    [
        ([Document("a", LONG), Document("a#1", "The cat sleeps.")], DuplicateIdError, "'a#1' is there twice"),
        ([Document("a", "The owl sings."), Document("a", "The cat sleeps.")], DuplicateIdError, "two contents"),
        ([Document("a\tb", "The owl sings.")], InputError, r"'a\\tb' cannot be written"),
        ([Document("a\nb", "The owl sings.")], InputError, "cannot be written"),
        ([Document(" a", "The owl sings.")], InputError, "cannot be written"),
        ([Document("a\ud83d", "The owl sings.")], InputError, "cannot be written"),
        ([Document("a", "The owl sings.", {"day": date(2020, 1, 1)})], InputError, "JSON values only"),
    ],
)
def test_documents_are_checked_before_they_are_paid_for(
    tmp_path: Path, documents: list[Document], error: type[Exception], words: str
) -> None:
    llm = Counting()
    with pytest.raises(error, match=words):
        write_questions(documents, llm, tmp_path, **PLAIN)
    assert not llm.prompts


def test_halves_of_surrogate_pairs_leave_the_folder_readable(tmp_path: Path) -> None:
    documents = [Document("owl", "The owl lives \ud83d here."), Document("cat", "The cat lives there.")]
    answers = {"owl": '{"questions": ["Who \\ud83d?", "Who hoots?"]}', "cat": '{"questions": ["Wer \\ud83d"]}'}
    for _ in range(2):  # the second reads the log
        data, _ = write_questions(documents, lambda prompt: answers[animal_of(prompt)], tmp_path, **PLAIN)
        assert list(data.queries.values()) == ["Who hoots?"]
    again = load_data(tmp_path, dev_fraction=0.0)
    assert (again.queries, again.qrels) == (data.queries, data.qrels)
    with AnswerLog(tmp_path / "log.jsonl") as log:
        log.add(LoggedAnswer("a", "\ud83d"))
    for path in tmp_path.rglob("*.jsonl"):
        path.read_bytes().decode()
    with AnswerLog(tmp_path / "log.jsonl") as log:
        assert log.answers["a"].text == "\ud83d"


INTERRUPTED = """
import sys, threading, time
from palmette.cli import main
from palmette.learning.questions import write_questions
out, documents, llm = sys.argv[1:]
if llm == "function":
    write_questions(documents, lambda prompt: time.sleep(600), out, kinds=("question",), round_trip=0)
sys.exit(main(["ask", documents, "--llm", llm, "--out", out, "--kinds", "question", "--round-trip", "0", "--quiet"]))
"""


@pytest.mark.parametrize("llm", ["openai:small", "function"])
def test_an_interruption_ends_the_program(server: ChatServer, tmp_path: Path, llm: str) -> None:
    silent, whole, answered = threading.Event(), server.reply, 2

    def reply(body: dict[str, Any]) -> Any:
        if len(server.bodies) > answered:
            silent.wait(60)
        return whole(body)

    server.reply = reply
    documents = tmp_path / "animals.jsonl"
    documents.write_text("".join(json.dumps({"id": animal.id, "text": animal.text}) + "\n" for animal in animals()))
    log = tmp_path / "out" / "answers.jsonl"
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(log.parent), str(documents), llm])
    try:
        end = time.monotonic() + 60
        lines = answered if llm != "function" else 0
        while not log.exists() or log.read_bytes().count(b"\n") < lines or (lines and len(server.bodies) < 6):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in (130, -signal.SIGINT)
        assert log.read_bytes().count(b"\n") == lines, "answers that arrived are kept"
    finally:
        process.kill()
        silent.set()


def test_a_model_that_is_stopped_sends_nothing_more(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.2)
    model, whole = OpenAI("small"), server.reply
    server.reply = lambda body: (503, {}, {})
    failed = list[str]()

    def call() -> None:
        with pytest.raises(LLMError) as caught:
            model.complete("The owl sings.", {})
        failed.append(str(caught.value))

    thread = threading.Thread(target=call)
    thread.start()
    while not server.bodies:
        time.sleep(0.01)
    model.stop()
    thread.join(60)
    assert "given up" in failed[0]
    assert len(server.bodies) <= 2
    server.reply = whole
    assert "owl" in model.complete("The owl sings.", {}).text, "later calls are made as ever"


def test_answers_of_an_earlier_version_are_known() -> None:
    assert key_of("small", "Where?") == "55d2f6cc1021d81106c4f6c02e2a2458"


@pytest.mark.parametrize(("status", "runs"), [(400, 2), (403, 1)])  # a first call with 403 has a wrong key
def test_a_passage_that_the_server_does_not_take_spoils_no_run(
    server: ChatServer, tmp_path: Path, status: int, runs: int
) -> None:
    whole = server.reply
    server.reply = lambda body: (status, {}, {}) if animal_of(server.prompt(body)) == "frog" else whole(body)
    for reused in (0, 9)[:runs]:
        _, report = write_questions(animals(), "openai:small", tmp_path, concurrency=1, **ONE)
        assert (report.kept, report.failed, report.left, report.reused) == (9, 1, 1, reused)
        assert len(report.errors) == 1
    server.reply = whole
    assert write_questions(animals(), "openai:small", tmp_path, **ONE)[1].kept == 10


def test_a_model_that_always_fails_is_not_asked_for_ever(tmp_path: Path) -> None:
    llm = Counting()

    def broken(prompt: str) -> str:
        llm(prompt)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_questions(animals(), broken, tmp_path, concurrency=3, **PLAIN)
    assert llm.prompts.total() <= 5
    with pytest.raises(ValueError, match="broken"):
        write_questions(animals(2), broken, tmp_path, concurrency=4, **PLAIN)


def test_a_wrong_key_ends_a_run_at_once(server: ChatServer, tmp_path: Path) -> None:
    write_questions(animals(2), "openai:small", tmp_path, **ONE)
    server.bodies.clear()
    server.reply = lambda body: (401, {}, b"<html>")
    with pytest.raises(LLMError, match="answered 401"):
        write_questions(animals(), "openai:small", tmp_path, concurrency=1, **ONE)
    assert len(server.bodies) == 1


def test_a_server_that_went_away_is_given_up(server: ChatServer, tmp_path: Path) -> None:
    write_questions(animals(2), "openai:small", tmp_path, **ONE)
    server.reply = lambda body: (503, {}, {})
    _, report = write_questions(animals(30), "openai:small", tmp_path, concurrency=1, **ONE)
    assert (report.kept, report.reused, report.failed, report.left) == (2, 2, 8, 28)
    assert "8 calls in a row failed" in report.errors[-1]


def test_questions_are_deleted_by_their_judgements(tmp_path: Path) -> None:
    """As docs/learn.md says."""
    write_questions(animals(), Counting(), tmp_path, **PLAIN)
    path = tmp_path / "qrels" / "train.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-3]) + "\n")
    data = load_data(tmp_path, dev_fraction=0.0)
    assert len(data.qrels["train"]) == 7
    assert SpaceModel.fit(data, encoder="fake:32", progress=False).record.pairs > 0
    queries = tmp_path / "queries.jsonl"
    queries.write_text("\n".join(queries.read_text().splitlines()[:-3]) + "\n")
    assert load_data(tmp_path, dev_fraction=0.0).qrels == data.qrels
    write_questions(animals(), Counting(), tmp_path, **PLAIN)
    assert path.read_text().splitlines() == lines, "a further run writes all anew"


def test_another_lambda_has_its_own_answers(tmp_path: Path) -> None:
    for number in (1, 2):
        makers: dict[int, Any] = {1: lambda prompt: "Who is one?", 2: lambda prompt: "Who is two?"}
        data, report = write_questions(animals(1), makers[number], tmp_path, **PLAIN)
        assert (report.calls, report.reused) == (1, 0)
    assert list(data.queries.values()) == ["Who is two?"]


def test_an_index_takes_the_questions_about_it(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "index"
    Index.build(animals(), SpaceModel.untrained(FakeEncoder(32)), path, progress=False).close()
    how = ["--llm", "openai:m", "--kinds", "question", "--round-trip", "0", "--encoder", "fake:32", "--quiet", "--add"]
    assert main(["ask", str(path), *how, "--out", str(tmp_path / "asked")]) == 0
    assert f"10 passages of {path} are found by the words of their questions" in " ".join(
        capsys.readouterr().out.split()
    )
    with Index.open(path) as index:
        asked = {stored.document.key: stored.questions for stored in index.backend.scan_stored()}
    assert len(asked) == 10
    assert all(questions == (f"Where does the {id} live?",) for id, questions in asked.items())
    (tmp_path / "docs").mkdir()
    assert main(["ask", str(tmp_path / "docs"), *how, "--out", str(tmp_path / "other")]) == 1
    assert "is no index" in " ".join(capsys.readouterr().err.split())
