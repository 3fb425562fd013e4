"""A real service on a free port of this machine, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from palmette.service.app import Service
from palmette.service.callers import Token
from palmette.service.checks import Settings
from palmette.service.indexes import ServedIndex
from palmette.service.run import Sockets, bind, server_of

HEAD = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The first lines of a search that a test writes to a socket itself."""


@dataclass
class Running:
    """A service that runs, and a client of it."""

    service: Service
    url: str
    http: httpx.Client

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def post(self, path: str, token: str | None = None, **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self.http.post(f"/v1/{path}", json=body, headers=headers)


@contextmanager
def running(
    *places: ServedIndex | Path, tokens: Sequence[Token] = (), mcp: bool = False, wait: bool = True, **settings: Any
) -> Iterator[Running]:
    served = [one if isinstance(one, ServedIndex) else ServedIndex(one.name, str(one)) for one in places]
    service = Service(served, Settings(port=0, **settings), tokens)
    if mcp:
        from palmette.service.mcp import mount

        mount(service)
    tcp, sockets = bind(service.settings), Sockets(service)
    server = server_of(service, grace=5)
    thread = threading.Thread(target=server.run, args=([tcp, *sockets.open],))
    url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            until(lambda: server.started)
            if wait:
                until(lambda: http.get("/ready").status_code == 200 or service.failures)
                until(lambda: service.metrics.in_flight == 0)  # a reply arrives before its request is counted
            yield Running(service, url, http)
    finally:
        server.should_exit = True
        thread.join()
        sockets.close()
        tcp.close()


def until(true: Any, seconds: float = 30) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.02)
