"""Connections of a service: how many there may be, how long one may be idle, and how slowly it may send and read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 4096
"""Largest number of connections; fewer where the system allows few open files."""
SHARE_OF_FILES = 2
"""Connections take one of so many of the files that the process may open; indexes need the others."""
HEAD_SECONDS = 30.0
"""Seconds for the head of a request, from the connection or from the end of the answer before it."""
READ_SECONDS = 30.0
"""Seconds in which a client must read ``READ_BYTES`` of an answer."""
READ_BYTES = 32_768
"""Bytes of a waiting answer that a client reads in that time at least."""


class Connection(H11Protocol):
    """A connection that is cut when its client sends a head, or reads an answer, too slowly.

    Where there are too many, the one that has been idle longest makes room: clients that hold idle connections keep
    nobody out. uvicorn itself waits for ever for a first request, for the rest of a head, and for a slow reader.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True while no request is answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for a connection, and wait for its first request."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            others: Iterable[Any] = self.connections - {self}
            idle = (other for other in others if other.is_idle and not other.transport.is_closing())
            min(idle, key=lambda other: other.idle_since, default=self).cut()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self._head_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes in; a head that is whole ends the wait for it."""
        super().data_received(data)
        if not self.is_idle and self._head_timer is not None:
            self._head_timer.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait_for_head()
        super().on_response_complete()
        if not self.is_idle and self._head_timer is not None:  # its head has arrived already
            self._head_timer.cancel()

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_SECONDS, self._check_reading, self._unread())

    def resume_writing(self) -> None:
        """Stop the clock: the client has read enough."""
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()

    def _wait_for_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self.idle_since = self.loop.time()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.cut)

    def cut(self) -> None:
        """Close the connection, at once where its client has not read everything."""
        if self._unread():
            self.transport.abort()
        else:
            self.transport.close()

    def _unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def _check_reading(self, before: int) -> None:
        """Cut the connection if the client has read next to nothing."""
        if before - self._unread() < READ_BYTES:
            self.transport.abort()
        else:
            self._read_timer = self.loop.call_later(READ_SECONDS, self._check_reading, self._unread())


def most_connections() -> int:
    """Return the largest number of connections."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, files // SHARE_OF_FILES))
    )


def allow_many_files() -> None:
    """Let this process open as many files as its user may."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system that names no real limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
