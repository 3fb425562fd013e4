"""Shares of the threads that read: how many of them one token may occupy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from palmette.machine.threads import submit

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Runs calls in threads, of one caller a few at a time; further ones of that caller wait for a turn.

    A call that has begun keeps its turn until it ends, also where its client has gone or its time is over: its thread
    is busy until then.
    """

    def __init__(self, share: int | None = None) -> None:
        self.share = share
        """Largest number of threads of a caller; ``None`` for all."""
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def run(self, caller: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a call that runs in a thread when it is the caller's turn."""
        if self.share is None:
            return await asyncio.wrap_future(submit(call, *args, **kwargs))
        turns = self._turns.setdefault(caller, asyncio.Semaphore(self.share))
        await turns.acquire()
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(turns.release)

        try:
            running = submit(call, *args, **kwargs)
        except BaseException:
            turns.release()
            raise
        running.add_done_callback(end)  # of a thread that ends, or of a call that was dropped before it began
        return await asyncio.wrap_future(running)
