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


@pytest.mark.parametrize(
    "use",
    [
        "import langchain_palmette",
        "from langchain_palmette import *; TreeRetriever(index_path='x', level=3, filter={'a': 1})",
        "from langchain_palmette import *; PalmetteEmbeddings(encoder='fake'); PalmetteReranker(model='x')",
    ],
)
def test_importing_and_constructing_is_light(use: str) -> None:
    loaded = run(f"import sys; {use}; print([one for one in '{HEAVY}'.split() if one in sys.modules])")
    assert loaded == "[]"


def test_without_langchain_the_fix_is_named() -> None:
    script = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "import importlib.util as util; util.find_spec = lambda name: None\n"
        "try:\n    import langchain_palmette\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    assert "MissingExtraError" in run(script)
    assert "pip install 'palmette[langchain]'" in run(script)


def test_exports() -> None:
    assert sorted(dir(langchain_palmette)) == sorted(langchain_palmette.__all__)
    for name in langchain_palmette.__all__:
        assert getattr(langchain_palmette, name).__name__ == name
    with pytest.raises(AttributeError, match="ForestRetriever"):
        _ = langchain_palmette.ForestRetriever
