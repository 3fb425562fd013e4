"""What importing costs, what is exported, and the package as a guest in LlamaIndex's namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever

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
    command = [sys.executable, *flags, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("package", "flags", "before", "use"),
    [
        ("langchain_palmette", ("-W", "error"), [*HEAVY, "transformers", "sentence_transformers"], USE),
        ("llama_index.retrievers.palmette", (), [*HEAVY, "llama_index.core"], ""),
    ],
)
def test_importing_and_constructing_is_light(package: str, flags: Any, before: list[str], use: str) -> None:
    after = before if use else HEAVY
    told = run(
        f"import sys, {package}\nprint([name for name in {before} if name in sys.modules])\n"
        f"from {package} import *\n{use}\nprint([name for name in {after} if name in sys.modules])",
        *flags,
    )
    assert told.split() == ["[]", "[]"]


@pytest.mark.parametrize("package", PACKAGES)
def test_without_the_framework_the_fix_is_named(package: Any) -> None:
    told = run(
        f"try:\n    import {package.__name__}\nexcept ImportError as error:\n    print(type(error).__name__, error)",
        "-S",
    )
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


def test_at_home_in_the_namespace(tmp_path: Path) -> None:
    """Beside llama_index.core and another retriever from another folder, as after editable installs."""
    other = tmp_path / "llama_index/retrievers/other"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("NAME = 'other'")
    told = run(
        "import llama_index.retrievers.palmette, llama_index.core, llama_index.retrievers.other\n"
        "print(llama_index.retrievers.other.NAME, llama_index.core.VectorStoreIndex.__name__)",
        more=tmp_path,
    )
    assert told == "other VectorStoreIndex"


@pytest.mark.parametrize("cls", [llama_palmette.PalmetteRetriever, llama_palmette.TreeRetriever])
def test_is_a_base_retriever(cls: Any) -> None:
    assert BaseRetriever.__name__ in [base.__name__ for base in cls.__mro__]
    assert not {"retrieve", "aretrieve"} & vars(cls).keys()
