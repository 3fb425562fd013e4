"""The quality benchmark: its arithmetic, and that a broken-off run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quality import main
from rivals.adapter import first_weight
from rivals.bench import Bench, unit
from rivals.report import cell

from support.tiny import documents

DEPTH = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 documents; a question about each, dealt to the splits."""
    path = tmp_path_factory.mktemp("data") / "animals"
    (path / "qrels").mkdir(parents=True)
    corpus = [{"_id": d.id, "text": d.text} for d in documents()]
    asked = [
        {"_id": f"q{n}", "text": f"where is the {d.id.replace('-', ' ')}?"} for n, d in enumerate(documents())
    ]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place, split in enumerate(("train", "dev", "test")):
        lines = [f"q{n}\t{d.id}\t1" for n, d in enumerate(documents()) if n % 3 == place]
        (path / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))
    return path


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.load(folder, "fake:32", tmp_path_factory.mktemp("cache"), steps=2, depth=DEPTH)


def run(folder: Path, out: Path, *systems: str, seeds: str = "0") -> list[tuple[str, int]]:
    """Run the benchmark; (system, seed) of every stored line."""
    how = f"--steps 2 --depth {DEPTH} --encoder fake:32 --cache {out.parent / 'cache'} --out {out} --seeds {seeds}"
    main([str(folder), *how.split(), "--systems", *systems])
    lines = out.with_suffix(".jsonl").read_text().splitlines()
    return [(line["system"], line["seed"]) for line in map(json.loads, lines)]


def test_every_family_is_measured_and_only_what_is_missing(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    out, names = tmp_path / "quality.md", ("BM25", "encoder", "linear adapter", "Matryoshka adapter", "tree")
    first = run(folder, out, "BM25", "encoder*", *names[2:])
    assert len(first) == 6
    assert run(folder, out, "encoder*", "tree") == first
    assert run(folder, out, "tree", seeds="0 1") == [*first, ("tree", 1)]
    out.write_text("Read this first.\n" + out.read_text())
    run(folder, out, "tree")
    table = out.read_text()
    assert table.startswith("Read this first.\n")
    assert table.count("### animals") == 1
    assert all(f"\n| {row} |" in table for row in names)
    assert " ± " in next(line for line in table.splitlines() if line.startswith("| tree |"))


def test_unknown_systems_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no system 'bush'"):
        run(folder, tmp_path / "q.md", "bush")


@pytest.mark.parametrize("start", ["identity", "principal"])
def test_such_a_start_keeps_every_cosine(bench: Bench, start: str) -> None:
    x = bench.documents
    for width in (32, 64):
        y = x @ first_weight(bench, start, width, 0).numpy().T
        np.testing.assert_allclose(unit(y) @ unit(y).T, unit(x) @ unit(x).T, atol=1e-5)


def test_cells_show_the_spread_of_several_seeds() -> None:
    assert cell([0.7314]) == ".731"
    assert cell([0.70, 0.72], spread=True) == ".710 ± .010"
    assert cell([0.70, 0.72]) == ".710"
    assert cell([]) == ""
