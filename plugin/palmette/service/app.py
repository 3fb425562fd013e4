"""The HTTP service: ``RequestChecks`` admits requests, ``Service`` answers them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from palmette import __version__
from palmette.errors import (
    ConfigError,
    DuplicateIdError,
    InputError,
    LockedError,
    MissingExtraError,
    NotFoundError,
    PalmetteError,
    ReadOnlyError,
    RemoteError,
    StorageFullError,
    shown,
)
from palmette.index.written import THRESHOLD, AnswerEvent, Limits
from palmette.machine.llm import OpenAI
from palmette.machine.threads import WORKERS
from palmette.service.callers import Caller, Callers, Token
from palmette.service.calls import (
    ENDPOINTS,
    find_context,
    find_passages,
    index_facts,
    listed,
    reply_of_answer,
    results_facts,
)
from palmette.service.checks import OPEN, POLICY, SHARE, Problem, RequestChecks, Settings
from palmette.service.indexes import PerCallerLimit, ServedIndex
from palmette.service.memory import free_pages_returned
from palmette.service.metrics import TYPE, Metrics
from palmette.service.originals import OriginalBody, Originals
from palmette.service.schema import AnswerBody, Body, CallSchema, NameBody, read_body, to_json
from palmette.service.writer import Writer

T = TypeVar("T")
log = logging.getLogger("palmette.service")

KEPT = 30.0
"""Seconds for which fields are cached."""
RETRY_AFTER = 2.0
"""Seconds after which an index that could not be opened is tried again; twice as many after each failure."""
RETRY_AFTER_AT_MOST = 60.0
"""Most seconds between two tries."""
STATUS: tuple[tuple[type[PalmetteError], HTTPStatus], ...] = (
    (DuplicateIdError, HTTPStatus.CONFLICT),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (LockedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ReadOnlyError, HTTPStatus.FORBIDDEN),
    (StorageFullError, HTTPStatus.INSUFFICIENT_STORAGE),
    (MissingExtraError, HTTPStatus.NOT_IMPLEMENTED),
    (InputError, HTTPStatus.BAD_REQUEST),
    (ConfigError, HTTPStatus.BAD_REQUEST),
    (RemoteError, HTTPStatus.BAD_GATEWAY),
    (PalmetteError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""Statuses of errors; the first class that fits counts."""
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
"""Files of the page."""


class Service:
    """Indexes served over HTTP; ``Service(…).app`` is an ASGI application."""

    def __init__(
        self,
        served: Sequence[ServedIndex],
        settings: Settings | None = None,
        tokens: Sequence[Token] = (),
        *,
        llm: Any = None,
        limits: Limits | None = None,
    ) -> None:
        self.writer = None if llm is None else Writer(llm, limits or Limits(), shared=bool(tokens))
        self.settings, self.served = settings or Settings(), {index.name: index for index in served}
        if len(self.served) < len(served):
            raise ConfigError("two indexes have the same name: serve them as NAME=PATH")
        if not tokens and not self.settings.is_loopback:
            raise ConfigError(f"host {self.settings.host!r} can be reached by others: give --tokens FILE")
        self.callers, self.metrics = Callers(tokens, write=self.settings.write), Metrics()
        limit = PerCallerLimit(max(1, WORKERS // SHARE) if tokens else None)
        for index in served:
            index.limit = limit
        self._kept: dict[tuple[str, str, str, bool], tuple[float, Any]] = {}
        self._description: dict[str, Any] | None = None
        self._opening: list[asyncio.Task[None]] = []
        self.failures: dict[str, str] = {}
        """Errors of the indexes that could not be opened, by name; each is tried again."""
        self.sockets: dict[str, str] = {}
        """Name of the index of each Unix socket, by its address."""
        self.originals = Originals()
        self.paths = OPEN | {endpoint.path for endpoint in ENDPOINTS} | {"/metrics", "/v1/indexes", "/v1/original"}
        self._routes: list[Route] = [
            *(Route(path, partial(self._page, *file)) for path, file in PAGE_FILES.items()),
            Route("/openapi.json", self._openapi),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/v1/indexes", self._indexes),
            Route("/v1/original", self._grant, methods=["POST"]),
            Route("/original", self._original),
            *(Route(endpoint.path, partial(self._call, endpoint), methods=["POST"]) for endpoint in ENDPOINTS),
        ]
        self._contexts: list[Callable[[], Any]] = []

    @property
    def app(self) -> ASGIApp:
        """The application."""
        return RequestChecks(Router(routes=self._routes, lifespan=self.lifespan), self)

    def mount(self, routes: Sequence[Route], context: Callable[[], Any]) -> None:
        """Add routes, and the context manager that is entered while the service runs."""
        self._routes += routes
        self.paths |= {route.path for route in routes}
        self._contexts.append(context)

    async def wait_until_open(self) -> None:
        """Wait until every index is open or has failed to open."""
        await asyncio.gather(*self._opening)

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Open the indexes in the background, and close them when all requests are done."""
        self._opening = [asyncio.create_task(self._open(index)) for index in self.served.values()]
        self._stopping = asyncio.Event()
        again = asyncio.create_task(self._open_again())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(free_pages_returned())
            for context in self._contexts:
                await stack.enter_async_context(context())
            yield
        self._stopping.set()
        await again
        await asyncio.gather(*(asyncio.to_thread(index.close) for index in self.served.values()))

    async def _open(self, served: ServedIndex) -> None:
        """Open an index in a thread; a failure is logged, and kept to be shown."""
        before = self.failures.get(served.name)
        try:
            await asyncio.to_thread(served.open)
        except Exception as error:
            known = isinstance(error, PalmetteError)
            self.failures[served.name] = str(error) if known else f"{type(error).__name__}: {error}"
            if self.failures[served.name] != before:
                log.error("%s cannot be opened: %s", served.name, self.failures[served.name], exc_info=not known)
        else:
            self.failures.pop(served.name, None)
            log.info("%s: %s is open", served.name, served.path)

    async def _open_again(self) -> None:
        """Try again to open what could not be opened, later each time, until the service stops."""
        await self.wait_until_open()
        pause = RETRY_AFTER
        while self.failures:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            await asyncio.gather(*(self._open(self.served[name]) for name in [*self.failures]))
            pause = min(2 * pause, RETRY_AFTER_AT_MOST)

    # -- what needs no index ----------------------------------------------------------------------------------

    async def _page(self, name: str, kind: str, request: Request) -> Response:
        """Answer a file of the page, which may load its own files alone."""
        policy = f"{POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
        content = (files("palmette.service") / "page" / name).read_bytes()
        return Response(content, media_type=kind, headers={"content-security-policy": policy})

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def _openapi(self, request: Request) -> Response:
        if self._description is None:
            from palmette.service.replies import openapi  # its models cost a start that nobody needs them for

            self._description = openapi(ENDPOINTS)
        return json_response(self._description)

    async def _ready(self, request: Request) -> Response:
        """Answer ``/ready``; no index is named, since no token is needed."""
        unready = [index.unready for name, index in self.served.items() if name not in self.failures]
        reasons = [f"an index {reason}" for reason in unready if reason]
        reasons += ["an index cannot be opened"] * len(self.failures)
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return json_response({"ready": not reasons} | ({"reasons": reasons} if reasons else {}), status)

    async def _metrics(self, request: Request) -> Response:
        if not caller_of(request).sees_all:
            detail = "metrics tell of all tenants and indexes: ask with a token that has neither a filter nor indexes"
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        counts = dict[str, int | None]()
        for name, served in self.served.items():
            counts[name] = None
            if served.opened is not None:
                with suppress(PalmetteError):  # one that cannot be read hides no other
                    counts[name] = await served.read("", None, lambda index, reader: len(index))
        return Response(self.metrics.text(counts), headers={"content-type": TYPE})

    async def _indexes(self, request: Request) -> Response:
        """Answer ``/v1/indexes``: the indexes that the caller may see, and their state."""
        caller, listed = caller_of(request), []
        own = request.scope.get("palmette.index")
        for name in self.names(caller) if own is None else [own]:
            served = self.served[name]
            facts: dict[str, Any] = {"name": name, "write": caller.write and served.source is None, "ready": False}
            if served.source is not None:
                progress = asdict(served.progress) if caller.filter is None else {}  # it tells of all documents
                facts["follows"] = progress | {"folder": served.source.name}
                if "error" in progress:
                    facts["follows"]["error"] = self.hide_paths(progress["error"], caller)
            if name in self.failures:
                facts["error"] = self.hide_paths(self.failures[name], caller)
            if served.warning:
                facts["warning"] = served.warning
            if served.opened is not None:
                try:
                    facts |= self.hide_reranker(await served.read(caller.name, caller.filter, index_facts), caller)
                    facts |= {"ready": not served.unready, "location": self.hide_paths(facts["location"], caller)}
                except PalmetteError as error:  # one that cannot be read hides no other
                    facts["error"] = self.hide_paths(str(error), caller)
            listed.append(facts)
        return json_response({"indexes": listed, "llm": self.writer and self.writer.llm.name})

    async def _grant(self, request: Request) -> Response:
        """Answer ``/v1/original``: where the file of a document can be opened, if the caller may read the document."""
        caller, body = caller_of(request), read_body(OriginalBody, await self._body(request))
        assert isinstance(body, OriginalBody)
        served = self.pick(caller, request.scope.get("palmette.index") if body.index is None else body.index)
        [document] = await served.read(caller.name, caller.filter, lambda index, reader: index.get([body.id]))
        grant = partial(self.originals.grant, served.source, document, caller.filter is None)
        return json_response(await asyncio.to_thread(grant))

    async def _original(self, request: Request) -> Response:
        """Answer ``/original``: the file of a ticket."""
        return await asyncio.to_thread(self.originals.open, request.query_params.get("ticket", ""))

    # -- calls ------------------------------------------------------------------------------------------------

    def names(self, caller: Caller) -> list[str]:
        """Return the indexes that a caller may use."""
        return [name for name in self.served if caller.indexes is None or name in caller.indexes]

    def pick(self, caller: Caller, name: str | None) -> ServedIndex:
        """Return the index that a request names, or the only one."""
        names = self.names(caller)
        if name is None and len(names) == 1:
            name = names[0]
        if name is None:
            raise InputError(f"name an index: this service has {', '.join(names) or 'none for this token'}")
        if name not in names:
            raise NotFoundError(f"there is no index {shown(name)}: this service has {', '.join(names) or 'none'}")
        if name in self.failures:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, self.hide_paths(self.failures[name], caller))
        return self.served[name]

    async def _call(self, endpoint: CallSchema, request: Request) -> Response:
        """Answer a call: read its body, pick the index, check the right to write, and run it."""
        caller = caller_of(request)
        body = read_body(endpoint.body, await self._body(request))
        served = self.pick(caller, request.scope.get("palmette.index") if body.index is None else body.index)
        if endpoint.write and not caller.write:
            remedy = 'your token has "write": true' if self.callers else "the service is started with --write"
            raise Problem(HTTPStatus.FORBIDDEN, f"you may not change documents, unless {remedy}")
        if isinstance(body, AnswerBody) and body.llm and self.writer is None:
            detail = "this service has no language model: start it with --llm openai:MODEL, or leave llm out"
            raise Problem(HTTPStatus.NOT_IMPLEMENTED, detail)
        if isinstance(body, AnswerBody) and "text/event-stream" in request.headers.get("accept", ""):
            events = self._stream(served, caller, body)
            return StreamingResponse(events, media_type="text/event-stream")
        if isinstance(body, AnswerBody) and body.llm:
            value = await self._until_gone(request, self._written(served, caller, body))
        elif endpoint.write:
            value = await served.write(caller.name, caller.filter, partial(endpoint.call, body))
        else:
            value = await self._until_gone(request, self.read(served, caller, endpoint.call, body))
        return json_response(value)

    async def read(self, served: ServedIndex, caller: Caller, call: Callable[..., T], body: Body) -> T:
        """Answer a reading call within the time limit."""
        # callers without a filter share; a token may have the local owner's name
        key = call.__name__, served.name, caller.name if caller.filter is not None else "", caller.local
        keeps = isinstance(body, NameBody)
        if keeps and (answer := self._kept.get(key)) and time.monotonic() - answer[0] < KEPT:
            value: T = answer[1]
            return value
        try:
            async with asyncio.timeout(self.settings.timeout):
                value = await served.read(caller.name, caller.filter, partial(call, body))
                value = self.with_progress(served, caller, self.hide_reranker(value, caller))
        except TimeoutError as error:
            raise Problem(HTTPStatus.GATEWAY_TIMEOUT, f"no answer within {self.settings.timeout:g} s") from error
        if keeps and not served.indexing:
            self._kept[key] = time.monotonic(), value
        return value

    def with_progress(self, served: ServedIndex, caller: Caller, value: Any) -> Any:
        """Add to a reply how far the first indexing is, for callers who may read all documents."""
        indexing = served.indexing if caller.filter is None and isinstance(value, dict) else None
        return value if indexing is None else {**value, "indexing": indexing}

    async def _body(self, request: Request) -> bytes:
        """Read the body of a request, which must be JSON; :class:`RequestChecks` bounds its time and size."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = f"send Content-Type: application/json, got {shown(kind)}"
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        return await request.body()

    async def _until_gone(self, request: Request, work: Awaitable[T]) -> T:
        """Await work; cancel it if the client disconnects."""

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            task.cancel()
            watch.cancel()

    async def _stream(self, served: ServedIndex, caller: Caller, body: AnswerBody) -> AsyncIterator[bytes]:
        """Stream an answer as server-sent events: the hits first, then the answer, or a problem."""
        try:
            if body.llm:
                async for event in self._write(served, caller, body):
                    value = event.to_dict()
                    value = self.hide_reranker({"answers": [value]}, caller) if event.kind == "answer" else value
                    yield _event(event.kind, value)
                return
            async with asyncio.timeout(self.settings.timeout):
                found = await served.read(caller.name, caller.filter, partial(find_passages, body))
                describe = partial(results_facts, listed(body.question), *found[:2], html=body.html)
                yield _event("hits", self.hide_reranker({"results": await asyncio.to_thread(describe)}, caller))
                answers = await served.read(caller.name, caller.filter, lambda *_: reply_of_answer(body, *found))
                reply = self.hide_reranker({"answers": answers}, caller)
                yield _event("answer", self.with_progress(served, caller, reply))
        except TimeoutError:
            late = Problem(HTTPStatus.GATEWAY_TIMEOUT, "no answer in time", name="TimeoutError")
            yield _event("problem", self._described(late, caller)[0])
        except (PalmetteError, Problem) as error:
            yield _event("problem", self._described(error, caller)[0])

    async def _write(self, served: ServedIndex, caller: Caller, body: AnswerBody) -> AsyncGenerator[AnswerEvent, None]:
        """Let the language model answer; only its passages are searched within the time limit of a question."""
        assert self.writer is not None
        assert isinstance(body.question, str)
        threshold = THRESHOLD if body.threshold is None else body.threshold
        written = self.writer.write(
            caller.name,
            body.question,
            body.history,
            threshold,
            lambda asked: self.read(served, caller, find_context(asked), body),
        )
        async with aclosing(written) as events:
            async for event in events:
                yield event

    async def _written(self, served: ServedIndex, caller: Caller, body: AnswerBody) -> dict[str, Any]:
        """Answer by the language model in one piece."""
        async with aclosing(self._write(served, caller, body)) as events:
            async for event in events:
                value = event.to_dict()
        answers: dict[str, Any] = self.hide_reranker({"answers": [value]}, caller)
        return answers

    def hide_reranker(self, value: Any, caller: Caller) -> Any:
        """Hide paths in what a reply says of a reranker: its name, and notes of its failures."""
        if isinstance(value, dict):
            for part in (value, *value.get("results", ()), *value.get("answers", ())):
                if "note" in part:
                    part["note"] = self.hide_paths(part["note"], caller)
            if reranker := value.get("reranker"):
                reranker["model"] = self.hide_paths(reranker["model"], caller)
        return value

    def hide_paths(self, text: str, caller: Caller) -> str:
        """Hide the paths of this machine from all but its user."""
        if not caller.local:
            names: dict[str, str] = {}
            for name, served in self.served.items():
                folder = served.opened.folder if served.opened is not None else None
                places = [place for place in (folder, served.path, served.source) if place is not None]
                names |= {written: name for place in places for written in (str(place), os.path.realpath(place))}
                names |= served.reranker_places
            if self.writer is not None and isinstance(self.writer.llm, OpenAI):
                names[self.writer.llm.url] = "the language model's server"
            for place in sorted(names, key=len, reverse=True):  # a path may begin with another index's
                text = text.replace(place, names[place])
        return text

    def problem(self, error: Exception, caller: Caller) -> Response:
        """Return the response to an error."""
        facts, headers = self._described(error, caller)
        return Response(to_json(facts), facts["status"], headers, "application/problem+json")

    def _described(self, error: Exception, caller: Caller) -> tuple[dict[str, Any], dict[str, str]]:
        """Describe an error as RFC 9457 does; with it the headers of its response."""
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):  # the router's: a wrong method
            error = Problem(HTTPStatus(error.status_code), error.detail, **(error.headers or {}))
        if isinstance(error, Problem):
            status, name, detail, headers = error.status, error.name, str(error), error.headers
        elif isinstance(error, PalmetteError):
            status = next(status for kind, status in STATUS if isinstance(error, kind))
            name, detail = type(error).__name__, self.hide_paths(str(error), caller)
            headers = {"retry-after": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        else:
            log.error("a request failed", exc_info=error)
            status, name = HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError"
            detail = "the service failed; its log says why"
        kind = f"urn:palmette:error:{name.replace(' ', '')}"
        facts = {"type": kind, "title": status.phrase, "status": status.value, "error": name, "detail": detail}
        return facts, headers


def caller_of(request: Request) -> Caller:
    """Return who makes a request."""
    caller: Caller = request.scope["palmette.caller"]
    return caller


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a value as JSON."""
    return Response(to_json(value), status, media_type="application/json")


def _event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + to_json(value) + b"\n\n"
