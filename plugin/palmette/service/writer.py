"""Answers of a service by its language model, in threads of their own: a slow model keeps no search waiting."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from palmette.encoder.base import Encoder
from palmette.index.context import Context
from palmette.index.written import AnswerEvent, Limits, check_history, whole_question, write_answer
from palmette.machine.llm import ChatUsage, as_llm
from palmette.service.checks import SHARE, Problem

T = TypeVar("T")
MOST_WRITTEN = 32
"""Answers that are written at a time; of several tokens one may have half of them."""


class Writer:
    """A language model, and the answers that it is writing, by caller."""

    def __init__(self, llm: Any, limits: Limits, *, shared: bool) -> None:
        self.llm, self.limits, self._running = as_llm(llm), limits, Counter[str]()
        self._share = MOST_WRITTEN // SHARE if shared else MOST_WRITTEN

    async def write(
        self,
        caller: str,
        question: str,
        history: Sequence[tuple[str, str]],
        threshold: float,
        find: Callable[[str], Awaitable[tuple[Context, tuple[Encoder, str | None]]]],
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the events of an answer; closing the iterator ends the call of the model."""
        turns, usage = check_history(question, history), ChatUsage()
        if self._running.total() >= MOST_WRITTEN or self._running[caller] >= self._share:
            detail = "too many answers are being written: try again"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, retry_after="2")
        self._running[caller] += 1
        try:
            asked = question
            if turns:
                stop = threading.Event()
                whole = partial(whole_question, question, turns, self.llm, self.limits, usage, stop)
                async with aclosing(_in_own_thread(lambda: iter([whole()]), stop)) as items:
                    async for item in items:
                        asked = item
            yield AnswerEvent("asked", asked)
            context, checks = await find(asked)
            stop = threading.Event()
            write = partial(
                write_answer, question, context, threshold, self.llm, self.limits, *checks, usage=usage, stop=stop
            )
            async with aclosing(_in_own_thread(write, stop)) as events:
                async for event in events:
                    yield event
        finally:
            self._running[caller] -= 1
            self._running = +self._running


async def _in_own_thread(make: Callable[[], Iterator[T]], stop: threading.Event) -> AsyncGenerator[T, None]:
    """Yield what an iterator gives, which runs in a thread of its own; ``stop`` is set when nobody listens."""
    loop, items = asyncio.get_running_loop(), asyncio.Queue[tuple[bool, Any]]()

    def put(is_item: bool, value: Any) -> None:
        with suppress(RuntimeError):  # the service has stopped meanwhile
            loop.call_soon_threadsafe(items.put_nowait, (is_item, value))

    def run() -> None:
        try:
            for item in make():
                put(True, item)
            put(False, None)
        except BaseException as error:  # raised by the coroutine that waits
            put(False, error)

    threading.Thread(target=run, name="palmette write", daemon=True).start()
    try:
        while True:
            is_item, value = await items.get()
            if is_item:
                yield value
            elif value is not None:
                raise value
            else:
                return
    finally:
        stop.set()
