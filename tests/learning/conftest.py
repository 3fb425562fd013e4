"""A server of OpenAI's chat protocol, and documents to ask about."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from palmette import Document
from palmette import endpoint

ANIMALS = ("owl", "cat", "horse", "whale", "ant", "eagle", "frog", "tiger", "snail", "wolf")


def animals(count: int = 10) -> list[Document]:
    """Documents that differ in one animal and one number each."""
    names = [f"{ANIMALS[n % 10]}{n // 10 or ''}" for n in range(count)]
    return [Document(name, f"The {name} lives in house number {n}00 and sings.") for n, name in enumerate(names)]


def animal_of(prompt: str) -> str:
    """Return the animal of the passage in a prompt."""
    return prompt.rsplit("The ", 1)[1].split()[0]


class ChatServer:
    """Answers ``/chat/completions``; ``reply`` makes (status, headers, body) of each request's body."""

    def __init__(self) -> None:
        self.reply: Callable[[dict[str, Any]], tuple[int, dict[str, str], Any]] = lambda body: self.chat(
            json.dumps({"questions": [f"Where does the {animal_of(self.prompt(body))} live?"]})
        )
        self.prompts: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.headers.append(dict(self.headers))
                outer.bodies.append(body)
                outer.prompts[outer.prompt(body)] += 1
                status, headers, content = outer.reply(body)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "content-length" not in headers:
                    self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @staticmethod
    def prompt(body: dict[str, Any]) -> str:
        """Return the prompt of a request."""
        return str(body["messages"][0]["content"])

    @staticmethod
    def chat(text: str, **message: Any) -> tuple[int, dict[str, str], Any]:
        """Make the body of a reply."""
        return 200, {}, {"choices": [{"message": {"content": text, **message}}], "usage": {"total_tokens": 50}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server, which ``openai:…`` finds in the environment; nothing waits long."""
    chat = ChatServer()
    monkeypatch.setenv("OPENAI_BASE_URL", chat.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)
    yield chat
    chat.server.shutdown()
    chat.server.server_close()
