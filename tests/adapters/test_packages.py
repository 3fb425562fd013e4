"""What importing costs, what is exported, and the package as a guest in LlamaIndex's namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
import palmette

ROOTS = [str(Path(module.__file__).parents[1]) for module in (langchain_palmette, palmette)]
PACKAGES = [langchain_palmette, llama_palmette]
HEAVY = ["torch", "faiss", "numba"]
USE = """
TreeRetriever(index_path='x', level=3, filter={'a': 1})
PalmetteEmbeddings(encoder='fake'); PalmetteReranker(model='x'); PalmetteReader(reader='x')
"""


def run(code: str, *flags: str, more: Path | None = None) -> str:
    """What a fresh Python prints; with ``-S`` it has no installed packages."""
    paths = [*([str(more)] if more else []), *ROOTS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def importing(package: str, before: list[str], use: str) -> str:
    """Code that prints which of these modules importing a package loads, and which heavy ones using its names does."""
    return (
        f"import sys, {package}\nprint([name for name in {before} if name in sys.modules])\n"
        f"from {package} import *\n{use}\nprint([name for name in {HEAVY} if name in sys.modules])\n"
    )


def test_importing_and_constructing_is_light() -> None:
    heavy = [*HEAVY, "transformers", "sentence_transformers"]
    assert run(importing("langchain_palmette", heavy, USE), "-W", "error") == "[]\n[]"


def test_llamaindex_is_light_and_at_home_in_the_namespace(tmp_path: Path) -> None:
    """Beside llama_index.core and another retriever from another folder, as after editable installs."""
    other = tmp_path / "llama_index/retrievers/other"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("NAME = 'other'")
    code = importing("llama_index.retrievers.palmette", [*HEAVY, "llama_index.core"], "")
    code += "import llama_index.core, llama_index.retrievers.other\n"
    code += "print(llama_index.retrievers.other.NAME, llama_index.core.VectorStoreIndex.__name__)"
    assert run(code, more=tmp_path) == "[]\n[]\nother VectorStoreIndex"


@pytest.mark.parametrize("package", PACKAGES)
def test_without_the_framework_the_fix_is_named(package: Any) -> None:
    code = f"try:\n    import {package.__name__}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    told = run(code, "-S")
    assert "MissingExtraError" in told
    extra = "langchain" if package is langchain_palmette else "llama-index"
    assert f"pip install 'palmette[{extra}]'" in told


@pytest.mark.parametrize("package", PACKAGES)
def test_exports(package: Any) -> None:
    assert sorted(package.__all__) == dir(package)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="ForestRetriever"):
        _ = package.ForestRetriever
