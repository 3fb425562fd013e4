"""A question of the shell needs neither torch nor a compiler where ONNX Runtime reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from palmette import Index
from palmette.encoder.onnx.export import export_onnx
from support.tiny import documents
from support.tiny_encoder import save_tiny_encoder

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

HEAVY = "torch numba llvmlite transformers sentence_transformers faiss scipy sklearn huggingface_hub tqdm onnx"


def asked(*words: str) -> tuple[list[dict[str, object]], set[str]]:
    """Run the shell's command in a process of its own: what it prints, and the heavy packages it has imported."""
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from palmette.cli import main\n"
        f"code = main({[*words, '--json']!r})\n"
        f"print(*sorted({{*{HEAVY.split()!r}}} & {{*sys.modules}}), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), set(done.stderr.split())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    return export_onnx(save_tiny_encoder(folder / "source"), folder / "onnx").path


def test_a_question_to_an_onnx_index_imports_nothing_heavy(exported: Path, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", encoder=f"onnx:{exported}") as index:
        index.add(documents())
        expected = [(hit.id, hit.score) for hit in index.search("where does the red owl live?", k=3)]
    hits, heavy = asked("search", str(tmp_path / "index"), "where does the red owl live?", "-k", "3")
    assert not heavy
    assert [(hit["id"], hit["score"]) for hit in hits] == expected


def test_an_export_takes_the_place_of_the_index_own_encoder(exported: Path, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", encoder=str(exported.parent / "source")) as index:
        index.add(documents())
        expected = [hit.id for hit in index.search("where does the red owl live?", k=3)]
    words = ("where does the red owl live?", "-k", "3", "--encoder", f"onnx:{exported}", "--explain")
    hits, heavy = asked("search", str(tmp_path / "index"), *words)
    assert not heavy
    assert [hit["id"] for hit in hits] == expected
    context, heavy = asked("context", str(tmp_path / "index"), *words[:1], *words[3:5])
    assert not heavy
    assert context["excerpts"]
