"""Run blocking work from async code."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["in_thread"]

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 64
"""How many calls run at once: enough that those which wait for a shared forward pass gather in one."""

_pool: ThreadPoolExecutor | None = None
_making = threading.Lock()


async def in_thread(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``fn(*args, **kwargs)``, run in a thread of palmette's own pool.

    asyncio's default pool has a handful of threads and belongs to the application. Context variables are the
    caller's. A cancelled call is dropped if it has not begun, and else runs to its end unheard.
    """
    context = contextvars.copy_context()

    def call() -> T:
        try:
            return context.run(fn, *args, **kwargs)
        except StopIteration as error:  # a future refuses it, and whoever waits would wait for ever
            raise RuntimeError(f"{getattr(fn, '__qualname__', fn)} raised StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(_executor(), call)


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _making:
        if _pool is None:
            _pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="palmette")
        return _pool


def _forget() -> None:
    """After a fork the child has the pool, but none of its threads."""
    global _pool, _making
    _pool, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
