"""Mutants of the methods' formulas (mutants.txt): each must be killed by the tests named beside it.

    python tests/mutants.py [WORD …]      # all, or those whose name has one of the words; about 10 s each

Works on a copy of the project. Exit status 1 if a mutant survives, or if its text is no longer in the code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "notebooks")


def verdict(root: Path, file: str, old: str, new: str, tests: str) -> str:
    """Apply one mutant in ``root``, run its tests, and restore the file."""
    path = root / "plugin" / "palmette" / file
    source = path.read_text(encoding="utf-8")
    if old not in source:
        return "NOT FOUND"
    path.write_text(source.replace(old, new, 1), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", f"tests/{tests}"]
    status = subprocess.run(command, cwd=root, capture_output=True, check=False).returncode
    path.write_text(source, encoding="utf-8")
    return {0: "SURVIVED", 1: "killed"}.get(status, f"ERROR {status}")


def main(words: list[str]) -> int:
    """Report each mutant's fate."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(HERE.parent, root, ignore=LEFT_OUT)
        for mutant in (HERE / "mutants.txt").read_text(encoding="utf-8").strip().split("\n\n"):
            head, old, new = mutant.split("\n")
            name, file, tests = head.split(" | ")
            if not words or any(word in name for word in words):
                fate = verdict(root, file, old[2:], new[2:], tests)
                failed += fate != "killed"
                print(f"{fate:9} {name}  ({tests})", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
