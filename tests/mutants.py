"""Mutants of the engine (mutants.txt): each must be killed by the tests named beside it.

    python tests/mutants.py [WORD …]      # all, or those whose name has one of the words; some seconds each

Works on a copy of the project. Exit status 1 if a mutant survives, or if its text is no longer in the code.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", "notebooks")


def status(root: Path, tests: str) -> int:
    """Run tests of the copy in a fork, which has imported all that is not of the project."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = 3
    try:
        os.chdir(root)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (root / "plugin", root / "adapters")))
        files = [str(Path("tests", name)) for name in tests.split()]
        quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider")
        found = int(pytest.main(["-q", "-x", "-n0", *quiet, *files]))
    finally:
        os._exit(found)


def verdict(root: Path, file: str, old: str, new: str, tests: str) -> str:
    """Apply one mutant in ``root``, run its tests, and restore the file."""
    path = root / "plugin" / "palmette" / file
    source = path.read_text(encoding="utf-8")
    if old not in source:
        return "NOT FOUND"
    path.write_text(source.replace(old, new, 1), encoding="utf-8")
    found = status(root, tests)
    path.write_text(source, encoding="utf-8")
    return {0: "SURVIVED", 1: "killed"}.get(found, f"ERROR {found}")


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
    import numba  # noqa: F401
    import pytest
    import sentence_transformers  # noqa: F401
    import sklearn.feature_extraction.text  # noqa: F401

    sys.exit(main(sys.argv[1:]))
