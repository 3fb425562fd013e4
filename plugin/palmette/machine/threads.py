"""Threads of one search, and a pool that keeps blocking work off the event loop."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from palmette.errors import ConfigError
from palmette.machine.cores import usable_cores

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 64
"""Blocking calls that run at once: enough for the waiting ones to share a forward pass."""

_lock = threading.Lock()
_chosen: int | None = None
_kernels: tuple[int, ThreadPoolExecutor] | None = None  # threads of a search, and their pool
_blocking: ThreadPoolExecutor | None = None


def set_threads(n: int | None) -> None:
    """Let one search use ``n`` threads; ``None`` restores PALMETTE_THREADS, else all usable cores."""
    global _chosen
    if n is not None and n < 1:
        raise ConfigError(f"threads must be at least 1, or None for the default; got {n!r}")
    _chosen = n


def get_threads() -> int:
    """Number of threads that one search may use."""
    if _chosen is not None:
        return _chosen
    if setting := os.environ.get("PALMETTE_THREADS"):
        if not setting.isdecimal() or int(setting) < 1:
            raise ConfigError(f"PALMETTE_THREADS must be an integer of at least 1, got {setting!r}")
        return int(setting)
    return usable_cores()


def run_in_threads(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks that release the GIL, and return their results in order.

    The caller runs those that no thread of the pool has begun: they may all wait for a lock that the caller holds, or
    the caller may be one of them.
    """
    global _kernels
    threads = get_threads()
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    with _lock:
        if _kernels is None or _kernels[0] != threads:
            _kernels = threads, ThreadPoolExecutor(threads - 1, thread_name_prefix="palmette-search")
        waiting = [_kernels[1].submit(task) for task in tasks[1:]]
    first = tasks[0]()
    rest = zip(tasks[1:], waiting, strict=True)
    return [first, *(task() if future.cancel() else future.result() for task, future in rest)]


async def run_in_thread(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Await ``fn(*args, **kwargs)``, run in a thread of palmette's own pool.

    asyncio's default pool is small and belongs to the application. The caller's context variables apply. A
    cancelled call is dropped if it has not begun; otherwise it runs to its end and the result is discarded.
    """
    import asyncio  # a command that answers once never does

    return await asyncio.wrap_future(submit(fn, *args, **kwargs))


def submit(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run a call in a thread of palmette's own pool, with the caller's context variables."""
    global _blocking
    context = contextvars.copy_context()

    def call() -> T:
        try:
            return context.run(fn, *args, **kwargs)
        except StopIteration as error:  # a future refuses it, and the caller would wait for ever
            raise RuntimeError(f"{getattr(fn, '__qualname__', fn)} raised StopIteration") from error

    with _lock:
        if _blocking is None:
            _blocking = ThreadPoolExecutor(WORKERS, thread_name_prefix="palmette")
        pool = _blocking
    return pool.submit(call)


class AsyncTwin(Generic[P, T]):
    """Async version of a method, which awaits it in :func:`run_in_thread`: ``aget = AsyncTwin(get).method``."""

    def __init__(self, method: Callable[P, T]) -> None:
        @wraps(method)
        async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
            bound: Callable[..., T] = getattr(args[0], method.__name__)  # a subclass may have its own
            return await run_in_thread(bound, *args[1:], **kwargs)

        self.method: Callable[P, Coroutine[Any, Any, T]] = twin


class Renewed:
    """An object whose locks a forked child makes anew (:meth:`renew`): threads that it does not have may hold them."""

    def __init__(self) -> None:
        self.renew()
        _renewed.add(self)

    def renew(self) -> None:
        """Make the locks, and forget who waits for them."""
        raise NotImplementedError


_renewed: WeakSet[Renewed] = WeakSet()


def _after_fork() -> None:
    """Drop the pools: a forked child has none of their threads. For those of OpenMP it would wait for ever."""
    global _lock, _kernels, _blocking
    _lock, _kernels, _blocking = threading.Lock(), None, None
    for pool in list(_renewed):
        pool.renew()
    for name, setter in (("torch", "set_num_threads"), ("faiss", "omp_set_num_threads")):
        if (set_number := getattr(sys.modules.get(name), setter, None)) is not None:
            set_number(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
