"""Bounds on work that a slow or busy machine meets as well as a quick one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_STEPS = 3_000_000
_SECONDS = 0.1
"""What that many steps of a loop take on the machine for which the tests' bounds were chosen."""


@contextmanager
def little_work(seconds: float) -> Iterator[None]:
    """Fail where the block keeps this thread busy for longer than these seconds of a usual machine.

    A machine that is slow, or shared, at this moment gets more, in proportion to a loop that is timed right after.
    Seconds of other threads do not count.
    """
    began = time.thread_time()
    yield
    spent = time.thread_time() - began
    if spent < seconds:
        return
    began = time.thread_time()
    for _ in range(_STEPS):
        pass
    slowness = max((time.thread_time() - began) / _SECONDS, 1.0)
    assert spent < seconds * slowness, f"{spent:.2f} s, on a machine {slowness:.1f} times as slow as usual"
