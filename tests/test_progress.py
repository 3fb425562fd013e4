"""Progress bars."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import pytest

from palmette.machine.progress import progress_bar


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_killed_while_it_draws_stops_nobody() -> None:
    """A forked child that dies with the lock of its bars leaves those of its parent and of other children usable."""
    list(progress_bar(False, range(3)))
    locked, lock_taken = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork while other threads run
        child = os.fork()
    if child == 0:
        type(progress_bar(False)).get_lock().acquire()
        os.write(lock_taken, b"x")
        signal.pause()
    os.read(locked, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other = threading.Thread(target=lambda: list(progress_bar(False, range(3))), daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()


@pytest.mark.parametrize("progress", [True, False, None])
def test_a_bar_is_shown_where_it_is_asked_for(progress: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Shown, hidden, or shown on terminals only; items pass in every case."""
    assert list(progress_bar(progress, range(5), desc="counting")) == list(range(5))
    assert ("counting" in capsys.readouterr().err) == (progress is True)
