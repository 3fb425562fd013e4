"""Forked children: what they tell, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TextIO

Child = tuple[int, TextIO]
"""A process, and the end of its pipe that can be read."""


def forked(work: Callable[[TextIO], object]) -> Child:
    """Fork a child that is given a pipe to write to; one that hangs is killed."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork while other threads run
        child = os.fork()
    if child:
        os.close(writing)
        return child, os.fdopen(reading)
    try:
        signal.alarm(120)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # its other threads do not come along, and are waited for
        with os.fdopen(writing, "w") as pipe:
            work(pipe)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def ended(*children: Child) -> list[int]:
    """Exit codes of children, waited for."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children]
    for _, pipe in children:
        pipe.close()
    return codes


def as_nobody(work: Callable[[], object]) -> None:
    """Run in a child that has given up root, before whom nothing is read-only or unreadable."""

    def child() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        work()

    in_child(child)


def in_child(work: Callable[[], object]) -> None:
    """Run in a forked child, whose failure is ours."""
    assert ended(forked(lambda _: work())) == [0]
