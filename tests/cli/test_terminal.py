"""What strangers write reaches a terminal as text: ids, words and names of files, in output, errors and logs."""

import json
import logging
import os
from pathlib import Path

import pytest

from palmette import Document, Index
from palmette.cli import main
from palmette.cli.serve import _Lines
from support.tiny import space

HOSTILE = "owl\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\u2066"
OBEYED = [sign for sign in HOSTILE if not sign.isalnum() and sign not in "[];"]


def is_plain(text: str) -> bool:
    text.encode()
    return not any(sign in text for sign in OBEYED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    documents = [Document(f"d{HOSTILE}", f"Where does the {HOSTILE} live?", {"title": HOSTILE}), Document("e", "owl")]
    Index.build(documents, space(), tmp_path / "index").close()
    return tmp_path / "index"


@pytest.mark.parametrize(
    "words", [["search", "--explain"], ["search", "--json"], ["context"], ["answer", "--explain"], ["answer", "--json"]]
)
def test_texts_and_ids_are_shown_as_text(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([words[0], str(path), "where does the owl live?", *words[1:]]) == 0
    shown = capsys.readouterr().out
    assert is_plain(shown)
    assert "\\u001b]0;owned" in shown
    if "--json" in words:
        assert HOSTILE in repr(json.loads(shown)).encode().decode("unicode_escape")


def test_names_of_files_are_shown_as_text(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / f"{HOSTILE}.md").write_bytes(b"")
    (folder / "line\n2026 ERROR.md").write_text("Owls hunt at night.")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")).write_text("Owls.")
    assert main(["index", str(folder), "--out", str(path)]) == 0
    shown = capsys.readouterr()
    assert is_plain(shown.out)
    assert "\\u001b]0;owned" in shown.out
    assert "\\udcff.md" in shown.out
    assert main(["search", str(tmp_path / HOSTILE), "owl"]) == 1
    assert is_plain(capsys.readouterr().err)


def test_a_log_line_is_one_entry() -> None:
    record = logging.LogRecord("palmette", logging.INFO, "", 1, "skipped %s", (f"a\n2026 ERROR {HOSTILE}",), None)
    line = _Lines("%(levelname)s %(message)s").format(record)
    assert is_plain(line)
    assert line.splitlines()[1].startswith("  2026 ERROR")
