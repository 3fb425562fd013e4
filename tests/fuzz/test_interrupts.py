"""Interrupts (Ctrl-C) at any moment of a search or a write: KeyboardInterrupt leaves, and the index goes on."""

from __future__ import annotations

import gc
import random
import signal
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from support.stores import run_python

MODEL = SpaceModel.untrained(FakeEncoder(64))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_interrupts_of_searches_and_writes(count: int, tmp_path: Path) -> None:
    """In a process of its own: an interrupt may leave a lock of a library held for ever."""
    code = f"from fuzz.test_interrupts import interrupt; interrupt({str(tmp_path / 'index')!r}, {count})"
    done = run_python(code, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


def interrupt(path: str, count: int) -> None:
    """Interrupt searches and writes at random moments; the index must be whole, with all that was acknowledged."""
    texts = (f"The red cat number {n} of {n % 97} sings w{n % 31} at house {n}" for n in range(2000))
    draw, written = random.Random(count), 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with Index.build(texts, MODEL, path, progress=False) as index:
        index.search("red cat 3", 5)
        for _ in range(count):
            try:  # and again: Python drops an interrupt that meets a finaliser
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 0.02), 0.5)
                while True:
                    index.search(f"red cat {draw.randrange(3000)} w{draw.randrange(31)}", 5)
                    if draw.random() < 0.2:
                        index.upsert([Document(f"new{written}", f"new text {written}")], progress=False)
                        written += 1
            except KeyboardInterrupt:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        index.verify()
        assert 2000 + written <= len(index) <= 2000 + written + count
