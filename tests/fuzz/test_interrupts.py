"""Interrupts (Ctrl-C) at any moment of a search or a write: KeyboardInterrupt leaves, and the index goes on."""

from __future__ import annotations

import gc
import random
import signal
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.threads import unmasked

MODEL = SpaceModel.untrained(FakeEncoder(64))


def test_what_numba_masks_leaves_as_itself() -> None:
    def masked() -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    def other() -> None:
        raise SystemError("something else")

    with pytest.raises(KeyboardInterrupt):
        unmasked(masked)()
    with pytest.raises(SystemError, match="something else"):
        unmasked(other)()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files that the collector closes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt that meets a finaliser
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_interrupts_of_searches_and_writes(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [Document(f"d{n}", f"The red cat number {n} of {n % 97} sings w{n % 31} at house {n}") for n in range(2000)]
    draw, former = random.Random(count), signal.signal(signal.SIGALRM, signal.default_int_handler)
    written = 0
    with Index.build(given, MODEL, tmp_path / "index", progress=False) as index:
        index.search("red cat 3", 5)
        try:
            for _ in range(count):
                # once more after seconds: Python drops an interrupt that meets a finaliser
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 0.02), 5)
                with pytest.raises(KeyboardInterrupt):
                    while True:
                        index.search(f"red cat {draw.randrange(3000)} w{draw.randrange(31)}", 5)
                        if draw.random() < 0.2:
                            index.upsert([Document(f"new{written}", f"new text {written}")], progress=False)
                            written += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        gc.collect()
        index.verify()
        assert 2000 + written <= len(index) <= 2000 + written + count
