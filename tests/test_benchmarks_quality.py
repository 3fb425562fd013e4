"""The quality benchmark: its arithmetic, and that a broken-off run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quality import main
from rivals.adapter import first_weight, sizes_of
from rivals.bench import Bench, best, fold, overlaps, unit
from rivals.clusters import fit_clusters
from rivals.report import cell
from rivals.trees import missing

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


def run(folder: Path, out: Path, *systems: str, seeds: int = 1) -> list[tuple[str, int]]:
    """Run the benchmark; (system, seed) of every stored line."""
    how = [
        "--steps",
        "2",
        "--depth",
        str(DEPTH),
        "--encoder",
        "fake:32",
        "--cache",
        str(out.parent / "cache"),
    ]
    main(
        [
            str(folder),
            "--out",
            str(out),
            "--plot",
            "--seeds",
            *map(str, range(seeds)),
            *how,
            "--systems",
            *systems,
        ]
    )
    lines = out.with_suffix(".jsonl").read_text().splitlines()
    return [(line["system"], line["seed"]) for line in map(json.loads, lines)]


def test_every_family_is_measured_and_only_what_is_missing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bm25s")
    out = tmp_path / "quality.md"
    first = run(
        folder, out, "BM25", "encoder*", "linear adapter", "tree", "GMM, leaf probabilities", "k-means*"
    )
    assert len(first) == 8
    assert run(folder, out, "encoder*", "tree") == first
    assert run(folder, out, "tree", seeds=2) == [*first, ("tree", 1)]
    out.write_text("Read this first.\n" + out.read_text())
    run(folder, out, "tree")
    table = out.read_text()
    assert table.startswith("Read this first.\n")
    assert table.count("### animals") == 1
    for row in (
        "BM25",
        "encoder",
        "tree",
        "k-means, greedy leaf",
        "k-means, best leaf",
        "linear adapter",
        "GMM, leaf probabilities",
    ):
        assert f"\n| {row} |" in table
    assert " ± " in next(line for line in table.splitlines() if line.startswith("| tree |"))
    assert out.with_suffix(".svg").read_text().count("<polyline") >= 4
    capsys.readouterr()


def test_unknown_systems_and_options_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no system 'bush'"):
        run(folder, tmp_path / "q.md", "bush")
    assert "wings" in (missing({"wings": 2}, DEPTH) or "")
    assert "sideways" in (missing({"schedule": "sideways"}, DEPTH) or "")
    assert missing({"labels": False, "steps": 0}, DEPTH) is None


@pytest.mark.parametrize("start", ["identity", "principal"])
def test_such_a_start_keeps_every_cosine(bench: Bench, start: str) -> None:
    x = bench.documents
    for width in (32, 64):
        y = x @ first_weight(bench, start, width, 0).numpy().T
        np.testing.assert_allclose(unit(y) @ unit(y).T, unit(x) @ unit(x).T, atol=1e-5)


def test_sizes_are_nested() -> None:
    assert sizes_of("plain", 384) == (384,)
    assert sizes_of("nested", 24) == (2, 4, 8, 16, 24)
    assert sizes_of("wide", 384)[-4:] == (256, 384, 512, 1024)


def test_overlap_is_the_sum_of_the_smaller_shares() -> None:
    draw = np.random.default_rng(0).dirichlet(np.ones(16), 70).astype(np.float32)
    expected = np.minimum(draw[:7, None], draw[None]).sum(-1)
    np.testing.assert_allclose(overlaps(draw[:7], draw), expected, atol=1e-6)
    coarse = fold(draw, 4)
    np.testing.assert_allclose(coarse[:, 1], draw[:, 4:8].sum(1), atol=1e-6)


def test_best_takes_the_lower_row_first_among_equals() -> None:
    scores = np.array([[1, 5, 5, 0, 7], [2, 2, 2, 2, 2]], np.float32)
    assert best(scores, 3).tolist() == [[4, 1, 2], [0, 1, 2]]
    assert best(scores, 9)[0].tolist() == [4, 1, 2, 0, 3]


@pytest.mark.parametrize("kind", ["k-means", "GMM"])
def test_clusters_halve_the_documents_from_the_top_down(kind: str) -> None:
    draw = np.random.default_rng(0)
    centres = unit(draw.normal(size=(4, 16)).astype(np.float32))
    x = unit(np.repeat(centres, 25, axis=0) + 0.02 * draw.normal(size=(100, 16)).astype(np.float32))
    clusters = fit_clusters(x, DEPTH, kind, 0, 8)
    leaf_of = clusters.greedy(x)  # [n, depth]
    assert (leaf_of[:, 1:] // 2 == leaf_of[:, :-1]).all(), "a document stays under its node"
    groups = [set(leaf_of[start : start + 25, 1].tolist()) for start in range(0, 100, 25)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 4, "four groups, four nodes at level 2"
    levels = list(clusters.paths(x))
    assert (levels[1].argmax(1) == leaf_of[:, 1]).all(), "well apart, both ways of searching agree"
    if kind == "GMM":
        for level in levels:
            np.testing.assert_allclose(np.exp(level).sum(1), 1, atol=1e-4)


def test_cells_show_the_spread_of_several_seeds() -> None:
    assert cell([0.7314]) == ".731"
    assert cell([0.70, 0.72], spread=True) == ".710 ± .010"
    assert cell([0.70, 0.72]) == ".710"
    assert cell([]) == ""
