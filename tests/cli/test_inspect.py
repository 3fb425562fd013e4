"""``palmette inspect --html``, as a user runs it."""

import json
from pathlib import Path

import pytest

from palmette import Index
from palmette.cli import main
from support.tiny import documents, tree


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and an index."""
    folder = tmp_path_factory.mktemp("inspect")
    tree().save_pretrained(folder / "ckpt")
    Index.build(documents(), tree(), folder / "index").close()
    return folder


def test_a_page_with_its_queries(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", str(place / "index"), "--html", str(tmp_path / "tree.html")]
    assert main([*words, "--query", "red owl", "--query", "golden bee"]) == 0
    assert "48 documents on 32 leaves" in capsys.readouterr().out
    page = (tmp_path / "tree.html").read_text("utf-8")
    assert page.count('"query":') == 2
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["html"] == str(tmp_path / "tree.html")
    assert facts["index"]["documents"] == 48


def test_what_cannot_be_drawn(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(place / "ckpt"), "--html", str(tmp_path / "tree.html")]) == 1
    assert "`palmette index`" in capsys.readouterr().err
    assert main(["inspect", str(place / "index"), "--html", str(tmp_path / "no" / "tree.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
