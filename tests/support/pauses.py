"""Histories of writers of one collection that are paused, killed and cut off at any request, with clocks of their own.

Every machine is a thread, of which one runs at a time, from one of its requests to the next. The world's seconds are
made up: they pass when a request is sent, and leap when every machine sleeps. A machine reads a clock of its own, which
is off by days and runs slow or fast. A request may be lost, its answer may be lost, or it may arrive later than the
next ones (at most ``LATE`` seconds later when its writer goes on; a paused machine's own requests arrive whenever it
wakes up).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from palmette.errors import LockedError, StoreError
from palmette.types import Document
from palmette_qdrant.backend import QdrantBackend
from palmette_qdrant.client import Collection
from palmette_qdrant.lease import LEASE_TTL
from palmette_qdrant.state import State
from palmette_qdrant.writer import QdrantWriter
from support.stores import arrays_of, doc, state_for, state_of

IDS = [f"d{n}" for n in range(9)]
CHANGES = ("upsert", "set_payload", "delete", "delete_payload")
LATE = 25.0


class Killed(BaseException):
    """The machine has lost its power."""


class Aborted(Exception):
    """The code inside a write raised."""


class Machine(threading.Thread):
    """A computer of the world; ``work`` runs on it."""

    def __init__(self, world: World, url: str, work: Callable[[Machine], None]) -> None:
        super().__init__(daemon=True)
        rng = world.rng
        self.world, self.wake, self.killed, self.work = world, 0.0, False, work
        self.offset, self.rate = rng.uniform(-1e6, 1e6), rng.choice([0.5, 1.0, 1.0, 2.0])
        self.failure: BaseException | None = None
        self.patient = False  # neither paused nor killed
        self.go = threading.Semaphore(0)
        self.db = Collection.__new__(Collection)
        self.db.__dict__ |= world.template(f"{url}?retries={rng.choice([0, 1, 5])}").__dict__
        self.db.client, self.db.committed_at = Wire(self), {}
        self.db._lock = threading.RLock()
        self.db.clock = lambda: self.world.now * self.rate + self.offset
        self.db.sleep = lambda seconds: self.pause(seconds / self.rate)
        world.machines.append(self)

    def run(self) -> None:
        try:
            self.pause(self.world.rng.uniform(0, 30))
            self.work(self)
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        self.wake = float("inf")
        self.world.turn.release()

    def pause(self, seconds: float) -> None:
        """Let the others run."""
        if self.killed:
            raise Killed
        self.wake = self.world.now + seconds
        self.world.turn.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def trouble(self) -> None:
        """Let a moment pass, or longer than a lease lasts, or the end come."""
        rng, fate = self.world.rng, self.world.rng.random()
        if fate < self.world.kills and not self.patient:
            self.killed = True
        elif fate < self.world.kills + self.world.pauses and not self.patient:
            self.pause(rng.uniform(0, 5 * LEASE_TTL))
        self.pause(rng.uniform(0, 0.1))

    def request(self, name: str, send: Callable[[], Any]) -> Any:
        """Send a request through the network."""
        from qdrant_client.http.exceptions import ResponseHandlingException

        world, rng = self.world, self.world.rng
        self.trouble()
        if name in CHANGES and rng.random() < world.losses:
            fate = rng.choice(["lost", "unanswered", "late"])
            if fate == "unanswered":
                send()
            elif fate == "late":
                world.late.append((world.now + rng.uniform(0, LATE), send))
            raise ResponseHandlingException(OSError(fate))
        answer = send()
        self.trouble()
        return answer


class Wire:
    """A machine's connection to the server: the client's calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._machine.world.client, name)
        if not callable(call):
            return call
        return lambda *given, **named: self._machine.request(name, lambda: call(*given, **named))


class World:
    """Machines, the server that they share, and what every write did."""

    def __init__(self, client: Any, url: str, seed: int) -> None:
        self.client, self.url, self.rng = client, url, random.Random(seed)
        self.now, self.turn = 0.0, threading.Semaphore(0)
        self.machines: list[Machine] = []
        reader = self.template(url)
        reader.client = client
        self.first = reader.state()
        self.late: list[tuple[float, Callable[[], Any]]] = []
        self.steps: dict[int, list[tuple[str, Any]]] = {}
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.kills, self.pauses = self.rng.choice([0.0, 0.002, 0.01]), self.rng.choice([0.0, 0.02, 0.1])
        self.losses = self.rng.choice([0.0, 0.02, 0.1])

    @staticmethod
    def template(url: str) -> Collection:
        """A collection whose client is replaced."""
        made = Collection(url)
        made.client.close()
        return made

    def run(self) -> None:
        """Let every machine run to its end, in a random order of steps."""
        for machine in self.machines:
            if not machine.is_alive() and machine.wake < float("inf"):
                machine.start()
                self.turn.acquire()
        while waiting := [one for one in self.machines if one.wake < float("inf")]:
            ready = [one for one in waiting if one.wake <= self.now]
            if not ready:
                self.now = min(one.wake for one in waiting)
                continue
            self.deliver(self.now)
            self.rng.choice(ready).go.release()
            self.turn.acquire()
        for machine in self.machines:
            if machine.failure is not None:
                raise machine.failure

    def deliver(self, until: float) -> None:
        """Let late requests arrive."""
        due = [one for one in self.late if one[0] <= until]
        self.late = [one for one in self.late if one[0] > until]
        for _, send in sorted(due, key=lambda one: one[0]):
            send()

    def documents(self, state: State) -> dict[str, Document]:
        """What a state must show: the committed writes, one after the other."""
        shown: dict[str, Document] = {}
        for number in sorted(self.steps):
            if not state.is_committed(number):
                continue
            for step, what in self.steps[number]:
                if step == "put":
                    shown |= {one.key: one for one in what}
                elif step == "delete":
                    shown = {id: one for id, one in shown.items() if id not in what}
        return shown

    def check(self, backend: QdrantBackend) -> State:
        """No acknowledged write is lost, and no refused one counts; returns the state."""
        acknowledged = set(self.acknowledged)
        state = backend.state()
        lost = {number for number in acknowledged if not state.is_committed(number)}
        assert not lost, f"acknowledged writes {lost} do not count in {state}"
        wrong = {number for number in self.refused if state.is_committed(number)}
        assert not wrong, f"writes {wrong} were refused, but count in {state}"
        return state


def noted(world: World, backend: QdrantBackend, change: Callable[[QdrantWriter, list[tuple[str, Any]]], None]) -> int:
    """A write whose steps and outcome the world notes; returns its number, 0 if it got no lease."""
    number, changed = 0, False
    try:
        with backend.write() as writer:
            number = writer.number
            assert number not in world.steps, f"number {number} was given twice"
            world.steps[number] = []
            try:
                change(writer, world.steps[number])
            finally:
                changed = writer._changed  # a number without changes neither counts nor is abandoned
        world.acknowledged |= {number} if changed else set()
    except (LockedError, Aborted):
        world.refused |= {number} if changed else set()
    except StoreError:
        pass  # the network failed at the end: it counts or not
    return number


def write(machine: Machine) -> None:
    """Some writes of a few steps each."""
    world, rng = machine.world, machine.world.rng
    backend = QdrantBackend(machine.db, world.first, rng.choice([0.5, 10.0, 300.0]))

    def change(writer: QdrantWriter, steps: list[tuple[str, Any]]) -> None:
        for n in range(rng.randint(1, 4)):
            ids = rng.sample(IDS, rng.randint(1, 5))
            put_before = {one.key for step, what in steps if step == "put" for one in what}
            if rng.random() < 0.3:
                steps.append(("delete", ids))
                writer.delete(ids)
            elif fresh := [id for id in ids if id not in put_before]:
                given = [doc(id, f"{id} is {writer.number} at {n}") for id in fresh]
                steps.append(("put", given))
                writer.put(given, arrays_of(given))
        if rng.random() < 0.1:
            raise Aborted

    for _ in range(rng.randint(1, 5)):
        noted(world, backend, change)
        machine.pause(rng.uniform(0, 40))


def read(machine: Machine) -> None:
    """Views of one commit each, while others write."""
    world = machine.world
    machine.patient = True
    backend = QdrantBackend(machine.db, world.first, 10.0)
    for _ in range(6):
        with backend.read() as view:
            keys = view.keys().tolist()
            shown = {one.key: one for one in view.documents(keys)}
            matches = view.words("is at", 99).keys.tolist()
        expected = world.documents(view.state)
        assert shown == expected, f"{sorted(shown)} and not {sorted(expected)} in {view.state}"
        assert len(view) == len(keys)
        assert set(matches) == set(keys)
        world.check(backend)
        machine.pause(world.rng.uniform(0, 60))


def history(client: Any, url: str, specs: Sequence[Any], seed: int) -> dict[str, int]:
    """One history from an empty collection; returns how many writes were acknowledged, refused and made."""
    QdrantBackend.create(url, specs, fingerprint="model", language="english")
    world = World(client, url, seed)
    for _ in range(world.rng.randint(2, 4)):
        Machine(world, url, write)
    Machine(world, url, read)
    world.run()

    def last(machine: Machine) -> None:
        machine.patient, world.losses = True, 0.0
        backend = QdrantBackend(machine.db, world.first, 1000.0)
        state = world.check(backend)
        expected = world.documents(state)
        assert state_of(backend) == state_for(expected.values())
        backend.verify()

        def put_last(writer: QdrantWriter, steps: list[tuple[str, Any]]) -> None:
            steps.append(("put", [doc("last")]))
            writer.put([doc("last")], arrays_of([doc("last")]))

        assert noted(world, backend, put_last) in world.acknowledged
        world.check(backend)
        backend.compact()
        expected["last"] = doc("last")
        assert state_of(backend) == state_for(expected.values())
        backend.verify()
        assert machine.db("count", machine.db.where()).count == len(expected) + 1, "what is invisible is gone"

    world.deliver(float("inf"))
    Machine(world, url, last)
    world.run()
    return {"acknowledged": len(world.acknowledged), "refused": len(world.refused), "made": len(world.steps)}
