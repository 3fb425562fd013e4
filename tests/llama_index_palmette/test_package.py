"""The package as a guest in LlamaIndex's namespace."""

import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core.base.base_retriever import BaseRetriever

import llama_index.retrievers.palmette as package
from llama_index.retrievers.palmette import PalmetteRetriever, TreeRetriever

HERE = Path(package.__file__).parent
ADAPTERS = HERE.parents[2]


def run(code, *args):
    command = [sys.executable, *args, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def paths(*roots):
    return f"import sys; sys.path[:0] = {[str(root) for root in roots]!r}\n"


def source_roots():
    import palmette

    return ADAPTERS, Path(palmette.__file__).parents[1]


def test_light_and_at_home_in_the_namespace(tmp_path):
    """Beside llama_index.core and another retriever from another folder, as after editable installs."""
    other = tmp_path / "llama_index/retrievers/other"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("NAME = 'other'")
    out = run(
        paths(tmp_path, *source_roots())
        + """
def loaded(*names):
    return [name for name in names if name in sys.modules]

import llama_index.retrievers.palmette
print(loaded("llama_index.core", "torch", "faiss", "numba"))
from llama_index.retrievers.palmette import *
print(loaded("torch", "faiss", "numba"), issubclass(TreeRetriever, PalmetteRetriever))
import llama_index.core, llama_index.retrievers.other
print(llama_index.retrievers.other.NAME, llama_index.core.VectorStoreIndex.__name__)
"""
    )
    assert out.splitlines() == ["[]", "[] True", "other VectorStoreIndex"]


def test_missing_llama_index_names_the_extra():
    code = paths(*source_roots()) + (
        "try:\n    import llama_index.retrievers.palmette\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    assert "MissingExtraError" in (out := run(code, "-S"))
    assert "pip install 'palmette[llama-index]'" in out


def test_public_names():
    assert sorted(package.__all__) == dir(package)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="Tree"):
        package.Tree  # noqa: B018


@pytest.mark.parametrize("cls", [PalmetteRetriever, TreeRetriever])
def test_is_a_base_retriever(cls):
    assert BaseRetriever.__name__ in [base.__name__ for base in cls.__mro__]
    for public in ("retrieve", "aretrieve"):
        assert public not in vars(cls)
