"""A client killed in the middle of a write: every acknowledged document is there exactly once, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from support.stores import fast_place, program_environment

pytest.importorskip("qdrant_edge")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
@pytest.mark.parametrize("kills", [pytest.param(120, marks=pytest.mark.exhaustive), 3])
def test_killed_at_random_times(kills: int) -> None:
    with TemporaryDirectory(dir=fast_place()) as folder:
        program = [sys.executable, "-m", "support.edge_kills", folder, str(kills)]
        done = subprocess.run(program, env=program_environment(), capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1]).values()) == kills
