"""The Unix socket of a running service, and its client, which the command line uses without loading an encoder."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from palmette import __version__, errors

HOME = ".palmette"
"""Folder of the index inside a served folder of documents."""
MOST_HITS = 1000
"""Largest ``k`` of a request."""
MOST_QUERIES = 100
"""Largest number of queries of a request, and of ids of a get."""
ANSWER_SECONDS = 60.0
"""Seconds for which a client waits for an answer."""


def index_folder(path: str) -> str:
    """Return the index of a path: the folder itself, or the one inside a folder of documents that is served."""
    inner = os.path.join(path, HOME, "index")
    if not os.path.exists(os.path.join(path, "manifest.json")) and os.path.exists(os.path.join(inner, "manifest.json")):
        return inner
    return path


def socket_path(index: str) -> str:
    """Return the path of an index's socket: beside its folder, so that it survives an exchange of the folder."""
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(index)))
    return os.path.join(parent, f".{name}.sock")


def _is_own(path: str) -> bool:
    """Return True if a path is a socket that only this user can open."""
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def connect_socket(path: str, timeout: float = ANSWER_SECONDS) -> socket.socket | None:
    """Connect to the service of a socket; ``None`` if none listens, or if it is another user's."""
    if not hasattr(socket, "AF_UNIX") or not _is_own(path):
        return None
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout)
    try:
        client.connect(path)
    except OSError:
        client.close()
        return None
    return client


def listen(path: str) -> socket.socket:
    """Bind the socket of a service, readable only by its owner; raises OSError if another service has it."""
    if (other := connect_socket(path, 1.0)) is not None:
        other.close()
        raise OSError("another service of this index is running")
    if _is_own(path):  # left by a killed service
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        server.bind(path)
    except OSError:  # such as of a path of more than a hundred bytes
        server.close()
        raise
    finally:
        os.umask(before)
    return server


def request(index: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Send a request to the running service of an index; ``None`` if no service can answer.

    An error of the service is raised as the same class of PalmetteError.
    """
    client = connect_socket(socket_path(index_folder(index)))
    if client is None:
        return None
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.0\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    reply = b""
    with client, suppress(OSError):  # the service may end during the request
        client.sendall(head.encode() + text)
        while part := client.recv(1 << 16):
            reply += part
    first, _, content = reply.partition(b"\r\n\r\n")
    lines = first.decode("latin-1").lower().split("\r\n")
    status = int(lines[0].split(" ")[1]) if lines[0].startswith("http/1") else 0
    whole = f"content-length: {len(content)}" in lines and f"palmette-version: {__version__}" in lines
    if not whole or status in (404, 429) or status >= 500:
        return None
    value = json.loads(content)
    if status >= 400:
        raise getattr(errors, value["error"], errors.PalmetteError)(value["detail"])
    return value
