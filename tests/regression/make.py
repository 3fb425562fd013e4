"""Writes the record anew, after a change of behaviour that is meant; the commit says which blocks change, and why.

PYTHONPATH=plugin:adapters:tests python tests/regression/make.py [fixture …]

A new block begins as ``{"options": {…}, "cases": {}}`` in its file; an option that is deleted takes its blocks along.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from palmette import devices as device
from regression import record


def main() -> None:
    device._cpu_has_bfloat16 = lambda: False  # type: ignore[assignment]  # the precision of tests/conftest.py
    for name in sys.argv[1:] or sorted(path.stem for path in record.RECORDS.glob("*.json")):
        blocks = record.load(name)
        for title, block in blocks.items():
            with tempfile.TemporaryDirectory() as folder:
                if name == "others":
                    block["cases"] = record.others(Path(folder))
                    continue
                found = record.cases(name, block["options"])
                block["cases"] = {
                    case: result
                    for case, result in found.items()
                    if case == record.same_as(case) or result != found[record.same_as(case)]
                }
                if record.has_index(name):
                    block["cases"]["opened"] = record.opened(name, Path(folder) / title, block["options"])
        record.save(name, blocks)


if __name__ == "__main__":
    main()
