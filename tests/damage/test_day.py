"""An hour of the life of a service in every run, and a whole day with ``make test-all``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.stores import run_program

DAY = [pytest.mark.exhaustive, pytest.mark.timeout(3 * 3600)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("hours", "minute"), [pytest.param(1, 0.1, marks=DAY), pytest.param(24, 2.0, marks=DAY)])
def test_after_a_day_every_index_is_as_a_fresh_one(hours: int, minute: float) -> None:
    pytest.importorskip("markitdown")
    day = Path(__file__).with_name("day.py")
    done = run_program(day, "--hours", hours, "--minute", minute, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
