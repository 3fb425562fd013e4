"""The page of an inspection on this machine, where any query can be asked.

It answers this machine only: the socket is bound to 127.0.0.1, requests under another host's name are refused (so
that no web page can reach it by pointing its own name here), and so are calls that a browser says come from
another site.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from palmette.errors import InputError, PalmetteError
from palmette.methods.tree.inspection.page import page, route_json

if TYPE_CHECKING:
    from palmette.methods.tree.inspection.inspection import TreeInspection

__all__ = ["TreeServer"]

LONGEST = 2000
"""Characters of a query."""


class TreeServer(ThreadingHTTPServer):
    """``with TreeServer(inspection) as server: server.serve_forever()``; the page is at ``server.url``.

    Args:
        inspection: What to show; its index answers the queries.
        port: Where to listen; 0 takes a free port.
    """

    daemon_threads = True

    def __init__(self, inspection: TreeInspection, port: int = 0) -> None:
        self.inspection = inspection
        self.page = page(inspection, live=True).encode()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError, TypeError) as error:
            raise InputError(
                f"port {port!r} cannot be listened on ({error}); give another, or 0 for a free one"
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def answer(self, address: str) -> tuple[int, str, bytes]:
        """Status, type and body for a path with its query."""
        asked = urlsplit(address)
        if asked.path == "/":
            return 200, "text/html; charset=utf-8", self.page
        if asked.path != "/route":
            return 404, "text/plain", b"there is only / and /route?q="
        query = parse_qs(asked.query, errors="replace").get("q", [""])[0]
        try:
            if len(query) > LONGEST:
                raise InputError(f"a query may have {LONGEST:,} characters here, got {len(query):,}")
            status, answer = 200, route_json(self.inspection.show(query).routes[0])
        except PalmetteError as error:
            status, answer = 400, {"error": str(error)}
        return status, "application/json", json.dumps(answer).encode()


class _Handler(BaseHTTPRequestHandler):
    server: TreeServer
    server_version, sys_version = "palmette", ""
    timeout = 30

    def do_GET(self) -> None:
        """The page, or a query's way."""
        foreign = self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
        if self.headers.get("Host") not in self.server.hosts or (foreign and self.path != "/"):
            status, kind, body = 403, "text/plain", b"this page answers its own machine only"
        else:
            status, kind, body = self.server.answer(self.path)
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's."""
