"""Processor time that this process may use, and how OpenMP's threads wait for one another."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

TOKENS_FOR_ONE_THREAD = 256
"""Tokens of a pass, padding included, below which a second thread costs more than it saves."""


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Choose how torch's threads wait and what memory they keep, unless the user chose otherwise.

    By default OpenMP's threads spin while they wait. Where other programs compute, one thread of a pass is often not
    running, and the others burn processor time until it is. MKL keeps buffers for every thread that ever multiplied,
    17 MB each, and any thread may encode. Both read the choice when torch is imported; afterwards it changes nothing.
    """
    if "torch" in sys.modules:
        return
    environment.setdefault("MKL_DISABLE_FAST_MM", "1")
    if "GOMP_SPINCOUNT" not in environment:
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def usable_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by the quota of its control groups."""
    return max(1, math.ceil(min(_visible_cores(), quota())))


def _visible_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def quota(root: str = "/") -> float:
    """Return the cores that control groups allow, infinite without a limit; both versions of Linux's are read.

    The groups are this process's and those around it. In a container a group's path is often the host's, and the folder
    mounted there is the group itself.
    """
    from pathlib import Path  # a command that asks a running service never needs it

    mounts, least = Path(root, "sys/fs/cgroup"), math.inf
    with suppress(OSError, ValueError):
        for line in Path(root, "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            names = path.strip("/").split("/")
            for depth in range(len(names), -1, -1):
                group = (mounts / controllers).joinpath(*names[:depth])
                with suppress(OSError, ValueError, ZeroDivisionError):
                    if (modern := group / "cpu.max").is_file():
                        allowed, period = modern.read_text().split()
                    else:
                        allowed, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                    if allowed != "max" and int(allowed) > 0:
                        least = min(least, int(allowed) / int(period))
    return least


@cache
def limit_torch() -> None:
    """Let torch use no more threads than there are usable cores: by default it uses all that it sees."""
    import torch

    chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if usable_cores() < _visible_cores() == torch.get_num_threads() and not chosen:
        torch.set_num_threads(usable_cores())


@cache
def _openmp() -> Any:
    import torch  # noqa: F401  its library must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="openmp")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with torch in this thread alone; what other threads compute meanwhile keeps theirs."""
    with _openmp().limit(limits=1):
        yield
