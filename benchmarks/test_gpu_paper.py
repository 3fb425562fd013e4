"""The script for a GPU, run on the CPU: two steps of every method at its paper's settings, over tiny data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gpu_paper
from palmette.methods import names
from recording import read
from support import tiny
from support.beir import write_beir
from support.tiny_encoder import save_tiny_encoder


@pytest.mark.filterwarnings("ignore:no fields were given")
def test_every_method_is_trained_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = ({"_id": d.key, "text": d.text, "title": d.fields["name"]} for d in tiny.with_fields()[:18])
    folder = write_beir(tmp_path / "data" / "animals", corpus, (question for question, _ in tiny.pairs()[:18]))
    encoder = save_tiny_encoder(tmp_path / "encoder", words=(*tiny.COLOURS, *tiny.ANIMALS), width=32)
    given = ["--work", tmp_path / "work", "--encoder", encoder, "--steps", 2, "--device", "cpu"]
    monkeypatch.setenv("PALMETTE_DATA", str(folder.parent))
    monkeypatch.setattr(sys, "argv", ["gpu_paper.py", *map(str, given)])
    gpu_paper.main()
    lines = read(tmp_path / "work" / "results.jsonl")
    assert [line["method"].removesuffix(", defaults") for line in lines] == names()
    for line in lines:
        assert line["recall@100"] == 1.0, line  # of 18 documents; the weights are random
        assert line["exact, ms"] > 0
    page = (tmp_path / "work" / "results.md").read_text()
    assert all(f"| animals | {line['method']} |" in page for line in lines)
