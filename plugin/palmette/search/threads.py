"""How many threads one search may use, and the pool they live in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from palmette.errors import ConfigError

__all__ = ["get_threads", "run_in_threads", "set_threads"]

_T = TypeVar("_T")
_lock = threading.Lock()
_chosen: int | None = None
_pool: ThreadPoolExecutor | None = None
_pool_key: tuple[int, int] = (0, 0)  # (pid, threads): a forked child needs its own


def set_threads(n: int | None) -> None:
    """Let one search use ``n`` threads; ``None`` goes back to PALMETTE_THREADS, or else all usable cores."""
    global _chosen
    if n is not None and n < 1:
        raise ConfigError(f"threads must be at least 1, or None for the default; got {n!r}")
    _chosen = n


def get_threads() -> int:
    """The number of threads one search may use."""
    if _chosen is not None:
        return _chosen
    if given := os.environ.get("PALMETTE_THREADS"):
        if not given.isdecimal() or int(given) < 1:
            raise ConfigError(f"PALMETTE_THREADS must be an integer of at least 1, got {given!r}")
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_threads(tasks: Sequence[Callable[[], _T]]) -> list[_T]:
    """Run tasks that release the GIL, and return their results in order."""
    global _pool, _pool_key
    threads = get_threads()
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    with _lock:
        if _pool is None or _pool_key != (os.getpid(), threads):
            _pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="palmette-search")
            _pool_key = (os.getpid(), threads)
        waiting = [_pool.submit(task) for task in tasks[1:]]
    return [tasks[0](), *(future.result() for future in waiting)]


def _after_fork() -> None:
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
