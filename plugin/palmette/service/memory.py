"""Memory of a process that runs for weeks: glibc gives pages back to the system only when it is told to."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

ARENAS = 2
"""Heaps of the process. By default there are eight a core, each of which grows to the peak of the searches in it."""
EVERY = 20.0
"""Seconds after which free pages are given back."""
_ARENA_MAX = -8


def _glibc() -> ctypes.CDLL | None:
    """Return the C library where it is glibc."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            return library
    return None


def use_few_heaps() -> None:
    """Limit the heaps of this process, before it starts threads; the user's MALLOC_ARENA_MAX comes first."""
    library = _glibc()
    if library is not None and "MALLOC_ARENA_MAX" not in os.environ:
        library.mallopt(_ARENA_MAX, ARENAS)


@asynccontextmanager
async def free_pages_returned(every: float = EVERY) -> AsyncIterator[None]:
    """Give free pages back to the system from time to time."""
    library = _glibc()

    async def trim() -> None:
        while library is not None:
            await asyncio.sleep(every)
            await asyncio.to_thread(library.malloc_trim, 0)

    task = asyncio.create_task(trim())
    try:
        yield
    finally:
        task.cancel()
