"""The method from the command line: lists of layers, and who found a hit."""

import json
from pathlib import Path

import pytest

from palmette.cli import main
from support.tiny import documents


def test_train_index_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [{"id": d.id, "text": d.text + " It eats figs and fish in the morning."} for d in documents()]
    docs, model, index = (tmp_path / name for name in ("docs.jsonl", "ckpt", "index"))
    docs.write_text("\n".join(map(json.dumps, given)))
    train = ["train", "layers", str(docs), "--out", str(model), "--encoder", "fake:32:4", "--layers", "1,2,4"]
    assert main([*train, "--steps", "2", "--quiet"]) == 0
    assert main(["index", str(model), str(docs), "--out", str(index), "--quiet"]) == 0
    capsys.readouterr()
    search = ["search", str(index), "where is the red owl?", "-k", "4", "--order", "layer", "--lexical", "0"]
    assert main([*search, "--layers", "[1, 4]", "--explain", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert [hit["explanation"]["detail"]["found_by"] for hit in hits] == [1, 1, 4, 4]
    assert main(["inspect", str(model), "--json"]) == 0
    structure = json.loads(capsys.readouterr().out)["model"]["structure"]
    assert list(structure["layers"]) == ["1", "2", "4"]
    assert main([*train[:-1], "1,7", "--quiet"]) != 0
    assert "layer 7" in capsys.readouterr().err
