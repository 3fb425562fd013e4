"""The second stage of a service: on by default, off for a request, told where it fails; also for shells and agents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from palmette import Index
from palmette.cli import main
from palmette.ranking.second_stage import Reranker
from palmette.service.indexes import ServedIndex
from support.model_server import ModelServer
from support.services import Running, running
from support.tiny import documents, tree

QUESTION = "where does the red owl live?"


class Blue:
    """A reranker that prefers the blue ones, until it fails."""

    fails = False

    def __call__(self, question: str, texts: Sequence[str]) -> list[float]:
        if self.fails:
            raise OSError("the cable is cut")
        return [float("blue" in text) for text in texts]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.build(documents(), tree(), tmp_path / "colours") as made:
        yield made


@pytest.fixture
def blue() -> Blue:
    return Blue()


@pytest.fixture
def service(index: Index, blue: Blue) -> Iterator[Running]:
    served = ServedIndex("colours", str(index.path), rerank=Reranker(blue, weight=9, within=99))
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
    # a failure is told by every door
    blue.fails = True
    other = "where does the green owl live?"
    expected = [hit.id for hit in index.search(other, 3)]
    reply = service.post("search", query=other, k=3)
    assert ids(reply) == expected
    note = reply.json()["results"][0]["note"]
    assert "the cable is cut; these are the hits of the first stage" in note
    assert service.post("context", question=other).json()["note"] == note
    assert main(["search", str(index.path), other, "-k", "3"]) == 0
    assert note in capsys.readouterr().err
    async with Client(f"{service.url}/mcp") as client:
        told = await client.call_tool("search", {"query": other, "k": 3})
    assert [one["id"] for one in told.structured_content["passages"]] == expected
    assert note in told.content[-1].text


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
