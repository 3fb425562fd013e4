"""A model server that means harm: replies that never end, unpack to gigabytes, or repeat the key."""

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
from palmette.learning.llm import as_llm
from palmette.machine import endpoint
from palmette.machine.endpoint import Endpoint

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
            while b"\r\n\r\n" not in received:
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


def drip(client: socket.socket, first: bytes, part: bytes, pause: float = 0.02) -> None:
    client.sendall(first)
    while True:
        client.sendall(part)
        time.sleep(pause)


SLOW: dict[str, Talk] = {
    "a status line": lambda client: drip(client, b"HTTP/1.1 200 O", b"O"),
    "a head": lambda client: drip(client, b"HTTP/1.1 200 OK\r\n", b"x: 1\r\n"),
    "interim replies": lambda client: drip(client, b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0),
    "a body": lambda client: drip(client, b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", b" "),
    "chunks": lambda client: drip(client, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk's head": lambda client: drip(client, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    "trailers": lambda client: drip(
        client, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x: 1\r\n"
    ),
    "blocks that unpack to nothing": lambda client: drip(
        client,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9999999\r\n\r\n" + gzip.compress(b"")[:10],
        b"\x00\x00\x00\xff\xff",
    ),
}


@pytest.mark.parametrize("kind", SLOW)
def test_no_reply_takes_for_ever(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon after the one before, so that no silence ends it."""
    monkeypatch.setattr(endpoint, "SLOWEST", 0.5)
    monkeypatch.setattr(endpoint, "ATTEMPTS", 2)
    begun = time.monotonic()
    with server(SLOW[kind]) as url, pytest.raises(RemoteError, match="failed 2 times"):
        asked(url)
    assert time.monotonic() - begun < 5


def test_a_question_waits_no_longer_than_its_patience() -> None:
    begun = time.monotonic()
    with server(SLOW["interim replies"]) as url, pytest.raises(RemoteError, match="took too long"):
        asked(url, patience=0.5)
    assert time.monotonic() - begun < 3


BOMB = gzip.compress(bytes(1 << 22))
PACKED = {
    "gzip": (gzip.compress(b" " * (1 << 23)), "more than 4,194,304 bytes"),
    "gzip, gzip": (gzip.compress(BOMB), "which was not asked for"),
    "br": (b"\x1b\x00", "which was not asked for"),
    "zstd": (b"\x28\xb5\x2f\xfd", "which was not asked for"),
}


@pytest.mark.parametrize("packing", PACKED)
def test_small_replies_that_unpack_to_large_ones(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LARGEST_REPLY", 1 << 22)
    content, words = PACKED[packing]
    with (
        server(lambda client: client.sendall(reply(content, f"Content-Encoding: {packing}"))) as url,
        pytest.raises(RemoteError, match=words),
    ):
        asked(url)


def test_a_packed_reply_is_read() -> None:
    facts = {"data": list(range(1000))}
    packed = gzip.compress(json.dumps(facts).encode())
    with server(lambda client: client.sendall(reply(packed, "Content-Encoding: gzip"))) as url:
        assert asked(url).content == facts


def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_REPLY_VALUES", 1000)
    content = b"[" + b"[]," * 600 + b"[]]"
    with (
        server(lambda client: client.sendall(reply(content))) as url,
        pytest.raises(RemoteError, match="more than 1,000 values"),
    ):
        asked(url)


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


NUMBERS = ['["1", "2"]', "[null, 1]", "[true, false]", "[[1], 2]", "[1e999]", f"[{'1,' * 70_000}1]", "[{}]", "1", '"a"']


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
