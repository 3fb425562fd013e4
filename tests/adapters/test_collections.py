"""A Qdrant collection's URL in the place of a folder, in both frameworks and the shell."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from palmette import Index
from palmette.cli import main
from palmette.errors import StoreError
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


@pytest.mark.parametrize("url", ["qdrants://host:6333/docs?api_key=SECRET", "qdrants://user:SECRET@host:6333/docs"])
def test_a_key_in_a_url_is_refused_before_anything_keeps_it(
    framework: Any, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = list[str]()
    makers = [
        lambda: framework.build("TreeRetriever", tiny.documents(), tiny.tree(), index_path=url),
        lambda: framework.package.TreeRetriever.from_index(url),
        lambda: Index.open(url),
        lambda: Index.create(url, tiny.tree()),
    ]
    if "index_path" in getattr(framework.package.TreeRetriever, "model_fields", ()):  # opened on first use
        makers.append(lambda: framework.package.TreeRetriever(index_path=url))
    for make in makers:
        with pytest.raises(StoreError, match="QDRANT_API_KEY") as raised:
            make()
        told.append(f"{raised.value!r}")
    tiny.tree().save_pretrained(tmp_path / "ckpt")
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "b"}')
    assert main(["index", str(tmp_path / "ckpt"), str(tmp_path / "docs.jsonl"), "--out", url]) != 0
    printed = capsys.readouterr()
    assert "SECRET" not in f"{told} {printed.out} {printed.err}"
