"""Clients that mean harm: idle, slow, greedy, malformed; and tenants who look for each other."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, Index
from palmette.errors import InputError
from palmette.machine import threads
from palmette.service import app, calls, connections, indexes
from palmette.service.callers import Token
from palmette.service.calls import ENDPOINTS
from palmette.service.indexes import ServedIndex
from palmette.service.schema import GetBody, ListBody, SearchBody
from palmette.store.protocols import READ_LIMIT
from support.services import HEAD, Running, running, until
from support.tiny import documents, space, tree

ADA, BOB = "ada's token, long enough", "bob's token, long enough"
TOKENS = (
    Token(name="ada", token=ADA, filter={"colour": "red"}, write=True),
    Token(name="bob", token=BOB, filter={"colour": "green"}, write=True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "colours"
    Index.build(documents(), space(), path).close()
    return path


def is_cut(client: socket.socket) -> bool:
    """Whether the other side has closed a connection."""
    client.settimeout(0.05)
    try:
        return client.recv(1 << 16) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_idle_connections_keep_nobody_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with running(folder) as service, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(service.address)) for _ in range(60)]
        until(lambda: sum(map(is_cut, idle)) >= 40)  # before a request: the client's own connection was idle, too
        assert service.post("search", query="red owl").status_code == 200


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET"])
def test_heads_arrive_in_time(head: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first one, the rest of one, and the one after an answer."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with running(folder) as service, socket.create_connection(service.address) as client:
        begun = time.monotonic()
        client.sendall(head)
        until(lambda: is_cut(client), 10)
        assert time.monotonic() - begun < 5
        assert service.http.get("/health").status_code == 200


def test_answers_are_read_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and asks and reads nothing keeps neither a place nor memory."""
    monkeypatch.setattr(connections, "READ_SECONDS", 0.5)
    with running(folder) as service, socket.create_connection(service.address) as client:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.settimeout(10)
        with pytest.raises(ConnectionError):
            for _ in range(20_000):
                client.sendall(request * 50)
        until(lambda: service.service.metrics.in_flight == 0)
        assert service.http.get("/health").status_code == 200


def test_bodies_are_read_of_callers_alone(folder: Path) -> None:
    """Who has no token cannot leave half of a body in memory, on a page that needs none."""
    with running(folder, tokens=TOKENS, timeout=30) as service:
        for head in ("Content-Length: 999", "Transfer-Encoding: chunked"):
            with socket.create_connection(service.address) as client:
                client.settimeout(10)
                client.sendall(f"POST /health HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
                assert b" 405 " in client.recv(1 << 16).partition(b"\r\n")[0]
        assert service.http.request("GET", "/health", content=b"{}").json()["status"] == "ok"


@pytest.mark.parametrize("sent", [b"{", b" " * 998])
def test_halves_of_bodies_leave_room_to_others(sent: bytes, folder: Path) -> None:
    """Neither by number nor by size has one token all of it; what does not arrive in time is given up."""
    head = f"{HEAD}Content-Length: 999\r\nAuthorization: Bearer {ADA}\r\n\r\n"
    with running(folder, tokens=TOKENS, waiting=16, max_body=1000, timeout=1) as service, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(service.address)) for _ in range(20)]
        for client in slow:
            client.sendall(head.encode() + sent)
        received = []
        for client in slow:
            client.settimeout(10)
            received.append(client.recv(1 << 16)[:12])
            assert service.post("search", BOB, query="green owl").status_code == 200
        assert received.count(b"HTTP/1.1 408") == (8 if len(sent) == 1 else 4)
        assert received.count(b"HTTP/1.1 503") == 20 - received.count(b"HTTP/1.1 408")
        assert service.post("search", ADA, query="red owl").status_code == 200


def test_one_token_leaves_places_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, search, begun = threading.Event(), Index.search, list[int]()
    with running(folder, tokens=TOKENS, waiting=8) as service, ThreadPoolExecutor(4) as pool:
        slowed = lambda *a, **o: begun.append(1) or (release.wait(30) and search(*a, **o))  # noqa: E731
        monkeypatch.setattr(Index, "search", slowed)
        try:
            waiting = [pool.submit(service.post, "search", ADA, query="red owl") for _ in range(4)]
            until(lambda: len(begun) == 4)
            assert service.post("get", BOB, ids=["x"]).status_code == 200
            assert service.post("get", ADA, ids=["x"]).status_code == 503
        finally:
            release.set()
        assert [one.result().status_code for one in waiting] == [200] * 4
        assert service.post("search", token=ADA, query="red owl").status_code == 200


def test_slow_calls_of_one_token_leave_threads_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their clients have gone: the threads are busy until the calls end."""
    monkeypatch.setattr(threads, "_blocking", ThreadPoolExecutor(4))
    monkeypatch.setattr(app, "WORKERS", 4)
    release, search = threading.Event(), Index.search

    def slow(index: Index, query: str, *args: Any, **options: Any) -> Any:
        if "slow" in query:
            release.wait(30)
        return search(index, query, *args, **options)

    body = b'{"query": "slow"}'
    head = f"{HEAD}Content-Length: {len(body)}\r\nAuthorization: Bearer {ADA}\r\n\r\n"
    with running(folder, tokens=TOKENS, timeout=10) as service:
        monkeypatch.setattr(Index, "search", slow)
        try:
            for _ in range(2):
                clients = [socket.create_connection(service.address) for _ in range(6)]
                for client in clients:
                    client.sendall(head.encode() + body)
                until(lambda: service.service.metrics.in_flight == 6)
                assert service.post("search", token=BOB, query="green owl").status_code == 200
                for client in clients:
                    client.close()
                until(lambda: service.service.metrics.in_flight == 0)
            assert service.post("search", token=BOB, query="green owl").status_code == 200
        finally:
            release.set()
        assert service.post("search", token=ADA, query="red owl").status_code == 200


def test_a_refused_client_learns_why(folder: Path) -> None:
    """A connection that is closed with unread bytes of a body is reset, and its client may miss the answer."""
    head = f"{HEAD}Content-Length: 300000\r\nAuthorization: Bearer {ADA}\r\nConnection: close\r\n\r\n"
    with running(folder, tokens=TOKENS, rate=10) as service:
        assert service.post("search", token=ADA, query="red owl").status_code == 200
        with socket.create_connection(service.address) as client:
            client.sendall(head.encode() + b" " * 300_000)
            client.settimeout(10)
            time.sleep(1)  # the answer and what follows it have arrived
            received = b""
            while some := client.recv(1 << 16):
                received += some
            assert received.startswith(b"HTTP/1.1 429 ")
            assert received.endswith(b"}")
            assert service.post("search", token=BOB, query="green owl").status_code == 200


SMUGGLED = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: +5",
    "Content-Length: 5, 6", "Content-Length: -1", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding : chunked", "X: a\r\n b", "Host: evil.example", f"X: {'a' * 100_000}", "\x00: a",
    "Expect: 100-continue\r\nContent-Length: 999999999999999999999",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSA=\r\nSec-WebSocket-Version: 13",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Host: evil.example", "Authorization: Bearer \x80\xff",
]  # fmt: skip


@pytest.mark.parametrize("header", SMUGGLED)
def test_a_request_is_one_request(header: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No request inside the body of another is answered, and the next connection is served."""
    inner = b"0\r\n\r\nGET /v1/indexes HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(folder) as service, socket.create_connection(service.address) as client:
        head = f"{HEAD}{header}\r\n\r\n"
        client.sendall(head.encode("latin-1") + inner)
        client.settimeout(5)
        received = b""
        try:
            while part := client.recv(1 << 16):
                received += part
                if b"Content-Length: 5\r\nTransfer" not in head.encode("latin-1") and b"\r\n\r\n" in received:
                    time.sleep(0.1)
                    client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert b'"indexes"' not in received, received
        assert b" 500 " not in received
        assert b" 101 " not in received
        assert service.http.get("/health").status_code == 200
    assert "Traceback" not in caplog.text


PATHS = [
    "/v1/search%00", "/v1/../v1/search", "/v1//search", "/%2e%2e/%2e%2e/etc/passwd", "/v1/search/", "/v1/search?x",
    "/" + "a" * 8000, "//evil.example/v1/search", "/v1/%ff%fe", "/page.js%00.html", "/v1/search;a=b", "*",
    "/%0d%0aX:%20y",
]  # fmt: skip
METHODS = "GET HEAD OPTIONS PUT PATCH DELETE TRACE CONNECT PROPFIND BREW".split()


def test_odd_paths_and_methods(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(folder, mcp=True, timeout=3) as service:
        for target in [*PATHS, "/v1/search", "/", "/health", "/mcp"]:
            for method in [*METHODS, "POST"]:
                with socket.create_connection(service.address) as client:
                    client.settimeout(10)
                    client.sendall(
                        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                    )
                    first = client.recv(1 << 16)
                status = int(first.split(b" ")[1])
                assert status < 500, (method, target, first)
                assert b"\r\nX: y" not in first
        events = {"accept": "text/event-stream"}
        assert service.http.get("/mcp", headers=events).status_code == 405, "it would wait for ever"
        assert "Traceback" not in caplog.text


def nested(depth: int) -> Any:
    value: Any = {"colour": "red"}
    for _ in range(depth):
        value = {"$not": value}
    return value


SEEDS = [pytest.param(range(1)), pytest.param(range(1, 40), marks=pytest.mark.exhaustive)]
NAMES = [
    "index", "k", "filter", "lexical", "sentences", "boost", "options", "query", "question", "threshold", "explain",
    "group_by", "distinct", "tokens", "id", "ids", "offset", "limit", "documents", "source",
    "delete", "useful", "run", "person", "topics", "__proto__", "\ud800",
]  # fmt: skip
TEXTS = [
    "owl", "", " ", "\x00", "\ud800", "a" * 9000, "../../etc/passwd", "%00", "e\u0301" * 3000, '"', "red owl", "{}",
]  # fmt: skip
OTHER: list[Any] = [
    *TEXTS, 10**400, 1e308, -0.0, [], [[]], {}, {"$and": []}, nested(60), nested(900), ["owl"] * 101,
    {"text": "an owl"}, [{"text": "an owl", "metadata": {"colour": "red"}}], [{"id": "\x00", "text": "x"}], True, None,
]  # fmt: skip


def a_body(draw: random.Random, endpoint: Any) -> Any:
    """A request that is right but for one to three odd values, or odd altogether."""
    body = dict(endpoint.example)
    if draw.random() < 0.1:
        return draw.choice(OTHER)
    for _ in range(draw.choice([1, 1, 2, 3])):
        known = list(endpoint.body.model_fields)
        body[draw.choice([*known, *known, draw.choice(NAMES)])] = draw.choice(OTHER)
    return body


@pytest.mark.parametrize("seeds", SEEDS)
def test_whatever_is_sent_is_answered_or_refused(seeds: range, folder: Path, tmp_path: Path, caplog: Any) -> None:
    with Index.open(folder) as index:
        index.backup(tmp_path / "colours")
    with running(tmp_path / "colours", write=True, rate=1e9) as service:
        for seed in seeds:
            draw = random.Random(seed)
            for _ in range(25):
                for endpoint in ENDPOINTS:
                    try:
                        content = json.dumps(a_body(draw, endpoint), default=repr).encode()
                    except (ValueError, RecursionError, TypeError):
                        continue
                    headers = {"content-type": "application/json", "accept": draw.choice(["*/*", "text/event-stream"])}
                    reply = service.http.post(endpoint.path, content=content, headers=headers)
                    allowed = (501,) if reply.status_code == 501 else ()
                    assert reply.status_code < 500 or reply.status_code in allowed, (content[:300], reply.text[:500])
                    assert str(tmp_path) not in reply.text, reply.text
        assert "Traceback" not in caplog.text
        assert service.post("search", query="red owl").status_code == 200


def test_replies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_DOCUMENT_BYTES", 100_000)
    monkeypatch.setattr(indexes, "MOST_CHARACTERS", 100_000)
    long = [Document(f"long{n}", f"word{n} " * 5000) for n in range(4)]
    Index.build([*documents(), *long], space(), tmp_path / "long", passages=None).close()
    with running(tmp_path / "long") as service:
        for call, body in (("get", {"ids": ["long1"] * 100}), ("list", {"limit": 100})):
            reply = service.post(call, **body)
            assert reply.status_code == 400, reply.text[:300]
            assert "ask for fewer" in reply.json()["detail"]
        assert [one["id"] for one in service.post("list", limit=2, offset=49).json()["documents"]] == ["long1", "long2"]
        assert service.post("get", ids=["long1", "nobody", "red-owl"]).status_code == 200
        for body in (
            {"k": 1000, "query": ["owl"] * 11},
            {"query": "word1", "k": 100},
            {"query": ["word1"] * 5, "k": 1},
        ):
            assert service.post("search", **body).status_code == 400
        assert service.post("answer", k=1000, question=["owl"] * 11).status_code == 400
        assert "ask for fewer" in service.post("context", k=100, question="word1").json()["detail"]
        assert service.post("search", query="red owl", k=1).json()["results"][0]["hits"][0]["id"] == "red-owl"


def test_no_more_documents_are_loaded_than_a_reply_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_DOCUMENT_BYTES", 2_000_000)
    context = copy_context()
    context.run(READ_LIMIT.set, 2_000_000)  # as a served index does
    long = [Document(f"long{n}", f"word{n} " * 140_000, {"t": "a"}, payload={"n": n}) for n in range(24)]
    ids = [document.id for document in long]
    with Index.build(long, space(), tmp_path / "long", passages=None, sentences=False, tenant="t") as index:
        for one in (index, index.filtered({"t": "a"})):
            for call, body in (
                (calls._search, SearchBody(query="word1", k=24)),
                (calls._get, GetBody(ids=ids if one is not index else tuple(f"a/{id}" for id in ids))),
                (calls._list, ListBody(limit=100)),
            ):
                tracemalloc.start()
                with pytest.raises(InputError, match="ask for fewer"):
                    context.run(call, body, one, None)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < 10e6, (call, peak)


# -- tenants ------------------------------------------------------------------------------------------------


MINE = {"id": "b1", "text": "mine"}
OF_ANY: list[tuple[str, dict[str, Any]]] = [
    *(
        (call, {name: query, **options})
        for query in ("zanzibar owl 4711", "red owl", "the of is")
        for call, name, options in (
            ("search", "query", {"k": 20, "explain": True}),
            ("answer", "question", {}),
            ("context", "question", {}),
            ("search", "query", {"group_by": "document"}),
        )
    ),
    ("explain", {"query": "owl", "id": "b1"}), ("explain", {"query": "owl 4711", "id": "1"}),
    ("get", {"ids": ["1", "b1", "b/b1"]}),
    ("list", {"limit": 100}), ("list", {"filter": {"secret": 1}}), ("list", {"filter": {"t": "b"}}), ("fields", {}),
    ("feedback", {"query": "q", "id": "b1", "useful": True}), ("feedback", {"id": "b1", "useful": True}),
    ("overview", {}), ("overview", {"filter": {"secret": 1}}),
    ("delete", {"ids": ["b1"]}), ("delete", {"filter": {"secret": 1}}), ("add", {"documents": [MINE]}),
    ("upsert", {"documents": [MINE | {"metadata": {"t": "a"}}]}),
    ("sync", {"source": "s", "documents": [{"id": "s1", "text": "an owl", "metadata": {"t": "a"}}]}),
    ("sync", {"source": "s", "documents": []}),
    ("search", {"query": "owl 4711", "k": 20}), ("search", {"query": "owl", "index": "x"}),
]  # fmt: skip
"""Requests about what a tenant and what another one has, in this order."""


def seen_by(token: str, service: Running) -> list[Any]:
    """All that a token can learn."""
    authorization = {"authorization": f"Bearer {token}"}
    replies = [service.http.get(path, headers=authorization) for path in ("/v1/indexes", "/metrics")]
    seen: list[Any] = [(reply.status_code, reply.text) for reply in replies]
    for reply in (service.post(call, token, **body) for call, body in OF_ANY):
        headers = {name: value for name, value in reply.headers.items() if name != "date"}
        seen.append((reply.status_code, reply.text, headers))
    return seen


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.exhaustive)])
def test_no_reply_tells_of_another_tenant(seeds: range, tmp_path: Path) -> None:
    """Two services that differ in another tenant's documents, sources, votes and requests answer the same bytes."""
    tokens = (
        Token(name="a", token=ADA, filter={"t": "a"}, write=True),
        Token(name="b", token=BOB, filter={"t": "b"}, write=True),
    )
    own = [
        Document(str(n), text, {"t": "a", "lang": "en", "date": f"202{n}-01-01"})
        for n, text in enumerate(
            ["The red owl sleeps in the oak. It wakes at night.", "A blue fox and the code.", "Zanzibar has 4711 owls."]
            * 4
        )
    ]
    known = None
    for seed in [None, *seeds]:
        draw, place = np.random.default_rng(seed or 0), tmp_path / str(seed) / "index"
        model = space() if (seed or 0) >= 0 else tree()
        with Index.build(own[:6], model, place, tenant="t", progress=False) as index:
            index.feedback_log.recording = True
        with running(place, tokens=tokens) as service:
            if seed is not None:
                words = "owl fox code 4711 4712 zanzibar red the of".split()
                theirs = [
                    {
                        "id": f"b{n}",
                        "text": " ".join(draw.choice(words, 9).tolist()),
                        "metadata": {"t": "b", "secret": 1},
                    }
                    for n in range(int(draw.integers(1, 40)))
                ]
                assert service.post("upsert", BOB, documents=theirs).status_code == 200
                synced = [{"id": "s1", "text": "their owl", "metadata": {"t": "b"}}]
                assert service.post("sync", BOB, source="s", documents=synced).status_code == 200
                service.post("feedback", BOB, query="owl", id="b0", useful=True)
                service.post("overview", BOB), service.post("fields", BOB), service.post("search", BOB, query="4711")
            later = [{"id": one.key, "text": one.text, "metadata": dict(one.metadata)} for one in own[6:]]
            assert service.post("add", ADA, documents=later).status_code == 200
            seen = seen_by(ADA, service)
        known = known or seen
        for first, second in zip(known, seen, strict=True):
            assert first == second, (seed, first, second)


def test_tokens_of_some_indexes_or_documents_see_no_totals(folder: Path, tmp_path: Path) -> None:
    with Index.open(folder) as index:
        index.backup(tmp_path / "secret")
    tokens = (Token(name="some", token=ADA, indexes=("colours",)), Token(name="all", token=BOB))
    with running(folder, tmp_path / "secret", tokens=tokens) as service:
        for token, status in ((ADA, 403), (BOB, 200)):
            headers = {"authorization": f"Bearer {token}"}
            reply = service.http.get("/metrics", headers=headers)
            assert reply.status_code == status
            assert ("secret" in reply.text) == (status == 200)


def test_progress_and_paths_of_a_followed_folder(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for n in range(3):
        (notes / f"{n}.md").write_text(f"---\ncolour: red\n---\nAn owl in house {n}.")
    space().save_pretrained(tmp_path / "model")
    tokens = (*TOKENS, Token(name="all", token="all of it, long enough"))
    with running(ServedIndex("notes", str(notes), model=str(tmp_path / "model")), tokens=tokens) as service:
        followed = service.service.served["notes"]
        until(lambda: followed.progress.done == 3)
        followed.progress.error = f"{notes}/secret.md: cannot be read"
        for token, fields in (("all of it, long enough", {"done", "total", "error", "folder"}), (ADA, {"folder"})):
            reply = service.http.get("/v1/indexes", headers={"authorization": f"Bearer {token}"})
            assert set(reply.json()["indexes"][0]["follows"]) == fields
            assert str(tmp_path) not in reply.text
