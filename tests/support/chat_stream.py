"""A real server of OpenAI's protocol that streams what a script says, and sees when its client has gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.model_server import ModelServer


def events(*pieces: str, finish: str | None = "stop") -> Iterator[bytes]:
    """The server-sent events of a reply, as OpenAI's own server sends them."""
    for piece in pieces:
        yield data({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
    if finish is not None:
        yield data({"choices": [{"delta": {}, "finish_reason": finish}]})
        yield data({"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}})
        yield b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


class StreamServer(ModelServer):
    """Replies by ``reply``: (status, headers, chunks); a chunk that is a number is a pause in seconds."""

    def __init__(self) -> None:
        super().__init__(lambda body: (200, {}, events("Apples are picked ", "in September [1].")))
        self.gone = threading.Event()
        """The client has closed its connection before the end of a reply."""

    @property
    def keys(self) -> list[str | None]:
        """Keys of all requests."""
        return [headers.get("authorization") for headers in self.headers]

    def send(self, http: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: Any) -> None:
        """Send a reply as it comes."""
        http.send_response(status)
        kind = "text/event-stream" if status == 200 else "application/json"
        for name, value in ({"content-type": kind} | headers).items():
            http.send_header(name, value)
        http.end_headers()
        try:
            for chunk in content:
                if isinstance(chunk, float):
                    time.sleep(chunk)
                else:
                    http.wfile.write(chunk)
                    http.wfile.flush()
        except OSError:
            self.gone.set()

    def prompts(self) -> Sequence[str]:
        """The user's messages of all requests."""
        return [body["messages"][1]["content"] for body in self.bodies]
