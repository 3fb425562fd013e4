"""Clients, backends and the whole server killed in the middle of writes, and connections that are cut.

Acknowledged documents are there, no write is half there, and every error is palmette's own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing, suppress
from typing import TextIO

import pytest

from palmette.errors import PalmetteError, StoreError
from support import postgres
from support.forks import ended, forked
from support.stores import SPECS, doc, put, state_for, state_of

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
from palmette_postgres.backend import PostgresBackend

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
GROUP = 4
"""Documents of a write."""


@pytest.fixture
def url() -> str:
    postgres.server()
    where = postgres.new_url()
    PostgresBackend.create(where, SPECS, fingerprint="model", language="english")
    return where


def test_killed_at_random_times_in_mid_write(url: str) -> None:
    histories(url, 6, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_killed_a_hundred_times(url: str, seed: int) -> None:
    histories(url, 100, seed)


def histories(url: str, kills: int, seed: int) -> None:
    """Two clients write until something is killed; then the index is compared with what they were told."""
    rng, acknowledged, number = random.Random(seed), set[str](), 0
    for kill in range(kills):
        children = []
        for _ in range(2):
            number += 1
            children.append(forked(lambda pipe, own=number: write_groups(url, f"w{own}", pipe)))
        time.sleep(rng.uniform(0.05, 0.5))
        what = "server" if kill % 6 == 5 else rng.choice(["client", "backends"])
        if what == "client":
            os.kill(children[0][0], signal.SIGKILL)
        elif what == "backends":
            pids = [pid for (pid,) in postgres.run(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )]  # fmt: skip
            os.kill(rng.choice(pids), signal.SIGKILL) if pids else None  # the server ends all others, and recovers
        else:
            postgres.crash()
        time.sleep(0.05)
        for child, _ in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        told = [pipe.read().split() for _, pipe in children]
        assert all(code in (0, -signal.SIGKILL, -signal.SIGTERM) for code in ended(*children))
        acknowledged |= {group for groups in told for group in groups}
        with closing(patient(url)) as backend:
            backend.verify()
            held = {one.key: one for one in backend.scan()}
            there = {id.partition(" ")[0] for id in held}
            assert acknowledged <= there
            assert held == {one.key: one for group in there for one in documents(group)}, "groups are whole"
    assert len(acknowledged) > kills


def patient(url: str) -> PostgresBackend:
    """Open once the server has recovered."""
    for _ in range(50):
        with suppress(StoreError):
            return PostgresBackend.open(url)
        time.sleep(0.2)
    return PostgresBackend.open(url)


def documents(group: str) -> list:
    return [doc(f"{group} {number}", f"{group} owl {number}") for number in range(GROUP)]


def write_groups(url: str, name: str, pipe: TextIO) -> None:
    """Write group after group, and tell each that was acknowledged; only errors of palmette's may come."""
    backend, number = None, 0
    for _ in range(10_000):
        number += 1
        try:
            backend = backend or PostgresBackend.open(url, lock_timeout=5.0)
            put(backend, *documents(f"{name}-{number}"))
        except PalmetteError:
            time.sleep(0.02)
            continue
        pipe.write(f"{name}-{number}\n")
        pipe.flush()


@pytest.mark.parametrize("lost", ["the question", "the answer"])
def test_a_commit_whose_answer_is_lost_is_looked_up(url: str, lost: str) -> None:
    """The server is asked what became of the transaction."""
    cuts = []

    def cut(data: bytes) -> bool:
        if b"COMMIT\0" in data and not cuts:
            cuts.append(data)
            return True
        return False

    with postgres.proxy(cut, before=lost == "the question") as through:
        there = url.replace(f"host={postgres.conninfo()['host']}", f"host={through['host']}")
        with closing(PostgresBackend.open(there)) as backend:
            if lost == "the answer":
                put(backend, doc("a"))
            else:
                with pytest.raises(StoreError, match="broke"):
                    put(backend, doc("a"))
            assert cuts
            put(backend, doc("b"))
            expected = [doc("a"), doc("b")] if lost == "the answer" else [doc("b")]
            assert state_of(backend) == state_for(expected)


def test_views_begin_again_where_nothing_was_read(url: str) -> None:
    with closing(PostgresBackend.open(url)) as backend:
        put(backend, doc("a"))
        for _ in range(3):
            postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            assert backend.get(["a"]) == [doc("a")]
        with pytest.raises(StoreError, match="broke"), backend.read() as view:
            view.keys()
            postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            view.keys_of(["a"])
        with pytest.raises(StoreError), backend.write() as change:
            postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            change.delete(["a"])
        assert state_of(backend) == state_for([doc("a")])
