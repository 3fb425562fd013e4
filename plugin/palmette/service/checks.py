"""Checks of a request: host, origin, token, rate and size; its reply gets headers, and its error problem details."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Protocol
from urllib.parse import SplitResult, urlsplit

from pydantic import Field
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palmette import __version__
from palmette.config import Config
from palmette.errors import shown
from palmette.service.callers import Caller, Callers, Rate
from palmette.service.metrics import Metrics

log = logging.getLogger("palmette.service")

BODIES = 8
"""Number of the largest bodies that may be in memory together."""
SHARE = 2
"""One of so many parts of the places, of the reading threads and of the memory of bodies that one token may take."""
REFUSED_BYTES = 1 << 20
"""Bytes of a refused request's body that are read before the answer."""
REFUSED_SECONDS = 0.5
"""Seconds within which they must come."""
OPEN = {"/", "/page.js", "/page.css", "/health", "/ready", "/openapi.json", "/original"}
"""Paths that need no token: they hold no data, and ``/original`` needs a ticket that a token has bought."""
HEADERS = {
    "palmette-version": __version__,
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of every response."""
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content policy of a response: it may load and run nothing; the page allows its own files."""


class Settings(Config):
    """Limits of a service, and where it listens."""

    host: str = "127.0.0.1"
    """Address to listen on; another than this machine's own needs tokens."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7411
    """Port; 0 for a free one."""
    hosts: tuple[str, ...] = ()
    """Further names in a request's Host header, such as the public name behind a proxy."""
    write: bool = False
    """Whether requests without a token may change documents, where there are no tokens."""
    max_body: Annotated[int, Field(ge=1)] = 16 * 2**20
    """Bytes of the largest request."""
    timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a question may take, and that a request may take to arrive."""
    rate: Annotated[float, Field(gt=0)] = 6000.0
    """Requests per minute of a caller; a tenth of them may come at once."""
    waiting: Annotated[int, Field(ge=1)] = 256
    """Requests that are answered at a time; further ones are refused."""

    @property
    def is_loopback(self) -> bool:
        """True if the service listens for this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Problem(Exception):
    """An HTTP error that is no PalmetteError; by default its status names it."""

    def __init__(self, status: HTTPStatus, detail: str, *, name: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status, self.name = status, name or status.phrase
        self.headers = {header.replace("_", "-"): value for header, value in headers.items()}


def _split(url: str) -> SplitResult:
    """Split a URL; an invalid one has no parts."""
    try:
        return urlsplit(url)
    except ValueError:  # an address with one bracket
        return urlsplit("")


async def read_refused(receive: Receive) -> None:
    """Read a small body that comes at once, before its request is refused.

    A connection that is closed with unread bytes is reset, and its client may never see why.
    """
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_SECONDS):
            while size < REFUSED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


class Guarded(Protocol):
    """Interface of a service for the checks of its requests."""

    settings: Settings
    callers: Callers
    metrics: Metrics
    paths: set[str]
    """Known paths; others are refused before a token is read."""
    sockets: dict[str, str]
    """Name of the index of each Unix socket, by its address; who can open one is the owner, and needs no token."""

    def problem(self, error: Exception, caller: Caller) -> Response:
        """Return the response to an error."""


@dataclass
class _Arrival:
    """A request: its caller, whether it has a place, and the bytes of its body so far."""

    name: str
    has_place: bool = False
    size: int = 0


class RequestChecks:
    """Checks host, origin, token, rate and size of a request, counts it, and turns errors into problem details."""

    def __init__(self, app: ASGIApp, service: Guarded) -> None:
        self.app, self.service = app, service
        self._places: Counter[str] = Counter()  # requests that arrive or are answered, by caller
        self._held: Counter[str] = Counter()  # bytes of their bodies, by caller
        self._rate, self._refused = Rate(service.settings.rate), Rate(60)
        host = service.settings.host
        own = {"localhost", "127.0.0.1", "::1"} if service.settings.is_loopback else {host}
        self._hosts = {name.lower() for name in (*own, host, *service.settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service, begun, status = self.service, time.monotonic(), 499  # until a response begins: the client disconnected
        caller, refused, arrival = Caller("unknown"), True, _Arrival("unknown")
        path = scope["path"] if scope["path"] in service.paths else "other"

        async def send_counted(message: Message) -> None:
            """Remember the status of a reply, and add the security headers that it lacks."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                policy = {**HEADERS, "content-security-policy": POLICY}
                missing = [
                    (name.encode(), value.encode()) for name, value in policy.items() if name.encode() not in present
                ]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        service.metrics.in_flight += 1
        try:
            # 1. who asks, and whether they may
            caller = scope["palmette.caller"] = self._admit(scope, path)
            arrival, headers = _Arrival(caller.name), Headers(scope=scope)
            # 2. a place, and the body, unless anybody may send it and nobody reads it
            self._take_place(arrival)
            received = receive
            has_body = "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""
            if has_body and scope["path"] not in OPEN:
                refused = False
                received = await self._read_body(arrival, receive)
            refused = False
            # 3. the answer
            scope["app"] = service  # lets the router raise instead of answering itself
            await self.app(scope, received, send_counted)
        except ClientDisconnect:
            pass
        except Exception as error:  # starlette's own answer would be no problem+json
            if refused:
                await read_refused(receive)
            if status == 499:
                await service.problem(error, caller)(scope, receive, send_counted)
            else:
                log.error("a response broke off", exc_info=error)
        finally:
            self._places[arrival.name] -= arrival.has_place
            self._held[arrival.name] -= arrival.size
            self._places, self._held = +self._places, +self._held  # forgets callers that have none
            service.metrics.observe(path, status, time.monotonic() - begun)
            service.metrics.in_flight -= 1  # after it is counted: with none in flight, all are counted

    def _admit(self, scope: Scope, path: str) -> Caller:
        """Return the caller of a request, or raise if it is refused."""
        service, headers = self.service, Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may have read another end of it
            detail = "a request has a Content-Length or a Transfer-Encoding, not both"
            raise Problem(HTTPStatus.BAD_REQUEST, detail, connection="close")
        if path == "other":
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no {shown(scope['path'])}: see /openapi.json")
        if (size := headers.get("content-length", "")).isdecimal() and int(size) > service.settings.max_body:
            raise self._too_large()
        server = scope.get("server") or ("", None)
        if server[1] is None:  # the socket beside an index, which only its owner can open
            scope["palmette.index"] = service.sockets.get(server[0])
            return Caller("owner", write=True, local=True)
        self._check_host(headers)
        address = (scope.get("client") or ("unknown", 0))[0]
        if scope["path"] in OPEN:
            return Caller(address)
        caller = service.callers.find(headers.get("authorization"), address)
        if caller is None:
            self._check_rate(self._refused, address)
            message = "send Authorization: Bearer TOKEN, with a token of this service"
            raise Problem(HTTPStatus.UNAUTHORIZED, message, www_authenticate="Bearer")
        self._check_rate(self._rate, caller.name)
        return caller

    def _check_host(self, headers: Headers) -> None:
        """Refuse requests by pages of other sites, and by host names that resolve to this address (DNS rebinding)."""
        host = _split(f"//{headers.get('host', '')}").hostname or ""
        if host not in self._hosts:
            message = f"this service has no name {shown(host)}: start it with --allow-host {host}"
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, message)
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc != headers.get("host"):
            raise Problem(HTTPStatus.FORBIDDEN, f"pages of {shown(origin)} may not ask this service")

    def _check_rate(self, rate: Rate, name: str) -> None:
        """Raise if a caller has sent too many requests."""
        if wait := rate.wait(name):
            message = f"too many requests: wait {wait:.1f} s"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, message, retry_after=str(int(wait) + 1))

    def _too_large(self) -> Problem:
        message = f"a request may have {self.service.settings.max_body:,} bytes: send less at a time"
        return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, connection="close")

    def _share(self, most: int) -> int:
        """Return the part of something that one caller may take: of several tokens not all."""
        return max(1, most // SHARE) if self.service.callers else most

    def _take_place(self, arrival: _Arrival) -> None:
        """Count a request until it is answered; raises where all callers, or this one, have too many."""
        most = self.service.settings.waiting
        if self._places.total() >= most or self._places[arrival.name] >= self._share(most):
            raise self._too_many("requests")
        self._places[arrival.name] += 1
        arrival.has_place = True

    def _too_many(self, what: str) -> Problem:
        detail = f"the {what} are too many or too large together: try again"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, retry_after="1", connection="close")

    async def _read_body(self, arrival: _Arrival, receive: Receive) -> Receive:
        """Read a body whole, in time and within the limits; return what receives it, and then what follows it."""
        parts, settings = list[bytes](), self.service.settings
        name, most = arrival.name, BODIES * settings.max_body
        try:
            async with asyncio.timeout(settings.timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    # its declared length may be missing
                    parts.append(message.get("body", b""))
                    arrival.size += len(parts[-1])
                    self._held[name] += len(parts[-1])
                    if arrival.size > settings.max_body:
                        raise self._too_large()
                    if self._held[name] > self._share(most) or self._held.total() > most:
                        raise self._too_many("bodies of requests")
                    more = message.get("more_body", False)
        except TimeoutError as error:
            detail = f"the request did not arrive within {settings.timeout:g} s"
            raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail, connection="close") from error
        whole: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]
        parts.clear()

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        return receive_whole
