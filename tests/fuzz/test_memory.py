"""Long documents and queries of any characters take bounded memory and linear time, or are refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from support.peaks import PARTS
from support.stores import run_program

BOUND = 200
"""Megabytes beyond a process with a loaded model."""
SECONDS = 30
"""Processor time of a megabyte, on a slow machine."""
SAMPLE = [("add", "words"), ("add", "items"), ("file.md", "short words"), ("search", "rare words")]
"""What every run measures; all others are measured weekly."""
REFUSED = ("search", "explain", "context", "question")
"""Calls with a query, which is refused where it is longer than 100,000 characters."""
CALLS = "add search explain context answer question file.md file.txt file.py file.html file.jsonl file.ipynb".split()
WEEKLY = [(call, name) for call in CALLS for name in PARTS if (call, name) not in SAMPLE]


def measured(call: str, name: str, size: int) -> Any:
    """Measure a call in a process of its own."""
    run = run_program("-m", "support.peaks", call, name, size, timeout=None)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize(
    ("call", "name", "size"),
    [
        *((call, name, 1_000_000) for call, name in SAMPLE),
        *(pytest.param(*pair, 8_000_000, marks=pytest.mark.exhaustive) for pair in SAMPLE + WEEKLY),
    ],
)
def test_long_texts_take_bounded_memory(call: str, name: str, size: int) -> None:
    facts = measured(call, name, size if call.startswith(("add", "file")) else size // 5)
    assert facts["peak"] < BOUND, facts
    assert facts["seconds"] < 5 + SECONDS * size / 1e6, facts
    if call in REFUSED:
        assert "100,000" in facts["error"]  # refused, with the limit
