"""A Qdrant collection's URL in the place of a folder, in both frameworks and the shell."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from palmette.cli import main
from support import tiny
from support.frameworks import Given

pytest.importorskip("qdrant_client")
QUESTION = "where does the red owl live?"


def test_a_retriever_of_a_collection(framework: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"qdrant+local://{tmp_path}/docs"
    made = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), index_path=url)
    first = framework.ask(made, QUESTION)
    local = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), index_path=tmp_path / "folder")
    assert first == framework.ask(local, QUESTION)
    kept = pickle.dumps(made)
    framework.write(made, [Given("new", "a red owl is here")])
    assert framework.delete(made, ["red-owl"]) == ["red-owl"]
    made.index.close()
    again = pickle.loads(kept)  # opens the collection by its URL
    assert next(hit.id for hit in framework.ask(again, QUESTION)) == "new"
    again.index.close()
    opened = framework.package.TreeRetriever.from_index(url)
    assert len(opened.index) == 48
    opened.index.close()
    assert main(["search", url, "red owl", "-k", "1"]) == 0
    assert "new" in capsys.readouterr().out
