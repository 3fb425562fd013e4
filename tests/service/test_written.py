"""Answers by a language model over HTTP and in the shell: events, limits, failures, and clients that go away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from palmette import Index
from palmette.cli import build_parser, main, parse
from palmette.cli.serve import _http_service
from palmette.errors import ConfigError
from palmette.index.written import Limits
from palmette.machine import endpoint
from palmette.machine.llm import as_llm
from palmette.service import writer
from palmette.service.callers import Token
from palmette.service.writer import Writer
from support.chat_stream import StreamServer, events
from support.services import Running, running, until

QUESTION = "When are apples picked?"
TEXT = "Apples are picked in September [1]. They are blue [7]."
ASK: dict[str, Any] = {"question": QUESTION, "llm": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "orchard"
    documents = [
        {"id": "apples", "text": "Apples are picked in September.", "metadata": {"topic": "fruit"}},
        {"id": "bees", "text": "Bees need flowers from March to October.", "metadata": {"topic": "bees"}},
    ]
    Index.build(documents, path=path, encoder="packaged:all-MiniLM-L6-v2", progress=False).close()
    return path


@pytest.fixture(scope="module")
def model() -> Iterator[StreamServer]:
    served = StreamServer()
    yield served
    served.close()


@pytest.fixture(scope="module")
def plain(path: Path, model: StreamServer) -> Iterator[Running]:
    with running(path) as service:
        service.service.writer = Writer(f"openai:small@{model.url}", Limits(seconds=5), shared=False)
        yield service


@pytest.fixture(autouse=True)
def _script(model: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)
    model.reply, model.bodies = lambda body: (200, {}, events(TEXT[:30], TEXT[30:])), []
    model.gone.clear()


def stream(service: Running, **body: Any) -> list[tuple[str, Any]]:
    """The events of an answer."""
    text = service.http.post("/v1/answer", json=ASK | body, headers={"accept": "text/event-stream"}).text
    parts = [part.split("\n") for part in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def test_an_answer_comes_whole_or_as_events(plain: Running, model: StreamServer) -> None:
    [answer] = plain.post("answer", **ASK).json()["answers"]
    assert (answer["answer"], answer["supported"], answer["usage"]["calls"]) == (TEXT, False, 1)
    assert [(one["supported"], one["citations"][0]["supported"]) for one in answer["sentences"]] == [
        (True, True),
        (False, False),
    ]
    assert answer["excerpts"][0] | {"number": 1, "citation": "apples"} == answer["excerpts"][0]
    came = stream(plain)
    assert [name for name, _ in came] == ["asked", "excerpts", "text", "text", "answer"]
    assert came[0][1] == {"asked": QUESTION}
    assert came[1][1] == {"excerpts": answer["excerpts"]}
    assert "".join(value["text"] for name, value in came if name == "text") == TEXT
    assert came[-1][1] == {"answers": [answer]}
    described = plain.http.get("/openapi.json").json()
    reply = described["paths"]["/v1/answer"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator(reply | {"components": described["components"]}).validate({"answers": [answer]})
    assert plain.http.get("/v1/indexes").json()["llm"] == "small"


def test_a_further_question_and_one_that_nothing_fits(plain: Running, model: StreamServer) -> None:
    texts = iter(["When are apples picked in the orchard?", TEXT])
    model.reply = lambda body: (200, {}, events(next(texts)))
    came = stream(plain, question="And when?", history=[["What grows here?", "Apples."]])
    assert came[0] == ("asked", {"asked": "When are apples picked in the orchard?"})
    assert came[-1][1]["answers"][0]["usage"]["calls"] == 2
    model.bodies = []
    came = stream(plain, question="Who won the football world cup of 1998?")
    assert [name for name, _ in came] == ["asked", "excerpts", "answer"]
    assert "no passage fits" in came[-1][1]["answers"][0]["reason"]
    assert stream(plain, filter={"topic": "bees"})[-1][1]["answers"][0]["answer"] == ""
    assert model.bodies == []


def test_failures_are_problems(plain: Running, model: StreamServer) -> None:
    for body, words in (
        ({"llm": False, "history": [["a", "b"]]}, "are for a language model"),
        ({"question": [QUESTION]}, "one question at a time"),
        ({"question": "x" * 5000}, "4,000 characters"),
        ({"history": [["a", "b"]] * 21}, "history"),
        ({"history": [["a"]]}, "history: item 0 1 is missing in"),
        ({"threshold": 7}, "0 to 1"),
    ):
        reply = plain.http.post("/v1/answer", json=ASK | body)
        assert (reply.status_code, words in reply.text) == (400, True), reply.text
    assert model.bodies == []
    model.reply = lambda body: (401, {}, [b'{"error": {"message": "bad key sk-secret"}}'])
    problem = plain.post("answer", **ASK)
    assert (problem.status_code, problem.json()["error"]) == (502, "RefusedError")
    assert model.url not in problem.text, "where the model runs is nobody's business"
    assert "sk-secret" not in problem.text
    came = stream(plain)
    assert (came[-1][0], came[-1][1]["status"]) == ("problem", 502)
    model.reply = lambda body: (200, {}, events("Apples are", finish=None))
    assert [name for name, _ in stream(plain)] == ["asked", "excerpts", "text", "problem"]


def test_without_a_model_and_with_too_many_answers(
    path: Path, plain: Running, model: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain.service, "writer", None)
    assert plain.post("answer", **ASK).status_code == 501
    monkeypatch.setattr(writer, "MOST_WRITTEN", 0)
    monkeypatch.setattr(plain.service, "writer", Writer(lambda messages: TEXT, Limits(), shared=False))
    assert plain.post("answer", **ASK).status_code == 503
    assert stream(plain)[-1][1]["status"] == 503


def test_a_client_that_goes_away_stops_the_model(plain: Running, model: StreamServer) -> None:
    model.reply = lambda body: (200, {}, (x for _ in range(400) for x in (*events("Apples ", finish=None), 0.01)))
    head = {"accept": "text/event-stream"}
    with plain.http.stream("POST", "/v1/answer", json=ASK, headers=head) as reply:
        next(line for line in reply.iter_lines() if line == "event: text")
    assert model.gone.wait(60), "a paid call ends with its reader"
    until(lambda: not plain.service.writer or not plain.service.writer._running.total(), 5)


def test_a_tenant_is_given_nothing_of_others(path: Path, model: StreamServer) -> None:
    tokens = (Token(name="ada", token="ada's token, long enough", filter={"topic": "bees"}),)
    with running(path, tokens=tokens) as service:
        service.service.writer = Writer(as_llm(f"openai:small@{model.url}"), Limits(), shared=True)
        reply = service.post("answer", token=tokens[0].token, **ASK, threshold=0).json()
    assert [one["id"] for one in reply["answers"][0]["excerpts"]] == ["bees"]
    assert "September" not in model.prompts()[0].replace(QUESTION, "")


def test_serve_takes_a_model_and_its_limits(path: Path, model: StreamServer) -> None:
    words = ["serve", str(path), "--llm", f"openai:small@{model.url}", "--llm-tokens", "7", "--llm-timeout", "3"]
    made = _http_service(parse(build_parser(words), words)).writer
    assert (made.llm.name, made.limits) == ("small", Limits(7, 3.0))
    wrong = [*words[:3], "gpt", *words[4:]]
    with pytest.raises(ConfigError, match="openai:MODEL"):
        _http_service(parse(build_parser(wrong), wrong))


def test_the_shell_prints_an_answer_and_its_sources(
    path: Path, model: StreamServer, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = f"openai:small@{model.url}"
    assert main(["answer", str(path), QUESTION, "--llm", llm]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{TEXT}\n  [1] apples\n  not found in the sources: They are blue [7].")
    assert main(["answer", str(path), "Who won the world cup of 1998?", "--llm", llm]) == 0
    assert capsys.readouterr().out.startswith("no answer: no passage fits")
    assert main(["answer", str(path), QUESTION, "--llm", llm, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == TEXT
    model.reply = lambda body: (401, {}, [b"{}"])
    assert main(["answer", str(path), QUESTION, "--llm", llm]) == 1
    assert "set OPENAI_API_KEY" in capsys.readouterr().err
