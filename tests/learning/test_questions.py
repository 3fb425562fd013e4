"""Questions that a language model writes: real clients against a server with scripted answers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from llama_index.core.llms import CustomLLM, LLMMetadata

from learning.conftest import ChatServer, animal_of, animals
from palmette import Index, SpaceModel, load_data
from palmette.cli import main
from palmette.errors import LockedError
from palmette.learning.calls import AnswerLog, LoggedAnswer
from palmette.learning.questions import estimate_questions, parse_questions, write_questions
from palmette.machine.llm import LLMError, ModelReply, OpenAI

ONE: dict[str, Any] = {"kinds": ("question",), "count": 1, "encoder": "fake:32"}


def test_pairs_of_a_server(server: ChatServer, tmp_path: Path) -> None:
    data, report = write_questions(animals(), "openai:small", tmp_path / "asked", **ONE)
    assert (report.calls, report.kept, report.reused, report.tokens) == (10, 10, 0, 500)
    assert {data.queries[q]: list(docs) for q, docs in data.qrels["train"].items()} == {
        f"Where does the {document.id} live?": [document.id] for document in animals()
    }
    again = load_data(tmp_path / "asked", dev_fraction=0.0)
    assert again.queries == data.queries
    assert [document.key for document in again.corpus] == [document.key for document in animals()]
    assert SpaceModel.fit(data, encoder="fake:32", progress=False).record.pairs > 0
    assert {header["authorization"] for header in server.headers} == {"Bearer sk-secret"}
    assert "sk-secret" not in "".join(path.read_text() for path in (tmp_path / "asked").rglob("*") if path.is_file())


def test_nothing_is_paid_twice(server: ChatServer, tmp_path: Path) -> None:
    for calls, left in ((4, 6), (3, 3), (9, 0)):
        _, report = write_questions(animals(), "openai:small", tmp_path, max_calls=calls, **ONE)
        assert report.left == left
    assert set(server.prompts.values()) == {1}
    assert report.kept == len(server.prompts) == 10
    assert estimate_questions(animals(), tmp_path, "openai:small", kinds=("question",), count=1).calls == 0
    write_questions(animals(), "openai:large", tmp_path, max_calls=1, **ONE)
    assert max(server.prompts.values()) == 2, "another model's answers are others"


def test_an_estimate_tells_the_calls(server: ChatServer, tmp_path: Path) -> None:
    estimate = estimate_questions(animals(), tmp_path, "openai:small", kinds=("question",), count=1)
    assert (estimate.passages, estimate.calls) == (10, 10)
    _, report = write_questions(animals(), lambda prompt: "Where?", tmp_path, concurrency=1, **ONE)
    assert 0 < report.tokens <= estimate.tokens


def test_a_server_that_fails_now_and_then(server: ChatServer, tmp_path: Path) -> None:
    whole = server.reply

    def moody(body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        turn = server.prompts[server.prompt(body)] - 1
        half = json.dumps(whole(body)[2]).encode()[:20]
        answers = (
            (429, {"retry-after": "0.01"}, {"error": {"message": "slow down"}}),
            (500, {}, b"<html>"),
            (200, {"content-length": "4000"}, half),  # hangs up in the middle
            (200, {}, {"choices": []}),
        )
        return answers[turn] if turn < len(answers) else whole(body)

    server.reply = moody
    _, report = write_questions(animals(3), "openai:small", tmp_path, **ONE)
    assert (report.kept, report.failed, set(server.prompts.values())) == (3, 0, {5})


def test_a_server_without_schemas(server: ChatServer, tmp_path: Path) -> None:
    whole = server.reply
    server.reply = lambda body: (400, {}, {"error": "response_format?"}) if "response_format" in body else whole(body)
    assert write_questions(animals(3), "openai:small", tmp_path, concurrency=1, **ONE)[1].kept == 3
    assert sum("response_format" in body for body in server.bodies) == 1


def test_refusals_repetitions_and_what_is_not_found(server: ChatServer, tmp_path: Path) -> None:
    replies = {
        "owl": server.chat("I'm sorry, but I can't help with that."),
        "cat": server.chat("", refusal="no"),
        "horse": server.chat("What is this about?"),
        "whale": server.chat("1. What is this about?\n2. Who is the whale in 300?"),
        "ant": server.chat(" \n"),
        "eagle": server.chat("Where does the frog live?"),
    }
    server.reply = lambda body: replies.get(animal_of(server.prompt(body)), server.chat("- Which one is in 700?"))
    data, report = write_questions(animals(), "openai:small", tmp_path, round_trip=1, **ONE)
    assert (report.refused, report.unusable) == (2, 1)
    assert "What is this about?" not in data.queries.values(), "it was asked of two passages"
    assert "Where does the frog live?" not in data.queries.values(), "its passage is not found by it"
    assert set(data.queries.values()) == {"Who is the whale in 300?"}
    assert report.not_found == 1


def test_kinds_of_questions(server: ChatServer, tmp_path: Path) -> None:
    kinds = ("keywords", "question", "paraphrase")
    server.reply = lambda body: server.chat(
        json.dumps({"questions": [f"{animal_of(server.prompt(body))} {len(server.bodies)}"]})
    )
    _, report = write_questions(animals(4), "openai:small", tmp_path, kinds=kinds, count=1, encoder="fake:32")
    assert report.calls == 12
    for words in ("search queries", "natural questions that this passage answers.", "other words"):
        assert sum(words in prompt for prompt in server.prompts) == 4


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ('{"questions": ["a b?", " c  d? ", 3]}', ["a b?", "c d?"]),
        ('Here you are:\n```json\n["What?"]\n```', ["What?"]),
        ('Here are two questions:\n\n1. "Who sings?"\n2) Who dances?\n', ["Who sings?", "Who dances?"]),
        ("- Who sings?\n* Who dances?\nQ3: Who?", ["Who sings?", "Who dances?", "Who?"]),
        ('{"questions": ["half an ans', []),
        ("", []),
        ("[" * 100_000, []),
        ('{"questions": ["Who \\ud83d?", "Who sings?"]}', ["Who sings?"]),
        ("1. Who \ud83d?\n2. Who sings?", ["Who sings?"]),
    ],
)
def test_replies_are_read_leniently(text: str, questions: list[str]) -> None:
    assert parse_questions(text) == questions


class Llama(CustomLLM):
    """An LLM of LlamaIndex."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="llama")

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        from llama_index.core.llms import CompletionResponse

        return CompletionResponse(text=f"Where does the {animal_of(prompt)} live?")

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        raise NotImplementedError


def test_models_of_the_frameworks_and_callables(tmp_path: Path) -> None:
    chat = FakeListChatModel(responses=["Who lives in 0?", "Who lives in 100?"])
    _, report = write_questions(animals(2), chat, tmp_path / "a", concurrency=1, round_trip=0, **ONE)
    assert (report.calls, report.kept) == (2, 2)
    assert write_questions(animals(3), Llama(), tmp_path / "b", **ONE)[1].kept == 3
    call = write_questions(animals(3), lambda prompt: f"Where is the {animal_of(prompt)}?", tmp_path / "c", **ONE)
    assert call[1].kept == 3


def test_half_a_line_is_cut_off_and_one_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerLog(path) as log:
        log.add(LoggedAnswer("a", "text"))
        with pytest.raises(LockedError, match="another process"):
            AnswerLog(path)
    with path.open("ab") as file:
        file.write(b'{"key": "b", "te')
    with AnswerLog(path) as log:
        assert list(log.answers) == ["a"]
        log.add(LoggedAnswer("c", "text"))
    with AnswerLog(path) as log:
        assert list(log.answers) == ["a", "c"]


KILLED = """
import sys
from palmette.learning.questions import write_questions
options = dict(kinds=("question",), count=1, encoder="fake:32", concurrency=3, round_trip=0)
write_questions(sys.argv[2], "openai:small", sys.argv[1], **options)
"""


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_killed_at_any_moment(server: ChatServer, tmp_path: Path, kills: int) -> None:
    whole = server.reply

    def slow(body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        time.sleep(0.02)
        return whole(body)

    server.reply = slow
    log, draw, recorded = tmp_path / "answers.jsonl", random.Random(kills), dict[str, int]()
    documents = tmp_path / "animals.jsonl"
    documents.write_text("".join(json.dumps({"id": animal.id, "text": animal.text}) + "\n" for animal in animals(60)))
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(documents)]
    for _ in range(kills):
        before = len(server.bodies)
        process = subprocess.Popen(command, env=environment())
        while len(server.bodies) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
        keys = [json.loads(line)["key"] for line in lines]
        assert len(keys) == len(set(keys)), "an answer was paid twice"
        assert recorded.keys() <= set(keys), "an answer was lost"
        recorded.update(dict.fromkeys(keys, 1))
        if len(keys) == 60:
            for name in ("answers.jsonl", "corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
                (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / "qrels").exists() and (tmp_path / "qrels").rmdir()
            recorded.clear()
    subprocess.run(command, env=environment(), check=True)
    assert len(load_data(tmp_path).queries) == 60


def environment() -> dict[str, str]:
    """Environment of a process that finds the tests."""
    import os

    return {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}


def test_the_command(server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"id": one.id, "text": one.text}) for one in animals(4)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    words = [str(tmp_path / "docs.jsonl"), "--llm", "openai:small", "--out", str(tmp_path / "asked")]
    words += ["--encoder", "fake:32", "--kinds", "question", "--count", "1"]
    assert main(["ask", *words, "--estimate"]) == 0
    assert "4 passages: 4 calls of about" in capsys.readouterr().out
    assert not server.bodies
    assert main(["ask", *words, "--quiet", "--max-calls", "3"]) == 0
    assert "3 questions about 4 passages" in (said := capsys.readouterr().out)
    assert "1 calls left" in said
    Index.build(animals(4), SpaceModel.untrained("fake:32"), tmp_path / "index", progress=False).close()
    assert main(["ask", str(tmp_path / "index"), *words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 4
    assert set(server.prompts.values()) == {1}
    assert main(["ask", *words[:1], "--llm", "gpt", *words[3:]]) == 1
    assert "openai:MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    "usage",
    [
        [1],
        {"total_tokens": "many"},
        {"total_tokens": None},
        {"total_tokens": 1e999},
        {"total_tokens": -(10**6)},
        {"total_tokens": True},
        "x",
    ],
)
def test_odd_counts_of_tokens_are_no_error(server: ChatServer, usage: Any) -> None:
    content = json.dumps({"choices": [{"message": {"content": "words"}}], "usage": usage}).replace("Infinity", "1e999")
    server.reply = lambda body: (200, {}, content.encode())
    assert OpenAI("small").complete("The owl sings.", {}) == ModelReply("words")


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"choices": [{"message": {"content": [1]}}]}', b'{"choices": {}}']
)
def test_hostile_replies_raise_an_error_of_palmette(server: ChatServer, content: bytes) -> None:
    server.reply = lambda body: (200, {}, content)
    with pytest.raises(LLMError, match="failed 6 times"):
        OpenAI("small").complete("The owl sings.", {})
