"""Run a service: a TCP port, the Unix sockets beside the indexes, signals and a graceful stop."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from palmette.errors import ConfigError, InputError
from palmette.service.app import Service
from palmette.service.checks import Settings
from palmette.service.connections import Connection, allow_many_files
from palmette.service.indexes import ServedIndex
from palmette.service.local import listen, socket_path
from palmette.service.memory import use_few_heaps
from palmette.store.engines import is_url

BACKLOG = 2048
"""Largest number of connections that wait to be accepted."""
SECONDS_TO_FINISH = 20
"""Seconds for which requests may finish after a signal to stop."""
log = logging.getLogger("palmette.service")


def parse_served(places: Sequence[str], **options: Any) -> list[ServedIndex]:
    """Return the indexes and folders of a command line by name: the last part of ``PATH``, or ``NAME=PATH``."""
    served = []
    for place in places:
        name, equals, path = place.partition("=")
        if not equals or is_url(place) or Path(place).exists():
            name, path = place.rpartition("/")[2] if is_url(place) else Path(place).absolute().name, place
        if not name.strip() or not path.strip():
            raise InputError(f"serve an index or a folder as PATH or NAME=PATH, got {place!r}")
        served.append(ServedIndex(name, path, **options))
    return served


def bind(settings: Settings) -> socket.socket:
    """Listen on the TCP port; requests wait until the service is ready."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # with the protocol named, asyncio sends small replies at once; else each waits 40 ms for the reader's receipt
    server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((settings.host, settings.port))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        message = f"cannot listen on {settings.host} port {settings.port} ({error.strerror}): give another --port"
        raise ConfigError(message) from error
    return server


class Sockets:
    """The Unix sockets of a service, removed when it ends."""

    def __init__(self, service: Service) -> None:
        self.open: list[socket.socket] = []
        self._paths: list[str] = []
        for name, served in service.served.items():
            if is_url(served.path) or not hasattr(socket, "AF_UNIX"):
                continue
            path = socket_path(served.path)
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                server = listen(path)
            except OSError as error:
                log.warning("%s: commands cannot use this service, since %s: %s", name, path, error)
                continue
            self.open.append(server)
            self._paths.append(path)
            service.sockets[server.getsockname()] = name

    def close(self) -> None:
        """Remove the files."""
        for server in self.open:
            server.close()
        for path in self._paths:
            with suppress(OSError):
                Path(path).unlink()


def server_of(service: Service, grace: int = SECONDS_TO_FINISH) -> uvicorn.Server:
    """Return the HTTP server of a service."""
    config = uvicorn.Config(
        service.app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=30,
        lifespan="on",
    )
    return uvicorn.Server(config)


def serve(service: Service, tcp: socket.socket) -> None:
    """Serve a bound port until a signal to stop, and finish the running requests."""
    allow_many_files()
    use_few_heaps()
    sockets, server = Sockets(service), server_of(service)
    # uvicorn raises a signal again when all requests are done: it is ignored, since the service ends then
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: None)
    try:
        server.run([tcp, *sockets.open])
    finally:
        sockets.close()
        tcp.close()
