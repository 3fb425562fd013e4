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


@pytest.mark.parametrize("namespace", ["llama_index", "llama_index/retrievers"])
def test_namespaces_stay_native(namespace):
    folder = ADAPTERS / namespace
    assert folder.is_dir()
    assert [item.name for item in folder.glob("*.py*")] == []


def test_no_test_folder_shadows_the_namespace():
    assert not (Path(__file__).parents[1] / "llama_index").exists()


def test_core_and_retriever_coexist():
    out = run(
        paths(*source_roots())
        + "import llama_index.core, llama_index.retrievers.palmette as p; print(p.TreeRetriever.__mro__)"
    )
    assert "llama_index.core.base.base_retriever.BaseRetriever" in out


def test_coexists_with_another_retriever_in_the_namespace(tmp_path):
    other = tmp_path / "llama_index/retrievers/other"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("NAME = 'other'")
    code = "import llama_index.retrievers.palmette, llama_index.retrievers.other as o, llama_index.core; print(o.NAME)"
    for order in ((tmp_path, *source_roots()), (*source_roots(), tmp_path)):
        assert run(paths(*order) + code) == "other"


def test_importing_is_light():
    heavy = "print([m for m in ('torch', 'faiss', 'numba', 'llama_index.core') if m in sys.modules])"
    assert run(paths(*source_roots()) + "import llama_index.retrievers.palmette\n" + heavy) == "[]"
    names = "from llama_index.retrievers.palmette import *\n"
    engine = "print([m for m in ('torch', 'faiss', 'numba') if m in sys.modules])"
    assert run(paths(*source_roots()) + names + engine) == "[]"


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
