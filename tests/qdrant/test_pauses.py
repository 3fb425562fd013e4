"""Paused, killed and cut-off writers with clocks of their own: every acknowledged write is there, and no other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest

from palmette.errors import LockedError
from palmette_qdrant import client as qdrant_client
from palmette_qdrant.backend import QdrantBackend
from palmette_qdrant.client import Collection
from palmette_qdrant.lease import LEASE_TTL, TOMBSTONE_TTL
from palmette_qdrant.writer import QdrantWriter
from support import pauses
from support.stores import SPECS, arrays_of, delete, doc, fast_place, put, state_for, state_of

pytest.importorskip("qdrant_client")
URL = os.environ.get("PALMETTE_QDRANT_URL")
PLACES = ["edge", "local", *(["server"] if URL else [])]


class Shared:
    """A client of an engine in this process that outlives the collections that use it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        """Nothing: others use it."""


@pytest.fixture(params=PLACES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A client that several machines share, and the URL of a collection without its number."""
    if request.param == "server":
        client, url = Collection(f"{URL}/any").client, f"{URL}/palmette-{uuid4().hex}-"
        yield client, url
        client.close()
        return
    with TemporaryDirectory(dir=fast_place()) as folder:
        if request.param == "edge":
            pytest.importorskip("qdrant_edge")
            from support.edge import EdgeClient

            client = EdgeClient(folder)
        else:
            from qdrant_client import QdrantClient

            client = QdrantClient(":memory:")
        monkeypatch.setitem(qdrant_client.EMBEDDED, f"qdrant+{request.param}", lambda _: Shared(client))
        yield client, f"qdrant+{request.param}://{folder}/h"
        client.close()


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 312), marks=pytest.mark.exhaustive)], ids=len)
def test_histories(seeds: range, engine: tuple[Any, str]) -> None:
    client, url = engine
    counts = Counter[str]()
    for seed in seeds:
        try:
            counts.update(pauses.history(client, f"{url}{seed}", SPECS, seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            client.delete_collection(f"{url}{seed}".rpartition("/")[2])
    assert counts["acknowledged"] > 4 * len(seeds)
    assert counts["refused"] > len(seeds) // 4, "some writers were too late"


class Clock:
    """Seconds of one machine, passed by hand."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pass some."""
        self.now += seconds


@pytest.fixture
def machines(engine: tuple[Any, str]) -> Iterator[list[QdrantBackend]]:
    """Three machines that have one collection open, with clocks that are years apart."""
    client, url = engine
    QdrantBackend.create(f"{url}0", SPECS, fingerprint="model", language="english")
    made = []
    for start in (0.0, 1e9, -1e9):
        backend = QdrantBackend.open(f"{url}0", lock_timeout=1.0)
        clock = Clock(start)
        backend.db.clock, backend.db.sleep = clock, clock.sleep
        made.append(backend)
    yield made
    client.delete_collection(f"{url}0".rpartition("/")[2])


def change(backend: QdrantBackend, *ids: str) -> QdrantWriter:
    """A write that has put documents, and goes on."""
    writer = QdrantWriter(backend.db, backend.lock_timeout)
    writer.put([doc(id) for id in ids], arrays_of([doc(id) for id in ids]))
    return writer


def test_undoing_a_write_whose_lease_was_taken_over_erases_nothing_of_others(machines: list[QdrantBackend]) -> None:
    one, two, three = machines
    put(one, doc("base"))
    paused = change(one, "base", "never")
    two.lock_timeout = 2 * LEASE_TTL
    put(two, doc("b"))
    running = change(three, "c")
    paused.drop()  # wakes up, and undoes
    running.commit()
    for backend in machines:
        assert state_of(backend) == state_for([doc("base"), doc("b"), doc("c")])
        backend.verify()


def test_points_of_a_write_whose_lease_was_taken_over_stay_invisible(machines: list[QdrantBackend]) -> None:
    one, two, three = machines
    put(one, doc("base"), doc("kept"))
    paused = change(one, "a")
    two.lock_timeout = 2 * LEASE_TTL
    put(two, doc("b"))
    put(three, doc("kept", "changed"))
    paused.put([doc("late")], arrays_of([doc("late")]))  # its clock stood still: it does not know yet
    paused.delete(["base", "kept"])
    expected = state_for([doc("base"), doc("kept", "changed"), doc("b")])
    for backend in machines:
        assert state_of(backend) == expected
        backend.verify()
    with pytest.raises(LockedError, match="another writer took over"):
        paused.commit()
    assert delete(two, "base", "late") == ["base"]
    two.compact()
    assert two.db("count", two.db.where()).count == 3, "the state and two documents"


def test_short_tries_add_up_until_a_killed_writers_lease_expires(machines: list[QdrantBackend]) -> None:
    one, two, three = machines
    change(one, "a")  # and is killed
    tries = 0
    for tries in range(1, 999):
        backend = (two, three)[tries % 2]
        with suppress(LockedError):
            put(backend, doc("b"))
            break
    assert LEASE_TTL - 5 < tries < LEASE_TTL + 5, "tries of a second"
    assert state_of(three) == state_for([doc("b")])


def test_a_writer_that_renews_its_lease_is_waited_for(machines: list[QdrantBackend]) -> None:
    one, two, _ = machines
    writer = change(one, "a")
    for n in range(9):
        one.db.clock.sleep(LEASE_TTL / 2)
        writer.put([doc(f"a{n}")], arrays_of([doc(f"a{n}")]))
        two.lock_timeout = LEASE_TTL / 2
        with pytest.raises(LockedError, match="expires after"):
            put(two, doc("b"))
    writer.commit()
    put(two, doc("b"))
    assert len(state_of(two)) == 11


def test_deleted_documents_stay_until_some_machines_have_watched_their_time_pass(machines: list[QdrantBackend]) -> None:
    one, two, three = machines
    put(one, doc("a"), doc("b"))
    with one.read() as before:
        put(two, doc("a", "other"))  # by a clock that is years ahead
        put(three, doc("c"))
        assert {one.text for one in before.documents(before.keys().tolist())} == {doc("a").text, doc("b").text}
    for _ in range(8):  # writers that hold their leases for ten seconds, and end
        fresh = QdrantBackend(two.db, two.state(), 1.0)
        fresh.db.committed_at = {}
        writer = change(fresh, "d")
        assert fresh.stats().reclaimable
        fresh.db.clock.sleep(TOMBSTONE_TTL / 6)
        writer.commit()
    assert one.db("count", one.db.where(died={"lte": 2})).count == 0, "the first has gone"
    assert len(state_of(one)) == 4
    assert len(one.state().ages) < 20


def test_a_commit_whose_answer_is_lost_counts(machines: list[QdrantBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    from qdrant_client.http.exceptions import ResponseHandlingException

    one, two, _ = machines
    call, lost = one.db.client.set_payload, []

    def unanswered(name: str, changes: dict[str, Any], *given: Any, **named: Any) -> None:
        call(name, changes, *given, **named)
        if "generation" in changes:
            lost.append(changes)
            raise ResponseHandlingException(OSError("gone"))

    monkeypatch.setattr(one.db.client, "set_payload", unanswered)
    put(one, doc("a"))
    assert len(lost) == 6, "sent again and again"
    monkeypatch.undo()
    put(two, doc("b"))
    assert state_of(one) == state_for([doc("a"), doc("b")])
