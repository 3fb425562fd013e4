"""Limit of the reading threads that one token may occupy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from palmette.machine.threads import submit

P = ParamSpec("P")
T = TypeVar("T")


class PerCallerLimit:
    """Runs calls in threads, at most ``limit`` at a time of one caller; further ones of that caller wait.

    A running call counts until its thread ends, also after its client has disconnected or its time is over.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        """Largest number of threads of a caller; ``None`` for all."""
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    async def run(self, caller: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread once its caller is below the limit."""
        if self.limit is None:
            return await asyncio.wrap_future(submit(call, *args, **kwargs))
        semaphore = self._semaphores.setdefault(caller, asyncio.Semaphore(self.limit))
        await semaphore.acquire()
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(semaphore.release)

        try:
            running = submit(call, *args, **kwargs)
        except BaseException:
            semaphore.release()
            raise
        running.add_done_callback(end)  # of a thread that ends, or of a call that was dropped before it began
        return await asyncio.wrap_future(running)
