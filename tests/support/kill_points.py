"""Run as a program: do changes in forked children, each really killed at another point, and check what is left.

``python -m support.kill_points FOLDER STRIDE`` prints JSON: for each scenario, and every STRIDE-th kill point of it,
whether the index was found in the state ``before`` or ``after`` the change, or what was wrong with it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from palmette.errors import PalmetteError
from palmette.store.local import LocalBackend
from support.stores import SPECS, arrays_of, delete, doc, put, state_of


def change(backend: LocalBackend) -> None:
    """Several steps that must become one: delete, replace, add, and a merge of small segments."""
    with backend.write() as writer:
        writer.delete(["d1", "d7"])
        for some in (
            [doc(f"d{i}", f"other text {i}", lang="de") for i in range(2, 6)],
            [doc("x1"), doc("x2")],
        ):
            writer.put(some, arrays_of(some))


SCENARIOS: dict[str, Callable[[LocalBackend], None]] = {
    "add": lambda backend: put(backend, *(doc(f"new{i}", lang="en") for i in range(20))),
    "change": change,
    "compact": LocalBackend.compact,
}


def kill_at_event(n: int) -> None:
    """SIGKILL this process just before its n-th file operation or SQL statement."""
    left = n

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == -1:  # os.kill is an event, too
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, _: tuple[object, ...]) -> None:
        if event == "open" or event.startswith(("os.", "shutil.")):
            count()

    connect, fsync = sqlite3.connect, os.fsync

    def traced(*args: object, **options: object) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(count)
        return connection

    def counted_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    sqlite3.connect, os.fsync = traced, counted_fsync
    sys.addaudithook(audit)


def kill_at_size(n: int) -> None:
    """Let the kernel kill this process in the middle of a write that would make a file longer than 512·n bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * n, 512 * n))


def child(folder: Path, scenario: str, arm: Callable[[int], None], n: int) -> int:
    """Fork, arm, run; returns the signal that ended the child (0 when it got through)."""
    pid = os.fork()
    if pid == 0:
        backend = LocalBackend.open(folder)
        arm(n)
        SCENARIOS[scenario](backend)
        os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(folder: Path, before: object, after: object) -> str:
    try:
        with LocalBackend.open(folder, fingerprint="model") as backend:
            state = state_of(backend)
            known = "before" if state == before else "after" if state == after else ""
            found = known or f"between: {sorted(state)}"
            put(backend, doc("next"))
            backend.verify()
            if set(state_of(backend)) != {*state, "next"}:
                return f"{found}, but the next write went wrong"
            if len(list((folder / "segments").iterdir())) != backend.stats().segments:
                return f"{found}, but orphans were left"
            return found
    except PalmetteError as error:
        return f"{type(error).__name__}: {error}"


def kill_everywhere(start: Path, scenario: str, stride: int) -> list[str]:
    work = start.with_name(scenario)
    with LocalBackend.open(start) as backend:
        before = state_of(backend)
    shutil.copytree(start, work)
    with LocalBackend.open(work) as backend:
        SCENARIOS[scenario](backend)
        after = state_of(backend)
    found = []
    for arm, step in ((kill_at_event, 1), (kill_at_size, 3)):
        ended, n = -1, 0
        while ended != 0:
            shutil.rmtree(work)
            shutil.copytree(start, work)
            ended = child(work, scenario, arm, n)
            if ended not in (0, signal.SIGKILL, signal.SIGXFSZ):
                found.append(f"point {n}: the child ended with {-ended}")
                break
            found.append(check(work, before, after))
            n += step * stride
    return found


if __name__ == "__main__":
    start, stride = Path(sys.argv[1]) / "start", int(sys.argv[2])
    with LocalBackend.create(start, SPECS, fingerprint="model") as backend:
        put(backend, *(doc(f"d{i}", lang="en", n=i) for i in range(30)))
        put(backend, *(doc(f"e{i}", lang="de", n=i) for i in range(3)))
        delete(backend, "d3", "e1")
    print(json.dumps({scenario: kill_everywhere(start, scenario, stride) for scenario in SCENARIOS}))
