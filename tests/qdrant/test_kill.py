"""A client killed in the middle of a write: every acknowledged document is there exactly once, and no other."""

from __future__ import annotations

import json
import os
from tempfile import TemporaryDirectory

import pytest

from support.stores import fast_place, run_program

pytest.importorskip("qdrant_edge")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
@pytest.mark.parametrize("kills", [pytest.param(120, marks=pytest.mark.exhaustive), 3])
def test_killed_at_random_times(kills: int) -> None:
    with TemporaryDirectory(dir=fast_place()) as folder:
        done = run_program("-m", "support.edge_kills", folder, kills, timeout=550)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1]).values()) == kills
