"""What pip installs: four distributions, and our share of a namespace."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
import palmette

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "palmette": ".",
    "langchain-palmette": "adapters/langchain_palmette",
    "llama-index-retrievers-palmette": "adapters/llama_index",
    "palmette-qdrant": "adapters/palmette_qdrant",
    "palmette-postgres": "adapters/palmette_postgres",
}
SOURCES = {
    "palmette": ("palmette", "plugin/palmette"),
    "langchain-palmette": ("langchain_palmette", "adapters/langchain_palmette"),
    "llama-index-retrievers-palmette": ("llama_index/retrievers/palmette", "adapters/llama_index/retrievers/palmette"),
    "palmette-qdrant": ("palmette_qdrant", "adapters/palmette_qdrant"),
    "palmette-postgres": ("palmette_postgres", "adapters/palmette_postgres"),
}
"""The package that each installs, and where it lies."""


def pyproject(name: str) -> Any:
    return tomllib.loads((ROOT / FOLDERS[name] / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, built as a release builds them."""
    out = tmp_path_factory.mktemp("dist")
    for folder in FOLDERS.values():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(command, cwd=ROOT / folder, capture_output=True, check=True)
    return {name: next(out.glob(f"{name.replace('-', '_')}-*.whl")) for name in FOLDERS}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_each_wheel_holds_its_own_package_only(wheels: dict[str, Path]) -> None:
    for name, (package, source) in SOURCES.items():
        with zipfile.ZipFile(wheels[name]) as archive:
            held = {entry for entry in archive.namelist() if ".dist-info/" not in entry}
            assert any(entry.endswith("/licenses/LICENSE") for entry in archive.namelist())
        modules = {path.relative_to(ROOT / source).as_posix() for path in (ROOT / source).rglob("*.py")}
        assert {f"{package}/{path}" for path in modules | {"py.typed"}} <= held
        assert all(entry.startswith(f"{package}/") for entry in held)
        assert not [entry for entry in held if entry.endswith(("README.md", "LICENSE", "pyproject.toml"))]


def test_the_base_wheel_does_not_look_like_a_framework(wheels: dict[str, Path]) -> None:
    """Other packages probe with find_spec for the frameworks."""
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p and p != '']\n"
        f"sys.path.insert(0, {str(wheels['palmette'])!r})\n"
        "from importlib.util import find_spec\n"
        "print([n for n in ('palmette', 'llama_index', 'langchain_palmette', 'langchain') if find_spec(n)])"
    )
    out = subprocess.run([sys.executable, "-E", "-S", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert out.stdout.strip() == "['palmette']"


def test_the_wheels_need_each_other(wheels: dict[str, Path]) -> None:
    told = {name: metadata(wheel) for name, wheel in wheels.items()}
    [version] = {one["Version"] for one in told.values()}
    assert version == palmette.__version__
    needs = {name: set(one.get_all("Requires-Dist") or ()) for name, one in told.items()}
    for name, extra in (
        ("langchain-palmette", "langchain"),
        ("llama-index-retrievers-palmette", "llama-index"),
        ("palmette-qdrant", "qdrant"),
        ("palmette-postgres", "postgres"),
    ):
        assert f"palmette=={version}" in needs[name]
        assert f"{name}=={version}; extra == '{extra}'" in needs["palmette"]
        [framework] = needs[name] - {f"palmette=={version}"}
        assert f"{framework}; extra == 'dev'" in needs["palmette"], "the same range in a checkout"
    for name, one in told.items():
        assert one["Name"] == name
        assert one["License-Expression"] == "Apache-2.0"
        assert len(one.get_payload()) > 500, "the README"
        assert any(url.startswith("Homepage, https://") for url in one.get_all("Project-URL") or ())


def test_a_checkout_has_everything(tmp_path: Path) -> None:
    """``pip install -e .`` puts the adapters on the path too."""
    code = f"import hatchling.build as build; print(build.build_editable({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".pth")]
        lines = archive.read(path).decode().split()
    assert sorted(lines) == [str(ROOT / "adapters"), str(ROOT / "plugin")]


def test_llamahub_knows_every_class() -> None:
    hub = pyproject("llama-index-retrievers-palmette")["tool"]["llamahub"]
    assert hub["import_path"] == llama_palmette.__name__
    classes = {name for name in llama_palmette.__all__ if isinstance(getattr(llama_palmette, name), type)}
    assert set(hub["class_authors"]) == classes
    assert "llamahub" not in pyproject("palmette")["tool"]


@pytest.mark.parametrize("package", [langchain_palmette, llama_palmette], ids=lambda package: package.__name__)
def test_its_readme_names_every_class(package: Any) -> None:
    folder = "langchain_palmette" if package is langchain_palmette else "llama_index"
    text = (ROOT / "adapters" / folder / "README.md").read_text()
    own = [name for name in package.__all__ if name[0].isupper() and name != "ExplainedNode"]
    assert [name for name in own if f"`{name}`" not in text] == []


def test_only_packages_lie_where_imports_look() -> None:
    def listed(folder: str) -> set[str]:
        return {p.name for p in (ROOT / folder).iterdir() if p.name != "__pycache__"}

    assert listed("plugin") == {"palmette"}
    assert listed("adapters") == {"langchain_palmette", "llama_index", "palmette_qdrant", "palmette_postgres"}
    packaging = {"pyproject.toml", "README.md", "LICENSE"}
    assert listed("adapters/llama_index") == {"retrievers", *packaging}
    assert listed("adapters/llama_index/retrievers") == {"palmette"}


def test_the_extras_are_those_that_errors_name() -> None:
    project = pyproject("palmette")["project"]
    extras = set(project["optional-dependencies"])
    assert extras == set(
        "train langchain llama-index files cpu gpu baselines qdrant postgres serve mcp demo docs dev all".split()
    )
    for extra in ("demo", "all", "dev"):
        assert re.match(r"palmette\[(\w|-|,)*\btrain\b", project["optional-dependencies"][extra][0]), extra
    assert not any("==" in line and "gt-all" not in line for line in project["dependencies"]), "ranges, not pins"
    source = "".join(path.read_text() for folder in ("plugin", "adapters") for path in (ROOT / folder).rglob("*.py"))
    named = set(re.findall(r'raise MissingExtraError\(\s*[^,]+,\s*"([\w-]+)"', source))
    assert named
    assert named <= extras
