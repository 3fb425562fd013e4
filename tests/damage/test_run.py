"""A sample of the kills, damages and failing calls in every run; all of them with ``make test-all``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import run_program
from support.syscalls import is_possible

SOME = {"kills": 12, "damages": 24, "calls": 16}
MANY = {"kills": 2000, "damages": 3000, "calls": 2000}
LONG = [pytest.mark.exhaustive, pytest.mark.timeout(7200)]
ALL = [pytest.param({kind: count}, marks=LONG) for kind, count in MANY.items()]


@pytest.mark.skipif(not is_possible(), reason="needs Linux, and leave to supervise system calls")
@pytest.mark.parametrize("counts", [SOME, *ALL])
def test_nothing_is_lost_wrong_or_foreign(counts: dict[str, int]) -> None:
    run = Path(__file__).with_name("run.py")
    done = run_program(run, *counts, "--count", *counts.values(), "--seed", 2, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if " seed 2" in line]
    assert [line.split(" in ")[0] for line in told] == [f"{count} {kind}" for kind, count in counts.items()]
