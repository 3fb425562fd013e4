"""A real server of OpenAI's protocol on this machine: chat, and embeddings of the fake encoder."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from palmette import FakeEncoder
from palmette.encoder.pooled import PROBE

Served = tuple[int, dict[str, str], Any]
"""Status, headers and body of a reply; a body of bytes goes as it is."""
WIDTH = 48
"""Width of the vectors."""


class ModelServer:
    """Answers every POST by ``reply``, which makes (status, headers, body) of the request's body."""

    def __init__(self, reply: Callable[[dict[str, Any]], Served]) -> None:
        self.reply = reply
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.paths.append(self.path)
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.bodies.append(body)
                status, headers, content = outer.reply(body)
                outer.send(self, status, headers, content)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def send(self, http: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: Any) -> None:
        """Send a reply."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        http.send_response(status)
        for name, value in ({"content-length": str(len(data))} | headers).items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(data)

    def close(self) -> None:
        """Stop listening."""
        self.server.shutdown()
        self.server.server_close()


class ChatServer(ModelServer):
    """Answers ``/chat/completions``, and counts the prompts."""

    @property
    def prompts(self) -> Counter[str]:
        """Number of requests by their prompt."""
        return Counter(map(self.prompt, self.bodies))

    @staticmethod
    def prompt(body: dict[str, Any]) -> str:
        """Return the prompt of a request."""
        return str(body["messages"][0]["content"])

    @staticmethod
    def chat(text: str, **message: Any) -> Served:
        """Make the body of a reply."""
        return 200, {}, {"choices": [{"message": {"content": text, **message}}], "usage": {"total_tokens": 50}}


class EmbeddingServer(ModelServer):
    """Answers ``/embeddings`` with vectors of the fake encoder."""

    def __init__(self) -> None:
        self.encoder = FakeEncoder(WIDTH)
        super().__init__(self.embeddings)

    def embeddings(self, body: dict[str, Any]) -> Served:
        """Make the reply of a request; a token is a word."""
        texts: Sequence[str] = body["input"]
        vectors = self.encoder.encode([text or " " for text in texts]).tolist()
        rows = [{"object": "embedding", "index": row, "embedding": vector} for row, vector in enumerate(vectors)]
        tokens = sum(len(text.split()) for text in texts)
        return 200, {}, {"data": rows, "model": body["model"], "usage": {"prompt_tokens": tokens}}

    @property
    def texts(self) -> Counter[str]:
        """Number of times that each text was sent, except the one that identifies the model."""
        return Counter(text for body in self.bodies for text in body["input"] if text != PROBE)
