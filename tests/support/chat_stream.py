"""A real server of OpenAI's protocol that streams what a script says, and sees when its client has gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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


class StreamServer:
    """Replies by ``reply``: (status, headers, chunks); a chunk that is a number is a pause in seconds."""

    def __init__(self) -> None:
        self.reply: Any = lambda body: (200, {}, events("Apples are picked ", "in September [1]."))
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone = threading.Event()
        """The client has closed its connection before the end of a reply."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.bodies.append(body)
                outer.keys.append(self.headers.get("authorization"))
                status, headers, chunks = outer.reply(body)
                self.send_response(status)
                kind = "text/event-stream" if status == 200 else "application/json"
                for name, value in ({"content-type": kind} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for chunk in chunks:
                        if isinstance(chunk, float):
                            time.sleep(chunk)
                        else:
                            self.wfile.write(chunk)
                            self.wfile.flush()
                except OSError:
                    outer.gone.set()
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def prompts(self) -> Sequence[str]:
        """The user's messages of all requests."""
        return [body["messages"][1]["content"] for body in self.bodies]

    def close(self) -> None:
        """Stop listening."""
        self.server.shutdown()
        self.server.server_close()
