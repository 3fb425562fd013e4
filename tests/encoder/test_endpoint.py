"""Requests to a model server: limits of time and size, the key, and addresses, against sockets on this machine."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from palmette.errors import PalmetteError, RemoteError
from palmette.machine import endpoint
from palmette.machine.endpoint import Endpoint
from palmette.machine.llm import as_llm

KEY = "sk-0123456789abcdef0123456789abcdef"
Talk = Callable[[socket.socket], object]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)


@contextmanager
def server(talk: Talk) -> Iterator[str]:
    """A server that reads a request and then says what ``talk`` says."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(client: socket.socket) -> None:
        with client, suppress(OSError):
            received = b""
            while not received.endswith(b"}"):  # what is left unread would reset the connection
                received += client.recv(1 << 16)
            talk(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.close()


def asked(url: str, **options: Any) -> Any:
    return Endpoint("/embeddings", url).post({"input": ["owl"]}, lambda facts: facts, **options)


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def drip(client: socket.socket) -> None:
    """Send a body that never ends, each byte soon after the one before, so that no silence ends it."""
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n")
    while True:
        client.sendall(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("options", [{}, {"patience": 0.4}])
def test_no_reply_takes_for_ever(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SLOWEST", 60 if options else 0.3)
    monkeypatch.setattr(endpoint, "ATTEMPTS", 2)
    begun = time.monotonic()
    with server(drip) as url, pytest.raises(RemoteError, match=r"failed [12] times.*took too long"):
        asked(url, **options)
    assert time.monotonic() - begun < 10


def test_replies_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LARGEST_REPLY", 1 << 20)
    packed = gzip.compress(b" " * (1 << 21))
    for body, headers in ((b" " * (1 << 21), []), (packed, ["Content-Encoding: gzip"])):
        content = reply(body, *headers)
        with (
            server(lambda client, content=content: client.sendall(content)) as url,  # type: ignore[misc]
            pytest.raises(RemoteError, match="answered with more than 1,048,576 bytes"),
        ):
            asked(url)


def test_a_packed_reply_is_read() -> None:
    facts = {"data": list(range(1000))}
    packed = gzip.compress(json.dumps(facts).encode())
    with server(lambda client: client.sendall(reply(packed, "Content-Encoding: gzip"))) as url:
        assert asked(url).content == facts


LEAKS = {
    "a redirect": reply(b"", f"Location: https://{KEY}.example/v1", status="307 Temporary Redirect"),
    "an error that is cut short": reply(
        json.dumps({"error": {"message": "x" * 290 + KEY}}).encode(), status="400 Bad Request"
    ),
    "an error in parts": reply(json.dumps({"error": {"said": ["x" * 270, KEY]}}).encode(), status="401 Unauthorized"),
    "a status that is tried again": reply(json.dumps({"message": "y" * 280 + KEY}).encode(), status="500 Oh"),
    "half a head": b"HTTP/1.1 " + KEY.encode() + b"\r\n\r\n",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_no_error_repeats_a_part_of_the_key(leak: str) -> None:
    with server(lambda client: client.sendall(LEAKS[leak])) as url, pytest.raises(PalmetteError) as raised:
        as_llm(f"openai:m@{url}").complete("owl?", {})
    error: BaseException | None = raised.value
    while error is not None:
        assert KEY[:8] not in str(error)
        error = error.__cause__ or error.__context__


def test_an_address_that_no_client_takes() -> None:
    for url in ("https://host\x7f/v1", "https://a..b/v1", "https://[::1/v1", "https://xn--/v1"):
        with pytest.raises(PalmetteError):
            asked(url, patience=0.5)


def test_texts_of_half_characters_are_sent() -> None:
    with server(lambda client: client.sendall(reply(b'{"data": 1}'))) as url:
        sent = Endpoint("/embeddings", url).post({"input": ["owl \ud800"]}, lambda facts: facts["data"])
    assert sent.content == 1


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts for a server on this machine may travel without encryption, but not to a proxy."""
    with server(lambda client: client.sendall(reply(b'{"data": 1}'))) as url:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert asked(url).content == {"data": 1}


NUMBERS = ['["1", "2"]', "[null, 1]", "[true, false]", "[[1], 2]", "[1e999]", "[{}]", "1", '"a"', "[]"]


@pytest.mark.parametrize("vector", NUMBERS)
def test_vectors_are_lists_of_numbers(vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from palmette.encoder.remote import ServerEncoder

    monkeypatch.setattr(endpoint, "ATTEMPTS", 1)
    body = f'{{"data": [{{"index": 0, "embedding": {vector}}}]}}'.encode()
    with (
        server(lambda client: client.sendall(reply(body))) as url,
        pytest.raises(PalmetteError),
        np.errstate(all="raise"),
    ):
        ServerEncoder(f"openai:m@{url}")
