"""The HTTP service over a real socket: what it answers, to whom, and what misuse does."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from palmette import Document, Index, Reader
from palmette.cli import main
from palmette.errors import ConfigError, NotFoundError, StoreError
from palmette.service.app import Service
from palmette.service.callers import Callers, Rate, Token, read_tokens
from palmette.service.calls import ENDPOINTS
from palmette.service.checks import OPEN, Settings
from palmette.service.indexes import ServedIndex
from palmette.service.local import request
from palmette.service.run import bind
from palmette.store.local import feedback
from support.services import HEAD, Running, running, until
from support.tiny import documents, space, tree

QUESTION = "where does the red owl live?"
ADA, BOB, EVE = "ada's token, long enough", "bob's token, long enough", "eve's token, long enough"
TOKENS = (
    Token(name="ada", token=ADA, write=True),
    Token(name="bob", token=BOB, filter={"colour": "red"}, write=True),
    Token(name="eve", token=EVE, filter={"colour": "green"}, indexes=("colours",)),
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.build(documents(), tree(), tmp_path_factory.mktemp("service") / "colours") as made:
        yield made


@pytest.fixture(scope="module")
def plain(index: Index) -> Iterator[Running]:
    """A service as ``palmette serve INDEX`` starts it."""
    with running(Path(index.path)) as service:
        yield service


@pytest.fixture
def writable(index: Index, tmp_path: Path) -> Iterator[Running]:
    index.backup(tmp_path / "colours")
    with running(tmp_path / "colours", write=True) as service:
        yield service


@pytest.fixture(scope="module")
def tenants(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tenants")
    index.backup(folder / "colours")
    index.backup(folder / "others")
    with running(folder / "colours", folder / "others", tokens=TOKENS, hosts=("search.example",)) as service:
        yield service


def problem(reply: httpx.Response, status: int, words: str) -> dict[str, Any]:
    """A reply that is a problem in the sense of RFC 9457."""
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    facts = reply.json()
    assert facts["status"] == status
    assert words in facts["detail"], facts["detail"]
    return facts


def test_searches_and_answers_are_the_librarys(plain: Running, index: Index) -> None:
    reply = plain.post("search", query=QUESTION, k=3, explain=True, lexical=0.4, options={"level": 3}).json()
    hits = index.search(QUESTION, 3, explain=True, lexical=0.4, level=3)
    assert reply == {
        "results": [{"query": QUESTION, "hits": json.loads(json.dumps([h.to_dict(explain=True) for h in hits]))}]
    }
    several = plain.post("search", query=[QUESTION, "bees"], filter={"animal": ["bee"]} | {"animal": "bee"}).json()
    assert [one["query"] for one in several["results"]] == [QUESTION, "bees"]
    assert {hit["metadata"]["animal"] for one in several["results"] for hit in one["hits"]} == {"bee"}
    answer = Reader.untrained(index.model.encoder.plain).answer(QUESTION, index.search(QUESTION, 5))
    assert plain.post("answer", question=QUESTION).json()["answers"][0] == json.loads(json.dumps(answer.to_dict()))
    assert plain.post("explain", query=QUESTION, id="red-owl").json() == json.loads(
        json.dumps(index.explain(QUESTION, "red-owl").to_dict())
    )
    found = plain.post("get", ids=["red-owl", "nobody"]).json()["documents"]
    assert found == [{"id": "red-owl", "text": documents()[2].text, "metadata": documents()[2].metadata}, None]
    listed = plain.post("list", filter={"animal": "owl"}, offset=1, limit=2).json()["documents"]
    assert [one["id"] for one in listed] == ["green-owl", "blue-owl"]
    assert plain.post("fields").json()["fields"]["colour"][0] == ["red", 8]
    [about] = plain.http.get("/v1/indexes").json()["indexes"]
    assert (about["name"], about["documents"], about["method"], about["write"]) == ("colours", 48, "tree", False)


def test_answers_stream(plain: Running) -> None:
    body, events = {"question": QUESTION, "k": 9}, []
    headers = {"accept": "text/event-stream"}
    with plain.http.stream("POST", "/v1/answer", json=body, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            events += [line.removeprefix("event: ")] if line.startswith("event: ") else []
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    assert [events[0], events[2]] == ["hits", "answer"]
    assert events[1]["results"][0]["hits"][0]["id"] == "red-owl"
    assert events[3] == plain.post("answer", **body).json()
    wrong = plain.http.post("/v1/answer", json={**body, "filter": {"color": 1}}, headers=headers).text
    assert wrong.startswith('event: problem\ndata: {"type": "urn:palmette:error:FilterError"')


def check_described(description: dict[str, Any], reply: httpx.Response) -> None:
    """Check a reply against its schema in the service's description; it may have no fields that are not there."""
    operation = description["paths"][reply.request.url.path][reply.request.method.lower()]
    kind = reply.headers["content-type"]
    content = operation["responses"].get(str(reply.status_code), operation["responses"]["default"])["content"]
    schemas = {
        name: one | {"additionalProperties": False} for name, one in description["components"]["schemas"].items()
    }
    Draft202012Validator(content[kind]["schema"] | {"components": {"schemas": schemas}}).validate(reply.json())


def test_the_description_is_whole(plain: Running) -> None:
    described = plain.http.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    schemas, paths = described["components"]["schemas"], described["paths"]
    of_the_page = {"/", "/page.js", "/page.css", "/v1/original", "/original"}
    assert set(paths) == plain.service.paths - of_the_page - {"/openapi.json", "/metrics"}
    operations = [operation for path in paths.values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert named == set(schemas), "each schema is used, and each name has one"
    for operation in operations:
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert operation["responses"]["default"]["content"]["application/problem+json"]["schema"]


def test_every_example_of_the_description_works(writable: Running) -> None:
    described = writable.http.get("/openapi.json").json()
    for path, call in described["paths"].items():
        if "get" in call:
            reply = writable.http.get(path)
        else:
            content = call["post"]["requestBody"]["content"]["application/json"]
            name = content["schema"]["$ref"].rpartition("/")[2]
            assert set(content["example"]) <= set(described["components"]["schemas"][name]["properties"])
            own = {"filter": {"colour": "red"}, "id": "red-owl"}  # of this index
            body = {field: own.get(field, value) for field, value in content["example"].items()}
            reply = writable.http.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
        check_described(described, reply)


def test_replies_are_as_described(index: Index, tmp_path: Path) -> None:
    """Also those with fields that most replies lack."""
    index.backup(tmp_path / "colours")
    with running(tmp_path / "colours", tmp_path / "nowhere", write=True) as service:
        described = service.http.get("/openapi.json").json()

        def post(path: str, status: int = 200, **body: Any) -> Any:
            reply = service.post(path, index="colours", **body)
            assert reply.status_code == status, reply.text
            check_described(described, reply)
            return reply.json()

        until(lambda: service.service.failures and service.service.served["colours"].opened)
        opened = service.service.served["colours"].opened
        assert opened is not None
        opened.index.feedback_log.recording = True
        long = "\n\n".join(f"# Part {n}\n\n" + f"Quinces of kind {n} ripen late. " * 60 for n in range(4))
        twin = {"text": "Quinces grow on walls.", "metadata": {"year": 2024}}
        post("upsert", documents=[{"id": "long", "text": long}, {"id": "a", **twin}, {"id": "b", **twin}], delete=["x"])
        post("add", documents=[{"id": "f", "fields": {"title": "Quince"}, "payload": {"n": [None, 1.5]}}])
        [stored] = post("get", ids=["long"])["documents"]
        assert len(stored["passages"]) > 1
        assert post("get", ids=["f", "nobody"])["documents"][0]["payload"] == {"n": [None, 1.5]}
        options = {"group_by": "document", "distinct": True, "explain": True}
        [result] = post("search", query="quinces", k=20, **options)["results"]
        fields = {field for hit in result["hits"] for field in hit}
        assert {"others", "copies", "passage", "explanation"} <= fields
        assert post("feedback", query="quinces", id="long", useful=True) == {"kept": True}
        post("answer", question=["when do quinces ripen?", "who?"], threshold=0)
        post("context", question="when do quinces ripen?")
        post("explain", query="quinces", id="long")
        post("overview")
        post("sync", source="s", documents=[{"id": "a", "text": "not mine"}, {"id": "s1", "text": "A plum."}])
        post("sync", source="s", documents=[{"id": "s2", "text": "A plum."}])
        post("search", 400, query="x", k=0)
        check_described(described, service.http.get("/v1/indexes"))
        check_described(described, service.http.get("/ready"))
        assert service.http.get("/ready").status_code == 503


def test_a_source_is_brought_up_to_date(writable: Running) -> None:
    given = [{"id": f"s{n}", "text": f"Stone fruit number {n}."} for n in range(3)]
    first = writable.post("sync", source="stones", documents=given).json()
    assert (first["added"], first["skipped"]) == (["s0", "s1", "s2"], [])
    changed = [{**given[0], "text": "A plum."}, given[1], {"id": "red-fox", "text": "mine"}]
    second = writable.post("sync", source="stones", documents=changed).json()
    assert (second["changed"], second["removed"], second["unchanged"]) == (["s0"], ["s2"], 1)
    assert second["skipped"][0][0] == "red-fox", "it was added by itself"
    assert writable.post("get", ids=["s0"]).json()["documents"][0]["text"] == "A plum."


def test_documents_change_as_a_whole(writable: Running) -> None:
    quince = {"id": "quince", "text": "Quinces ripen late.", "metadata": {"colour": "yellow"}, "payload": {"page": 3}}
    assert writable.post("add", documents=[quince]).json() == {"ids": ["quince"]}
    assert writable.post("get", ids=["quince"]).json()["documents"] == [quince]
    told = problem(writable.post("add", documents=[{"id": "new", "text": "a"}, {**quince, "text": "b"}]), 409, "quince")
    assert told["error"] == "DuplicateIdError"
    assert writable.post("get", ids=["new"]).json()["documents"] == [None], "all or none"
    changes = writable.post("upsert", documents=[{**quince, "text": "b"}], delete=["red-owl", "nobody"]).json()
    assert changes == {"added": [], "updated": ["quince"], "unchanged": [], "deleted": ["red-owl"], "encoded": 1}
    assert writable.post("delete", filter={"colour": "yellow"}).json() == {"deleted": ["quince"]}
    problem(writable.post("delete"), 400, "give one of the two")
    for bad, words in (
        ({"id": "x", "txt": "a"}, "document 1: a document has no option 'txt'. Did you mean 'text'?"),
        ({"id": "x", "text": " "}, "document 1: document 'x' is empty"),
        ({"id": 3, "text": "a"}, "document 1: a document id must be a str of 1 to"),
        ({"id": "x", "text": "a", "metadata": []}, "metadata must be a mapping, got list"),
    ):
        problem(writable.post("add", documents=[{"id": "good", "text": "good"}, bad]), 400, words)
    [about] = writable.http.get("/v1/indexes").json()["indexes"]
    assert (about["documents"], about["write"]) == (47, True)


def test_small_replies_are_sent_at_once() -> None:
    """asyncio turns off Nagle's algorithm where a socket names its protocol; else each reply waits 40 ms."""
    with bind(Settings(port=0)) as server:
        assert server.proto == socket.IPPROTO_TCP


def test_without_a_token_nothing(tenants: Running) -> None:
    paths = [("GET", path) for path in tenants.service.paths] + [("POST", one.path) for one in ENDPOINTS]
    for method, path in [*paths, ("POST", "/mcp"), ("GET", "/v1/nothing")]:
        for headers in ({}, {"authorization": "Bearer " + "x" * 40}, {"authorization": f"Basic {ADA}"}):
            reply = tenants.http.request(
                method, path, headers=headers, json={"query": "x"} if method == "POST" else None
            )
            if method == "GET" and path in OPEN:
                assert reply.status_code in (200, 404)
                assert "colours" not in reply.text
            else:
                assert reply.status_code in (401, 404, 429), (method, path)
                assert "owl" not in reply.text
    replies = list[httpx.Response]()
    until(lambda: replies.append(tenants.post("search", query="owl")) or replies[-1].status_code == 429)
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert tenants.post("search", ADA, query="owl", index="colours").status_code == 200, "others are not disturbed"


def test_a_token_opens_its_filter_alone(tenants: Running) -> None:
    def ids(token: str, path: str, **body: Any) -> set[str]:
        reply = tenants.post(path, token, index="colours", **body).json()
        hits = reply["results"][0]["hits"] if "results" in reply else filter(None, reply["documents"])
        return {hit["id"].partition("-")[0] for hit in hits}

    assert len(ids(ADA, "list", limit=100)) == 6
    for token, colour in ((BOB, "red"), (EVE, "green")):
        assert ids(token, "search", query=QUESTION, k=48) == {colour}
        assert ids(token, "list", limit=100) == {colour}
        assert ids(token, "get", ids=["red-owl", "green-owl"]) == {colour}
        fields = tenants.post("fields", token, index="colours").json()["fields"]
        assert fields["colour"] == [[colour, 8]]
        topics = tenants.post("overview", token, index="colours").text
        assert "blue" not in topics
        assert colour in topics
        about = tenants.http.get("/v1/indexes", headers={"authorization": f"Bearer {token}"}).json()
        assert {one["documents"] for one in about["indexes"]} == {8}
        problem(tenants.http.get("/metrics", headers={"authorization": f"Bearer {token}"}), 403, "metrics")
    problem(tenants.post("search", BOB, query="owl"), 400, "this service has colours, others")
    problem(tenants.post("search", EVE, query="owl", index="others"), 404, "this service has colours")
    assert tenants.post("search", EVE, query="owl").status_code == 200, "the only one that it opens"
    problem(tenants.post("explain", EVE, query="owl", id="red-owl"), 404, "there is no document 'red-owl'")
    problem(tenants.post("delete", EVE, ids=["green-owl"]), 403, "may not change")
    plum = {"id": "plum", "text": "a plum", "metadata": {"colour": "blue"}}
    problem(tenants.post("add", BOB, documents=[plum], index="others"), 400, "does not pass this view's filter")
    told = problem(
        tenants.post("add", BOB, documents=[{**plum, "id": "blue-owl", "metadata": {"colour": "red"}}], index="others"),
        409,
        "outside this view",
    )
    assert str(tenants.service.served["others"].path) not in json.dumps(told)
    assert tenants.post("delete", BOB, ids=["blue-owl", "red-owl"], index="others").json() == {"deleted": ["red-owl"]}
    text = tenants.http.get("/metrics", headers={"authorization": f"Bearer {ADA}"}).text
    assert 'palmette_documents{index="others"} 47\n' in text
    assert 'palmette_request_seconds_bucket{path="/v1/list",le="+Inf"}' in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0


def test_a_token_with_the_owners_name_sees_no_more(index: Index, tmp_path: Path) -> None:
    index.backup(tmp_path / "colours")
    tokens = [Token(name="owner", token=BOB, filter={"colour": "red"})]
    with running(tmp_path / "colours", tokens=tokens) as service:
        whole = request(str(tmp_path / "colours"), "/v1/fields", {})["fields"]
        assert len(whole["colour"]) == 6, "through the socket of this user"
        assert service.post("fields", token=BOB).json()["fields"]["colour"] == [["red", 8]]


def test_an_overview_tells_no_path_and_lists_take_any_number(tenants: Running) -> None:
    told = tenants.post("overview", EVE).json()
    assert told["documents"] == 8
    assert str(Path(tenants.service.served["colours"].path).parent) not in json.dumps(told)
    problem(tenants.post("list", EVE, offset=10**30), 400, "offset must be at most")
    problem(tenants.post("explain", EVE, query="owl", id="green-owl", options={"id": "x"}), 400, "beside options")


def test_feedback_stays_behind_the_filter_of_a_token(index: Index, tmp_path: Path) -> None:
    index.backup(tmp_path / "colours")
    with running(tmp_path / "colours", tokens=TOKENS) as service, Index.open(tmp_path / "colours") as opened:
        opened.feedback_log.recording = True
        search = service.post("search", token=BOB, query=QUESTION, k=2).json()["results"][0]
        own = {"query": QUESTION, "id": search["hits"][0]["id"], "useful": True}
        assert service.post("feedback", token=BOB, **own).json() == {"kept": True}
        service.post("feedback", token=ADA, query=QUESTION, id="green-owl", useful=False, person="ada")
        problem(service.post("feedback", token=BOB, query=QUESTION, id="green-owl", useful=True), 404, "no document")
        votes = opened.feedback_log.votes()
        assert [(vote.query, vote.document, vote.useful) for vote in votes] == [
            (QUESTION, search["hits"][0]["id"], True),
            (QUESTION, "green-owl", False),
        ]
        assert [vote.query for vote in opened.filtered({"colour": "red"}).feedback_log.votes()] == [QUESTION]


def test_files_of_tokens_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    row: dict[str, Any] = {"name": "ada", "token": ADA, "filter": {"colour": "red"}}

    def read(content: Any, mode: int = 0o600) -> list[Token]:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        file.chmod(mode)
        tokens = read_tokens(file)
        Callers(tokens, write=False)
        return tokens

    assert read([row]) == [Token(**row)]
    with pytest.raises(NotFoundError, match="no file of tokens"):
        read_tokens(tmp_path / "nothing")
    for content, words in (
        ("{", "is not JSON"),
        ("[]", "must hold a list"),
        ([row, row], "two tokens have the same name"),
        ([row, {**row, "name": "bob", "filter": None}], "two names have the same token"),
        ([{**row, "token": "short"}], "use 16 at least"),
        ([{**row, "sha256": "0" * 64}], "either its token or its sha256"),
        ([{"name": "ada", "sha256": "xyz"}], "64 digits"),
        ([{**row, "filter": {"$no": 1}}], "unknown filter operator"),
        ([{**row, "writes": True}], "Did you mean 'write'"),
    ):
        with pytest.raises(ConfigError if "filter operator" not in words else ValueError, match=words):
            read(content)
    with pytest.raises(ConfigError, match="chmod 600"):
        read([row], 0o640)
    with pytest.raises(ConfigError, match="can be reached by others: give --tokens"):
        Service([], Settings(host="0.0.0.0"))


def test_pages_of_others_and_bent_names_are_refused(plain: Running, tenants: Running) -> None:
    def search(service: Running, **headers: str) -> httpx.Response:
        return service.http.post("/v1/search", json={"query": "owl", "index": "colours"}, headers=headers)

    host = plain.url.removeprefix("http://")
    problem(search(plain, host="evil.example"), 421, "this service has no name 'evil.example'")
    problem(search(plain, host="search.example"), 421, "--allow-host search.example")
    problem(search(plain, host=""), 421, "no name ''")
    problem(search(plain, host="["), 421, "no name ''")
    problem(search(plain, origin="http://["), 403, "may not ask")
    problem(search(plain, origin="https://evil.example"), 403, "may not ask")
    problem(search(plain, origin="null"), 403, "may not ask")
    assert search(plain, origin=f"http://{host}").status_code == 200
    assert search(tenants, host="search.example", authorization=f"Bearer {ADA}").status_code == 200
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for reply in (
        plain.http.options("/v1/search", headers=preflight),
        plain.http.get("/v1/indexes"),
        plain.http.get("/"),
    ):
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("status", "words", "content", "kind"),
    [
        (415, "send Content-Type: application/json, got 'text/plain'", b'{"query": "x"}', "text/plain"),
        (400, "the body is not JSON", b"{", "application/json"),
        (400, "the body is not JSON", b"\xff", "application/json"),
        (400, "NaN is not a JSON value; use null", b'{"query": "x", "threshold": NaN}', "application/json"),
        (400, "must be a JSON object, got list", b"[]", "application/json; charset=utf-8"),
        (400, "nested too deeply", b'{"query":' + b"[" * 100_000, "application/json"),
        (400, "SearchBody: 'query' is missing", b"{}", "application/json"),
        (400, "Did you mean 'query'?", b'{"querry": "x"}', "application/json"),
        (400, "k must be at most 1000, got 100000", b'{"query": "x", "k": 100000}', "application/json"),
        (400, "the query is empty", b'{"query": " "}', "application/json"),
        (400, "Did you mean 'level'", b'{"query": "x", "options": {"levle": 3}}', "application/json"),
        (400, "give it beside options", b'{"query": "x", "options": {"k": 3}}', "application/json"),
        (400, "threshold must be", b'{"query": "x", "threshold": 1e999}', "application/json"),
        (404, "there is no index 'x'", b'{"query": "x", "index": "x"}', "application/json"),
        (400, "more than 1,048,576 commas", b'{"query": [' + b"[]," * 2**20 + b"[]]}", "application/json"),
    ],
)
def test_bodies_are_read_strictly(status: int, words: str, content: bytes, kind: str, plain: Running) -> None:
    problem(plain.http.post("/v1/search", content=content, headers={"content-type": kind}), status, words)


def test_a_body_of_a_gigabyte_is_refused_at_once(plain: Running) -> None:
    with socket.create_connection(plain.address) as client:
        client.sendall(f"{HEAD}Content-Length: {2**30}\r\n\r\n".encode())
        reply = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"16,777,216 bytes" in reply
    with socket.create_connection(plain.address) as client:  # nobody says how long it is
        client.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent, block = 0, b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            while sent < 2**30:
                client.sendall(block)
                sent += 65536
        except OSError:
            pass  # it has closed the connection
        assert sent < 2**26
    assert plain.post("search", query="owl").status_code == 200


def test_slow_and_lost_clients_disturb_nobody(index: Index) -> None:
    with running(Path(index.path), timeout=0.5) as service:
        slow = [socket.create_connection(service.address) for _ in range(20)]
        for client in slow:
            client.sendall(f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
        body = b'{"query": "owl"}'
        for _ in range(20):  # asks and hangs up
            with socket.create_connection(service.address) as client:
                client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert service.post("search", query="owl").status_code == 200
        for client in slow:
            assert b" 408 " in client.recv(1 << 16).partition(b"\r\n")[0]
            client.close()
        until(lambda: service.service.metrics.in_flight == 0)
        until(lambda: all(one.opened is None or one.opened.users == 0 for one in service.service.served.values()))


def test_searches_are_answered_where_they_cannot_be_recorded(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index.backup(tmp_path / "colours")
    with running(tmp_path / "colours", tokens=TOKENS) as service, Index.open(tmp_path / "colours") as opened:
        opened.feedback_log.recording = True
        half = service.http.post(
            "/v1/search",
            content=b'{"query": "owl \\ud800"}',
            headers={"content-type": "application/json", "authorization": f"Bearer {BOB}"},
        )
        assert half.status_code == 200, half.text
        monkeypatch.setattr(feedback, "MOST_PAGES", 16)
        votes = [service.post("feedback", token=BOB, query="q" * 8000, id="red-owl", useful=True) for _ in range(12)]
        assert votes[0].json() == {"kept": True}
        problem(votes[-1], 507, "no room left for feedback")
        for number in range(12):
            search = service.post("search", token=BOB, query=f"owl {number} " + "q" * 7000)
            assert search.status_code == 200
        assert "a search was not recorded" in caplog.text
        assert (tmp_path / "colours" / feedback.FEEDBACK).stat().st_size == 16 * 4096
        assert opened.feedback_log.delete(before=time.time() + 1) > 0
        assert service.post("feedback", token=BOB, query="q", id="red-owl", useful=True).json() == {"kept": True}


def test_limits_of_time_rate_and_number(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    with running(Path(index.path), timeout=0.3, waiting=3, rate=60) as service:
        search = Index.search
        monkeypatch.setattr(Index, "search", lambda *a, **k: release.wait(20) and search(*a, **k))
        problem(service.post("search", query="owl"), 504, "no answer within 0.3 s")
        service.service.settings = service.service.settings.replace(timeout=20.0)
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(service.post, "search", query="owl") for _ in range(3)]
            until(lambda: service.service.metrics.in_flight == 3)
            reply = service.post("search", query="owl")
            problem(reply, 503, "requests are too many")
            assert reply.headers["retry-after"] == "1"
            assert service.http.get("/health").status_code == 503
            release.set()
            assert [one.result().status_code for one in waiting] == [200, 200, 200]
        replies = [service.post("search", query="owl") for _ in range(40)]
        assert replies[0].status_code == 200
        problem(next(reply for reply in replies if reply.status_code != 200), 429, "wait")


def test_a_rate_fills_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rate = Rate(60)
    assert [rate.wait("ada") for _ in range(7)] == [0, 0, 0, 0, 0, 0, 1.0]
    assert rate.wait("bob") == 0
    now = 102.0
    assert [rate.wait("ada") for _ in range(3)] == [0, 0, 1.0]
    now = 1e6
    assert [rate.wait("ada") for _ in range(7)].count(0) == 6


def test_a_full_disk_loses_nothing(writable: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        told = problem(writable.post("add", documents=[{"id": "new", "text": "new"}]), 507, "")
        assert told["error"] == "StorageFullError"
        assert writable.service.served["colours"].path not in told["detail"], "paths are the owner's to know"
        assert writable.post("search", query="owl").status_code == 200
    assert writable.post("get", ids=["new"]).json()["documents"] == [None]
    assert writable.post("add", documents=[{"id": "new", "text": "new"}]).status_code == 200


def test_an_index_that_was_replaced_is_picked_up(writable: Running, tmp_path: Path, caplog: Any) -> None:
    served = writable.service.served["colours"]
    first = served.opened
    Index.build(documents()[:3], space(), tmp_path / "next").close()
    Path(served.path).rename(tmp_path / "before")
    assert writable.post("search", query="owl").status_code in (200, 503), "nothing lies there for a moment"
    (tmp_path / "next").rename(served.path)
    until(lambda: len(writable.post("list", limit=100).json().get("documents", ())) == 3)
    assert writable.post("search", query="owl").status_code == 200
    assert served.opened is not first
    assert writable.http.get("/v1/indexes").json()["indexes"][0]["method"] == "space"
    Path(served.path).rename(tmp_path / "next")
    Path(served.path).mkdir()
    (Path(served.path) / "index.sqlite3").write_bytes(b"damage")
    reply = writable.post("search", query="owl")  # by files that are still open, or not
    assert reply.status_code == 200 or problem(reply, 503, "holds another index")
    until(lambda: "cannot be opened" in caplog.text)
    (Path(served.path) / "index.sqlite3").unlink()
    Path(served.path).rmdir()
    (tmp_path / "before").rename(served.path)
    until(lambda: len(writable.post("list", limit=100).json().get("documents", ())) == 48)


def test_requests_that_have_begun_are_finished(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    search, begun = Index.search, threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        time.sleep(0.5)
        return search(*args, **options)

    with ThreadPoolExecutor(1) as pool:
        with running(Path(index.path)) as service:
            monkeypatch.setattr(Index, "search", slow)
            waiting = pool.submit(httpx.post, f"{service.url}/v1/search", json={"query": "owl"}, trust_env=False)
            assert begun.wait(20)
        assert waiting.result().status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url, trust_env=False)


def test_what_could_not_be_opened_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was away, and an index that was broken, when the service began."""
    from palmette.service import app

    monkeypatch.setattr(app, "RETRY_AFTER", 0.1)
    Index.build([Document("a", "Owls sing.")], space(), tmp_path / "index").close()
    (tmp_path / "index" / "index.sqlite3").rename(tmp_path / "kept")
    space().save_pretrained(tmp_path / "model")
    served = [
        ServedIndex("notes", str(tmp_path / "notes"), model=str(tmp_path / "model")),
        ServedIndex("i", f"{tmp_path}/index"),
    ]
    with running(*served) as service:
        until(lambda: len(service.service.failures) == 2)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "b.md").write_text("Owls sleep.")
        (tmp_path / "new").rename(tmp_path / "notes")
        (tmp_path / "kept").rename(tmp_path / "index" / "index.sqlite3")
        until(lambda: service.http.get("/ready").status_code == 200)
        hits = [service.post("search", query="owl", index=name).json()["results"][0]["hits"] for name in ("notes", "i")]
        assert [[hit["id"] for hit in some] for some in hits] == [["notes/b.md"], ["a"]]


@pytest.mark.filterwarnings("default:.*cannot be read")
def test_a_folder_is_indexed_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palmette.service import indexes

    monkeypatch.setattr(indexes, "POLL", 0.05)
    monkeypatch.setattr(indexes, "PASSAGES_PER_COMMIT", 2)
    notes = tmp_path / "notes"
    notes.mkdir()
    space().save_pretrained(tmp_path / "model")
    for document in documents()[:7]:
        (notes / f"{document.id}.md").write_text(document.text)
    with running(ServedIndex("notes", str(notes), model=str(tmp_path / "model"))) as service:

        def ids() -> set[str]:
            return {one["id"] for one in service.post("list", limit=100).json()["documents"]}

        until(lambda: len(ids()) == 7)
        assert service.post("search", query="red owl", k=1).json()["results"][0]["hits"][0]["id"] == "notes/red-owl.md"
        (notes / "red-owl.md").unlink()
        (notes / "red-cat.md").write_text("The red cat has moved to the sea.")
        (notes / "new.md").write_text("A new note.")
        until(lambda: "notes/new.md" in ids() and "notes/red-owl.md" not in ids())
        assert "sea" in service.post("get", ids=["notes/red-cat.md"]).json()["documents"][0]["text"]
        (notes / "bad.md").write_bytes(b"\xff\xfe\xff")
        (notes / "red-cat.md").write_text("The red cat has come back.")
        until(lambda: "back" in service.post("get", ids=["notes/red-cat.md"]).json()["documents"][0]["text"])
        assert len(ids()) == 7, "a file that cannot be read disturbs no other"
        (notes / "bad.md").unlink()
        assert service.http.get("/v1/indexes").json()["indexes"][0]["follows"]["folder"] == "notes"
        for path in notes.glob("*.md"):
            path.unlink()
        until(lambda: not ids())
    assert (notes / ".palmette" / ".gitignore").read_text() == "*\n"


def test_a_replaced_index_of_a_folder_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no request makes the service open it again, as after a refit at night."""
    from palmette.machine.folders import exchange_folders
    from palmette.service import indexes

    monkeypatch.setattr(indexes, "POLL", 0.05)
    notes, model = tmp_path / "notes", space()
    notes.mkdir()
    model.save_pretrained(tmp_path / "model")
    (notes / "a.md").write_text("Owls sing.")
    place = notes / ".palmette" / "index"

    def ids() -> set[str]:
        with Index.open(place, model, verify=False) as index:
            return {one.key for one in index.documents()}

    with running(ServedIndex("notes", str(notes), model=str(tmp_path / "model"))) as service:
        until(lambda: ids() == {"notes/a.md"})
        Index.create(tmp_path / "other", model).close()
        exchange_folders(place, tmp_path / "other")
        until(lambda: ids() == {"notes/a.md"})
        (notes / "b.md").write_text("Hens eat.")
        until(lambda: ids() == {"notes/a.md", "notes/b.md"})
        assert {one["id"] for one in service.post("list").json()["documents"]} == ids()


def test_a_followed_folder_goes_and_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was indexed is searched meanwhile, also with the index's files deleted; other indexes go on."""
    from palmette.service import indexes

    monkeypatch.setattr(indexes, "POLL", 0.2)
    space().save_pretrained(tmp_path / "model")
    for name in ("notes", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text("Owls sing.")
    served = [ServedIndex(name, str(tmp_path / name), model=str(tmp_path / "model")) for name in ("notes", "other")]
    with running(*served) as service:

        def ids() -> list[str]:
            hits = [service.post("search", query="owl", index=name).json()["results"][0]["hits"] for name in NAMES]
            return [hit["id"] for some in hits for hit in some]

        def listed() -> list[tuple[bool, str]]:
            facts = service.http.get("/v1/indexes").json()["indexes"]
            return [(one["ready"], one.get("warning", "")) for one in facts]

        NAMES = ("notes", "other")
        (tmp_path / "notes").rename(tmp_path / "away")
        shutil.rmtree(tmp_path / "away")
        until(lambda: listed()[0][1].startswith("its folder is away: what was indexed is searched"))
        assert listed()[0][0]
        assert listed()[1] == (True, "")
        assert ids() == ["notes/a.md", "other/a.md"]
        metrics = service.http.get("/metrics").text
        assert 'palmette_index_up{index="notes"} 1' in metrics
        assert service.http.get("/ready").status_code == 200
        assert not (tmp_path / "notes").exists(), "it is not made by us"
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "b.md").write_text("Owls sleep.")
        (tmp_path / "new").rename(tmp_path / "notes")
        until(lambda: ids() == ["notes/b.md", "other/a.md"])
        (tmp_path / "notes" / "c.md").write_text("Owls fly.")
        until(lambda: sorted(ids()) == ["notes/b.md", "notes/c.md", "other/a.md"])
        (tmp_path / "notes").rename(tmp_path / "away")
        (tmp_path / "notes").mkdir()
        until(lambda: ids() == ["other/a.md"])
        assert listed() == [(True, ""), (True, "")]


def test_a_folder_that_returns_with_its_index_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index comes back while a new one is made: it stays, and is brought up to date."""
    from palmette.service import indexes

    warned = list[Any]()
    monkeypatch.setattr(indexes, "POLL", 0.2)
    monkeypatch.setattr(indexes.log, "warning", lambda *facts, **options: warned.append(facts))
    space().save_pretrained(tmp_path / "model")
    notes, kept, sync = tmp_path / "notes", tmp_path / "kept", Index.sync_listing
    notes.mkdir()
    (notes / "a.md").write_text("Owls sing.")
    served = ServedIndex("notes", str(notes), model=str(tmp_path / "model"))

    def sync_as_the_index_returns(index: Index, *args: Any, **options: Any) -> Any:
        report = sync(index, *args, **options)
        if kept.exists() and ".new" in str(index.path):
            kept.rename(served.path)
        return report

    with running(served) as service:
        until(lambda: service.http.get("/ready").status_code == 200)
        monkeypatch.setattr(Index, "sync_listing", sync_as_the_index_returns)
        number = Path(served.path).stat().st_ino
        Path(served.path).rename(kept)
        (notes / "b.md").write_text("Owls sleep.")
        until(lambda: len(service.post("list").json()["documents"]) == 2 and not kept.exists())
        assert Path(served.path).stat().st_ino == number
    assert not warned


def test_an_index_that_is_gone_hides_no_other(index: Index, tmp_path: Path) -> None:
    for name in ("one", "two"):
        index.backup(tmp_path / name)
    with running(tmp_path / "one", tmp_path / "two") as service:
        shutil.rmtree(tmp_path / "one")
        one, two = service.http.get("/v1/indexes").json()["indexes"]
        assert (one["ready"], two["ready"], two["documents"]) == (False, True, 48)
        assert "no longer there" in one["error"]
        metrics = service.http.get("/metrics").text
        assert 'palmette_index_up{index="one"} 0' in metrics
        assert 'palmette_documents{index="two"} 48' in metrics
        reply = service.http.get("/ready")
        assert (reply.status_code, reply.json()["reasons"]) == (503, ["an index is no longer where it was opened"])


def test_a_folder_is_ready_when_it_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Until then every reply says how much of it was read, and an answer from nothing is not sure."""
    begin, half, release, sync = threading.Event(), threading.Event(), threading.Event(), Index.sync_listing

    def in_two_parts(index: Index, name: str, listing: Any, **options: Any) -> Any:
        def wait(done: int, fresh: int) -> bool:
            going = options["on_commit"](done, fresh)
            half.set()
            return release.wait(30) and going

        begin.wait(30)
        return sync(index, name, listing, **{**options, "per_commit": 1, "on_commit": wait})

    monkeypatch.setattr(Index, "sync_listing", in_two_parts)
    space().save_pretrained(tmp_path / "model")
    (tmp_path / "notes").mkdir()
    for name in ("a.md", "b.md"):
        (tmp_path / "notes" / name).write_text("Owls sing.")
    served = ServedIndex("notes", str(tmp_path / "notes"), model=str(tmp_path / "model"))
    with running(served, wait=False, mcp=True) as service:
        try:
            told = {"ready": False, "reasons": ["an index indexes its folder: 0 of 2"]}
            until(lambda: service.http.get("/ready").json() == told)
            assert service.http.get("/ready").status_code == 503
            described = service.http.get("/openapi.json").json()
            reply = service.post("answer", question="owls?")
            check_described(described, reply)
            [answer] = reply.json()["answers"]
            assert (answer["answer"], answer["confidence"]) == ("", 0)
            assert reply.json()["indexing"] == {"done": 0, "total": 2}
            begin.set()
            half.wait(30)
            bodies = {
                "search": {"query": "owls"},
                "context": {"question": "owls"},
                "get": {"ids": ["x"]},
                "explain": {"query": "owls", "id": "notes/a.md"},
                "list": {},
                "fields": {},
                "overview": {},
            }
            for path, body in bodies.items():
                reply = service.post(path, **body)
                check_described(described, reply)
                assert reply.json()["indexing"] == {"done": 1, "total": 2}, path
            call = {"name": "search", "arguments": {"query": "owls"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            accept = {"accept": "application/json, text/event-stream"}
            result = service.http.post("/mcp", json=message, headers=accept).json()["result"]
            assert result["structuredContent"]["indexing"] == {"done": 1, "total": 2}
            assert "from 1 of 2 documents" in result["content"][-1]["text"]
            assert main(["search", str(tmp_path / "notes"), "owls"]) == 0
            printed = capsys.readouterr()
            assert ("a.md" in printed.out, "1 of 2 documents so far" in printed.err) == (True, True)
        finally:
            begin.set()
            release.set()
        until(lambda: service.http.get("/ready").json() == {"ready": True})
        assert "indexing" not in service.post("fields").json(), "no reply of that time is kept"


def test_a_strangers_folder_writes_nowhere_else(tmp_path: Path) -> None:
    """A repository may hold links under the names that a service writes to."""
    space().save_pretrained(tmp_path / "model")
    outside = tmp_path / "authorized_keys"
    outside.write_text("mine")
    notes = tmp_path / "notes"
    (notes / ".palmette").mkdir(parents=True)
    (notes / "a.md").write_text("The red owl lives here.")
    (notes / ".palmette" / ".gitignore").symlink_to(outside)
    served = ServedIndex("notes", str(notes), model=str(tmp_path / "model"))
    served.open()
    served.close()
    assert outside.read_text() == "mine"
    assert (notes / ".palmette" / ".gitignore").read_text() == "*\n"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".palmette").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a link: serve the index behind it"):
        ServedIndex("linked", str(tmp_path / "linked"), model=str(tmp_path / "model")).open()
    assert not (tmp_path / "index").exists()


def test_a_change_that_has_begun_ends(writable: Running) -> None:
    text = json.dumps({"documents": [{"id": "kept", "text": "kept"}]}).encode()
    with socket.create_connection(writable.address) as client:
        client.sendall(f"{HEAD.replace('search', 'add')}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    until(lambda: writable.post("get", ids=["kept"]).json()["documents"] != [None])


def test_errors_of_the_program_say_nothing(plain: Running, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(Index, "search", lambda *_, **__: 1 / 0)
    told = problem(plain.post("search", query="owl"), 500, "its log says why")
    assert "division" not in json.dumps(told)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_command_serves_until_it_is_told_to_stop(index: Index, tmp_path: Path, name: str) -> None:
    index.backup(tmp_path / "colours")
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-m", "palmette", "serve", f"docs={tmp_path / 'colours'}", "--port", "0", "--mcp"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            line = next(one for one in process.stderr if one.startswith("palmette serves"))
            assert line.startswith("palmette serves docs on http://127.0.0.1:")
            url = line.split()[-1]
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
                until(lambda: http.get("/ready").status_code == 200)
                assert (
                    http.post("/v1/search", json={"query": QUESTION}).json()["results"][0]["hits"][0]["id"] == "red-owl"
                )
                assert http.get("/").headers["content-type"].startswith("text/html")
            assert (tmp_path / ".colours.sock").is_socket()
            process.send_signal(getattr(signal, name))
            assert process.wait(60) == 0
        finally:
            process.kill()  # a failure above must not wait for ever
    assert not (tmp_path / ".colours.sock").exists()


def test_originals_go_to_readers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files come from the followed folder, by tickets that only readers of their documents get."""
    from palmette.service import indexes, originals

    monkeypatch.setattr(indexes, "POLL", 0.05)
    space().save_pretrained(tmp_path / "model")
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (tmp_path / "secret.md").write_text("The secret owl.")
    (notes / "red.md").write_text("---\ncolour: red\nsource: ../secret.md\n---\nThe red owl sings.\n")
    (notes / "sub" / "green.html").write_text("<p>The green owl sings.</p><script>hurt = 1</script>")
    (notes / "rows.csv").write_text("id,colour,text\n1,red,The red hen.\n2,green,The green hen.\n")
    (notes / "linked.md").write_text("The linked owl sings.")
    served = ServedIndex("notes", str(notes), model=str(tmp_path / "model"))
    tokens = [Token(name="ada", token=ADA), Token(name="bob", token=BOB, filter={"colour": "red"})]
    with running(served, tokens=tokens, wait=False) as service:
        until(lambda: service.http.get("/ready").status_code == 200)
        ask = lambda id, token=ADA: service.post("original", token, id=id)  # noqa: E731
        page = service.http.get(ask("notes/sub/green.html").json()["url"])
        assert page.content == (notes / "sub" / "green.html").read_bytes()
        assert page.headers["content-type"] == "application/octet-stream"
        assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''green.html"
        assert page.headers["content-security-policy"].endswith("; sandbox")
        assert page.headers["x-content-type-options"] == "nosniff"
        url = ask("notes/red.md", BOB).json()["url"]
        assert b"red owl" in service.http.get(url).content, "front matter names no other file"
        assert ask("notes/rows.csv#1").status_code == 200
        for id, token in (
            ("notes/sub/green.html", BOB),  # another tenant's
            ("notes/rows.csv#1", BOB),  # the file has rows of others
            ("notes/../secret.md", ADA),
            ("secret.md", ADA),
            ("notes/.palmette/index/index.sqlite", ADA),
        ):
            problem(ask(id, token), 404, "this document has no original here")
        assert ask("notes/red.md", "x" * 30).status_code == 401
        problem(service.http.get("/original?ticket=guessed"), 404, "no longer valid")
        # what a link was put in the place of is not read, nor is an old ticket
        late = ask("notes/linked.md").json()["url"]
        (notes / "linked.md").unlink()
        (notes / "linked.md").symlink_to(tmp_path / "secret.md")
        problem(service.http.get(late), 404, "cannot be opened any more")
        monkeypatch.setattr(originals, "TICKET_SECONDS", -1.0)
        problem(service.http.get(ask("notes/red.md").json()["url"]), 404, "no longer valid")
    with running(Path(served.path)) as plain:
        problem(plain.post("original", id="notes/red.md"), 404, "follows no folder")


def test_facets_find_what_they_count(tmp_path: Path) -> None:
    today, old = time.strftime("%Y-%m-%d"), "2001-01-01"
    names = [f"guide/{n}.md" for n in range(4)] + [f"api/{n}.PDF" for n in range(3)] + ["api.md/x.txt", "guide0/y.md"]
    made = [
        Document(f"n/{name}", f"Owl {name} sings.", {"source": name, "date": old if n % 2 else today})
        for n, name in enumerate(names)
    ]
    Index.build(made, space(), tmp_path / "n").close()
    with running(tmp_path / "n") as service:
        facets = {one["name"]: one["values"] for one in service.post("fields").json()["facets"]}
        assert {one["value"]: one["documents"] for one in facets["folder"]} == {
            "guide/": 4, "api/": 3, "api.md/": 1, "guide0/": 1,
        }  # fmt: skip
        assert {one["value"]: one["documents"] for one in facets["kind"]} == {"Markdown": 5, "PDF": 3, "text": 1}
        assert [(one["value"], one["documents"]) for one in facets["time"]] == [("last 7 days", 5)]
        for value in (value for values in facets.values() for value in values):
            assert len(service.post("list", filter=value["filter"]).json()["documents"]) == value["documents"], value


def test_html_comes_when_asked_for(plain: Running) -> None:
    lean, rich = (plain.post("answer", question=QUESTION, html=html).json()["answers"][0] for html in (False, True))
    assert [{**one, "html": ""} for one in lean["supports"]] == [{**one, "html": ""} for one in rich["supports"]]
    assert not any("html" in one for one in lean["supports"])
    assert all(one["html"].startswith("<p") for one in rich["supports"])
    [found] = plain.post("get", ids=["red-owl"], html=True, mark=[4, 11], words=[[4, 7]]).json()["documents"]
    assert "<mark><b>red</b> owl</mark>" in found["html"]
    assert "html" not in plain.post("get", ids=["red-owl"]).json()["documents"][0]
    [first] = plain.post("list", limit=1, html=True).json()["documents"]
    assert first["html"]
    described = plain.http.get("/openapi.json").json()
    check_described(described, plain.post("list", limit=1, html=True))
