"""The script for a GPU, run on the CPU: two steps of every method at its paper's settings, over tiny data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu import paper
from palmette.methods import names
from support import tiny
from support.tiny_encoder import save_tiny_encoder


def write_beir(folder: Path) -> None:
    """Documents with fields, and a question for each; every fourth tests."""
    rows = [{"_id": d.key, "text": d.text, "title": d.fields["name"]} for d in tiny.with_fields()]
    asked = [
        {"_id": f"q{n}", "text": question, "answer": row["_id"]}
        for n, ((question, _), row) in enumerate(zip(tiny.pairs(), rows, strict=True))
    ]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for split, chosen in (("test", asked[::4]), ("dev", asked[1::4]), ("train", asked[2::4] + asked[3::4])):
        judged = "".join(f"{one['_id']}\t{one['answer']}\t1\n" for one in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")


@pytest.mark.filterwarnings("ignore:no fields were given")
def test_every_method_is_trained_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_beir(tmp_path / "animals")
    encoder = save_tiny_encoder(tmp_path / "encoder", words=(*tiny.COLOURS, *tiny.ANIMALS), width=32)
    given = [tmp_path / "animals", "--work", tmp_path / "work", "--encoder", encoder, "--steps", 2, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["paper.py", *map(str, given)])
    paper.main()
    lines = [json.loads(line) for line in (tmp_path / "work" / "results.jsonl").read_text().splitlines()]
    assert [line["method"].removesuffix(", defaults") for line in lines] == names()
    for line in lines:
        assert line["recall@100"] == 1.0, line  # of 48 documents; the weights are random
        assert line["exact, ms"] > 0
    page = (tmp_path / "work" / "results.md").read_text()
    assert all(f"| animals | {line['method']} |" in page for line in lines)
