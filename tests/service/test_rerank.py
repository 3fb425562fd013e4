"""The second stage of a service: on by default, off for a request, told where it fails; also for shells and agents."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from palmette import Index
from palmette.cli import main
from palmette.index.written import Limits
from palmette.ranking.second_stage import WEIGHT, Reranker
from palmette.service.callers import Token
from palmette.service.indexes import ServedIndex
from palmette.service.writer import Writer
from support.model_server import ModelServer
from support.services import Running, running
from support.tiny import documents, tree

QUESTION = "where does the red owl live?"


class Blue:
    """A reranker that prefers the blue ones, until it fails, is late or gives no numbers."""

    how = ""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __call__(self, question: str, texts: Sequence[str]) -> list[float]:
        if self.how == "fails":
            raise OSError("the cable is cut")
        if self.how == "late":
            self.free.wait(30)
        return [float("nan") if self.how == "nan" else float("blue" in text) for text in texts]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.build(documents(), tree(), tmp_path / "colours") as made:
        yield made


@pytest.fixture
def blue() -> Iterator[Blue]:
    made = Blue()
    yield made
    made.free.set()


@pytest.fixture
def reranker(blue: Blue) -> Reranker:
    return Reranker(blue, weight=9, within=99)


@pytest.fixture
def service(index: Index, reranker: Reranker) -> Iterator[Running]:
    served = ServedIndex("colours", str(index.path), rerank=reranker)
    with running(served, mcp=True) as one:
        yield one


def ids(reply: Any) -> list[str]:
    return [hit["id"] for hit in reply.json()["results"][0]["hits"]]


@pytest.mark.filterwarnings("ignore:.*the hits of the first stage:UserWarning")
async def test_a_service_reranks_unless_a_request_leaves_it_out(
    service: Running, index: Index, blue: Blue, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [hit.id for hit in index.search(QUESTION, 3)]
    reranked = [hit.id for hit in index.search(QUESTION, 3, rerank=Reranker(blue, weight=9, within=99))]
    assert plain[0] != reranked[0]
    assert ids(service.post("search", query=QUESTION, k=3)) == reranked
    assert ids(service.post("search", query=QUESTION, k=3, rerank=True)) == reranked
    assert ids(service.post("search", query=QUESTION, k=3, rerank=False)) == plain
    [hit, *_] = service.post("search", query=QUESTION, k=1, explain=True).json()["results"][0]["hits"]
    assert hit["evidence"]["rerank_score"] == 1
    assert "reranker" in [part["name"] for part in hit["explanation"]["parts"]]
    assert (
        service.post("answer", question=QUESTION, k=1, threshold=0).json()["answers"][0]["supports"][0]["id"]
        == reranked[0]
    )
    assert service.post("context", question=QUESTION, tokens=20, k=1).json()["excerpts"][0]["id"] == reranked[0]
    # the shell asks the service
    for words, expected in (([], reranked), (["--rerank", "none"], plain)):
        assert main(["search", str(index.path), QUESTION, "-k", "3", "--json", *words]) == 0
        assert [hit["id"] for hit in json.loads(capsys.readouterr().out)] == expected
    # an explanation has the sum of the search
    for hit in service.post("search", query=QUESTION, k=4, filter={"animal": {"$ne": "cat"}}).json()["results"][0][
        "hits"
    ]:
        for how, same in (({"filter": {"animal": {"$ne": "cat"}}}, True), ({"rerank": False}, False)):
            found = service.post("explain", query=QUESTION, id=hit["id"], **how).json()
            assert (found["score"] == pytest.approx(hit["score"], rel=1e-4)) == same
    # the reranker is named wherever an index is described
    named = {"model": "Blue", "weight": 9.0}
    assert service.http.get("/v1/indexes").json()["indexes"][0]["reranker"] == named
    assert service.post("overview").json()["reranker"] == named
    assert main(["stats", str(index.path)]) == 0
    assert "reranker: model Blue, weight 9\n" in capsys.readouterr().out
    async with Client(f"{service.url}/mcp") as client:
        told = await client.call_tool("overview", {})
    assert told.structured_content["reranker"] == "Blue"
    assert "hits are reranked by Blue" in told.content[0].text


@pytest.mark.filterwarnings("ignore:.*the hits of the first stage:UserWarning")
@pytest.mark.parametrize(
    ("how", "reason"),
    [("fails", "the cable is cut"), ("nan", "a finite number for each"), ("late", "no scores within|still busy")],
)
async def test_a_failure_is_told_by_every_door(
    service: Running,
    index: Index,
    blue: Blue,
    reranker: Reranker,
    capsys: pytest.CaptureFixture[str],
    how: str,
    reason: str,
) -> None:
    blue.how, reranker.seconds = how, 0.05 if how == "late" else None
    expected = [hit.id for hit in index.search(QUESTION, 3)]

    def check(note: str) -> None:
        assert re.search(f"({reason}).*; these are the hits of the first stage", note)

    # HTTP
    reply = service.post("search", query=[QUESTION, "owl"], k=3).json()
    assert [hit["id"] for hit in reply["results"][0]["hits"]] == expected
    answers = service.post("answer", question=[QUESTION, "owl"], k=3, threshold=0).json()["answers"]
    for one in (*reply["results"], *answers, service.post("context", question=QUESTION).json()):
        check(one["note"])
    check(service.post("explain", query=QUESTION, id=expected[0]).json()["note"])
    body, accept = {"question": QUESTION, "threshold": 0}, {"accept": "text/event-stream"}
    parts = service.http.post("/v1/answer", json=body, headers=accept).text.strip().split("\n\n")
    for part in parts:
        [items] = json.loads(part.partition("\ndata: ")[2]).values()
        check(items[0]["note"])
    assert len(parts) == 2
    # the shell
    for command in ("search", "answer", "context"):
        assert main([command, str(index.path), QUESTION]) == 0
        check(" ".join(capsys.readouterr().err.split()))
    # agents
    async with Client(f"{service.url}/mcp") as client:
        for tool, name in (("search", "query"), ("context", "question"), ("answer", "question")):
            told = await client.call_tool(tool, {name: QUESTION})
            check(told.structured_content["note"])
            check(told.content[-1].text)
    # and where the reranker is not asked, there is nothing to tell
    assert "note" not in service.post("answer", question=QUESTION, rerank=False).json()["answers"][0]


@pytest.mark.filterwarnings("ignore:.*the hits of the first stage:UserWarning")
def test_an_answer_of_a_language_model_tells_it_too(index: Index, blue: Blue) -> None:
    blue.how = "fails"
    reranker = Reranker(blue, within=99)
    answer = index.answer(QUESTION, lambda messages: "It lives there [1].", rerank=reranker, threshold=0)
    assert "the cable is cut" in answer.note == answer.to_dict()["note"]
    assert "the cable is cut" in index.answer(QUESTION, lambda messages: "", rerank=reranker, threshold=1).note
    served = ServedIndex("colours", str(index.path), rerank=reranker)
    with running(served) as service:
        service.service.writer = Writer(lambda messages: "It lives there [1].", Limits(seconds=5), shared=False)
        body = {"question": QUESTION, "llm": True, "threshold": 0}
        [answer] = service.post("answer", **body).json()["answers"]
        assert "the cable is cut" in answer["note"]
        events = service.http.post("/v1/answer", json=body, headers={"accept": "text/event-stream"}).text
        assert "the cable is cut" in events.strip().rpartition("\n\n")[2]


@pytest.mark.filterwarnings("ignore:.*the hits of the first stage:UserWarning")
def test_others_do_not_learn_where_a_reranker_runs(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    server = ModelServer(lambda body: (401, {}, {"message": "no"}))
    tokens = [Token(name="a", token="a" * 32)]
    served = ServedIndex("colours", str(index.path), rerank=f"rerank:blues@{server.url}")
    try:
        with running(served, tokens=tokens) as service:
            indexes = service.http.get("/v1/indexes", headers={"authorization": f"Bearer {'a' * 32}"})
            assert indexes.json()["indexes"][0]["reranker"] == {
                "model": "rerank:blues@the reranker's server",
                "weight": WEIGHT,
            }
            asked = [service.post("search", "a" * 32, query=QUESTION), service.post("overview", "a" * 32)]
            asked += [service.post(name, "a" * 32, question=QUESTION) for name in ("answer", "context")]
            assert "first stage" in asked[0].json()["results"][0]["note"]
            for reply in (indexes, *asked):
                assert server.url not in reply.text
                assert "the reranker's server" in reply.text
            assert main(["stats", str(index.path)]) == 0, "the owner of the machine does, by the socket"
            assert server.url in capsys.readouterr().out
    finally:
        server.close()


def test_a_shell_reranks_by_a_server(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    server = ModelServer(
        lambda body: (
            200,
            {},
            [{"index": row, "score": float("blue" in text)} for row, text in enumerate(body["documents"])],
        )
    )
    try:
        how = json.dumps({"model": f"rerank:blues@{server.url}", "weight": 9, "within": 99})
        found = {}
        for name, words in (("plain", []), ("reranked", ["--rerank", how])):
            assert main(["search", str(index.path), QUESTION, "-k", "1", "--json", *words]) == 0
            found[name] = json.loads(capsys.readouterr().out)[0]["id"]
        assert "blue" in found["reranked"]
        assert "blue" not in found["plain"]
    finally:
        server.close()
    assert main(["search", str(index.path), QUESTION, "--rerank", "some-model"]) == 1
    assert "cross-encoder:FOLDER_OR_NAME" in " ".join(capsys.readouterr().err.split())
    assert main(["serve", str(index.path), "--rerank", "some-model"]) == 1


def test_a_request_cannot_turn_on_what_a_service_has_not(index: Index) -> None:
    with running(Path(str(index.path))) as service:
        reply = service.post("search", query=QUESTION, rerank=True)
        assert reply.status_code == 400
        assert "--rerank" in reply.json()["detail"]
        assert service.post("search", query=QUESTION, rerank=False).status_code == 200
