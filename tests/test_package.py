"""What pip installs: the metadata, and that our share of a namespace leaves the others theirs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_init_file_closes_a_namespace() -> None:
    for folder in ("adapters/llama_index", "adapters/llama_index/retrievers", "tests/llama_index"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_only_packages_lie_where_imports_look() -> None:
    def listed(folder: str) -> set[str]:
        return {p.name for p in (ROOT / folder).iterdir() if p.name != "__pycache__"}

    assert listed("plugin") == {"palmette"}
    assert listed("adapters") == {"langchain_palmette", "llama_index"}
    assert listed("adapters/llama_index") == {"retrievers"}
    assert listed("adapters/llama_index/retrievers") == {"palmette"}


def test_every_package_is_typed() -> None:
    for package in (
        "plugin/palmette",
        "adapters/langchain_palmette",
        "adapters/llama_index/retrievers/palmette",
    ):
        assert (ROOT / package / "py.typed").exists()


def test_the_extras_are_those_that_errors_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {
        "langchain",
        "llama-index",
        "cpu",
        "gpu",
        "baselines",
        "demo",
        "docs",
        "dev",
        "all",
    }
    assert not any("==" in line and "gt-all" not in line for line in project["dependencies"]), (
        "ranges, not pins"
    )
    source = "".join(
        path.read_text() for folder in ("plugin", "adapters") for path in (ROOT / folder).rglob("*.py")
    )
    named = set(re.findall(r'raise MissingExtraError\(\s*[^,]+,\s*"([\w-]+)"', source))
    assert named
    assert named <= set(project["optional-dependencies"])


def test_files_stay_small_enough_to_read() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("plugin", "adapters")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
