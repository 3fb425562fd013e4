"""A Qdrant collection's URL in the place of a folder, in both frameworks and the shell."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter

from llama_index.retrievers.palmette import TreeRetriever
from palmette.cli import main
from support import tiny
from support.frameworks import Given

pytest.importorskip("qdrant_client")
QUESTION = "where does the red owl live?"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"qdrant+local://{tmp_path}/docs"


def test_a_retriever_of_a_collection(
    framework: Any, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), index_path=url)
    first = framework.ask(made, QUESTION)
    local = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), index_path=tmp_path / "folder")
    assert [(hit.id, hit.score) for hit in first] == [
        (hit.id, hit.score) for hit in framework.ask(local, QUESTION)
    ]
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


def test_documents_that_are_split_again_replace_their_pieces(url: str) -> None:
    for text in ("The red owl lives here. It sings.", "The red owl lives here. It sleeps."):
        document = Document(text=text, id_="owl")
        how = {"transformations": [SentenceSplitter()], "index_path": url}
        retriever = TreeRetriever.from_documents([document], tiny.tree(), **how)
        assert [one.text for one in retriever.index.documents()] == [text]
        retriever.index.close()
