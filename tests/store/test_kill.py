"""A process killed at any moment leaves the index as before or as after, never between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palmette.store.local import LocalBackend
from palmette.types import Document
from support.stores import SPECS, doc, program_environment, put, run_python, state_for, state_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
ENVIRONMENT = program_environment()


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.exhaustive), 13])
def test_killed_at_every_step(stride: int, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "support.kill_points", str(tmp_path), str(stride)]
    done = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    for scenario, found in json.loads(done.stdout).items():
        if scenario == "compact":  # its content does not change: before and after look alike
            assert set(found) == {"before"}
            assert len(found) > 40 // stride
        else:
            assert set(found) == {"before", "after"}, scenario
            assert min(map(found.count, ("before", "after"))) > 5 // stride


CHURN = """
import sys
from support.stores import delete, doc, put
from palmette.store.local import LocalBackend
backend = LocalBackend.open(sys.argv[1])
for n in range(int(sys.argv[2]), 10_000):
    print(n, flush=True)  # the intent: everything before n is done
    if n % 3 == 2:
        backend.compact()
    elif n % 3 == 1:
        delete(backend, f"d{n - 1}", "base")
    else:
        put(backend, doc(f"d{n}"), doc("base", f"version {n}"))
"""


def expected(done: int) -> list[Document]:
    """Documents after the first ``done`` steps of CHURN: those of a put, until the next step deletes them."""
    last = done - 1
    return [doc(f"d{last}"), doc("base", f"version {last}")] if done and last % 3 == 0 else []


@pytest.mark.parametrize("rounds", [pytest.param(12, marks=pytest.mark.exhaustive), 3])
def test_killed_at_random_times(rounds: int, tmp_path: Path) -> None:
    folder, rng, step = tmp_path / "index", random.Random(7), 0
    LocalBackend.create(folder, SPECS, fingerprint="model").close()
    for _ in range(rounds):
        program = [sys.executable, "-c", CHURN, str(folder), str(step)]
        with subprocess.Popen(program, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"{step}\n"
            time.sleep(rng.uniform(0, 0.15))
            child.send_signal(signal.SIGKILL)
            intents = [step, *map(int, child.stdout.read().split())]
        with LocalBackend.open(folder) as backend:
            state = state_of(backend)
            possible = [state_for(expected(intents[-1])), state_for(expected(intents[-1] + 1))]
            assert state in possible
            step = intents[-1] + possible.index(state)
            if state == possible[0] == possible[1]:
                step = intents[-1] + 1  # a compaction: done or not, the next step is due


def test_create_killed_half_way_can_be_repeated(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from support.stores import SPECS
from palmette.store import folder
from palmette.store.local import LocalBackend
folder.Manifest.write = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
LocalBackend.create(sys.argv[1], SPECS, fingerprint="model")
"""
    folder = tmp_path / "index"
    assert run_python(script, folder).returncode == -signal.SIGKILL
    assert any(folder.iterdir())
    with LocalBackend.create(folder, SPECS, fingerprint="model") as backend:
        put(backend, doc("a"))
        assert set(state_of(backend)) == {"a"}
