"""What importing costs, and what is exported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import langchain_palmette

HEAVY = "torch faiss numba transformers sentence_transformers"


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_and_constructing_is_light() -> None:
    loaded = run(
        f"""
import sys
def heavy():
    return [one for one in {HEAVY!r}.split() if one in sys.modules]
import langchain_palmette
print(heavy())
from langchain_palmette import *
TreeRetriever(index_path='x', level=3, filter={{'a': 1}})
PalmetteEmbeddings(encoder='fake'); PalmetteReranker(model='x'); PalmetteReader(reader='x')
print(heavy())
"""
    )
    assert loaded.split() == ["[]", "[]"]


def test_without_langchain_the_fix_is_named() -> None:
    told = run(
        "import sys; sys.modules['langchain_core'] = None\n"
        "import importlib.util as util; util.find_spec = lambda name: None\n"
        "try:\n    import langchain_palmette\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    assert "MissingExtraError" in told
    assert "pip install 'palmette[langchain]'" in told


def test_exports() -> None:
    assert sorted(dir(langchain_palmette)) == sorted(langchain_palmette.__all__)
    for name in langchain_palmette.__all__:
        assert getattr(langchain_palmette, name).__name__ == name
    with pytest.raises(AttributeError, match="ForestRetriever"):
        _ = langchain_palmette.ForestRetriever
