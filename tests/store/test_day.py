"""A day of writes and questions: at its end a process holds what it held in the morning."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from support import long_use
from support.stores import fast_place, run_program

MEGABYTE = 1 << 20
LONG = [pytest.mark.exhaustive, pytest.mark.timeout(8 * 3600)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=LONG)])
@pytest.mark.parametrize("kind", ["index", "service"])
def test_nothing_grows_with_writes_and_questions(kind: str, count: int) -> None:
    count = count // 3 if kind == "service" else count
    with tempfile.TemporaryDirectory(dir=fast_place()) as place:
        done = run_program(long_use.__file__, kind, count, place, timeout=None)
        assert done.returncode == 0, done.stderr
        looks = [json.loads(line) for line in done.stdout.splitlines()]
        assert not list((Path(place) / "scratch").iterdir())
    first, last = looks[0], looks[-1]
    assert last["number"] == count
    grown = {name: last[name] - first[name] for name in last}
    assert grown["memory"] <= 8, looks
    assert grown["items"] <= 3000, looks
    assert grown["cached"] <= 1000, looks
    for look in looks:
        assert look["files"] <= first["files"] + 100, looks
        assert look["threads"] <= first["threads"] + 2, looks
        assert look["on disk"] <= first["on disk"] + 30, looks
        assert look["log"] <= 8 * MEGABYTE, looks
        assert look["longest log"] <= 64 * MEGABYTE, looks
