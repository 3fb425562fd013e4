"""The base works without torch: no module of it imports what the extra ``train`` brings, and everything in it runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from palmette.encoder.local.find import MINILM
from support.local_hub import LocalHub
from support.tiny_encoder import save_tiny_encoder
from support.without_torch import LACKING

ROOT = Path(__file__).parents[1]
TRAIN = (
    "palmette.encoder.local.backbone",
    "palmette.encoder.local.sentence_transformer",
    *(f"palmette.methods.{method}" for method in ("fields", "layers", "paths", "taxonomy")),
    *(f"palmette.methods.tree.{part}" for part in ("init", "losses", "model", "module", "training")),
    "palmette.reader.losses",
    "palmette.reader.spans",
    *(f"palmette.training.{part}" for part in ("loop", "maths", "pairs", "space", "state")),
)
"""Modules that need the extra ``train``; all others belong to the base."""


def imports(node: ast.AST) -> Iterator[str]:
    """Names of the modules that a file imports when it is loaded: neither in functions nor for types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module)
            yield from (f"{child.module}.{name.name}" for name in child.names)
        else:
            yield from imports(child)


def test_the_base_imports_nothing_of_the_extra_train() -> None:
    foreign, checked = [], 0
    for path in (ROOT / "plugin").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "plugin").with_suffix("").parts).removesuffix(".__init__")
        if f"{module}.".startswith(tuple(f"{name}." for name in TRAIN)):
            continue
        checked += 1
        for name in imports(ast.parse(path.read_text("utf-8"))):
            lacks = name.partition(".")[0] in LACKING or f"{name}.".startswith(tuple(f"{name}." for name in TRAIN))
            foreign += [f"{module} imports {name}"] if lacks else []
    assert not foreign
    assert checked > 150


def test_all_of_the_base_works_without_torch(tmp_path: Path) -> None:
    """Make, open, search, change, survey and serve an index, with an encoder that is fetched from the Hub."""
    folder = save_tiny_encoder(tmp_path / "tiny")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with LocalHub() as hub:
        hub.put(MINILM.replace("all-MiniLM", "tiny"), files)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_HUB")}
        environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(ROOT / "tests/support/without_torch.py")]
        command += [MINILM.replace("all-MiniLM", "tiny"), str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["as it should be"], done.stdout + done.stderr


def test_the_contract_is_collected_without_torch_and_holds() -> None:
    """One part of it in one storage runs here, all of it in the job that has no torch."""
    script = [str(ROOT / "tests/support/without_torch.py"), "pytest", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, *script, str(ROOT / "tests/contract"), "-k", "folder and (test_words or test_passages)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
