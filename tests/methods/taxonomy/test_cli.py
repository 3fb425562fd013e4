"""A taxonomy from the shell: paths and edges in files, trained or constructed, indexed and searched."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from palmette.cli import main
from palmette.methods import load_model
from support.tiny import learner

PATHS = [f"animal > {kind} > {kind} {n}" for kind in ("cat", "dog", "owl") for n in range(4)]


def found(place: str, query: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    order = ["--order", "specific", "--lexical", "0"]
    assert main(["search", place, query, "-k", "3", "--json", *order]) == 0
    return [hit["text"] for hit in json.loads(capsys.readouterr().out)]


def test_paths_are_constructed_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "paths.txt").write_text("\n".join(PATHS))
    ckpt, place = str(tmp_path / "ckpt"), str(tmp_path / "index")
    train = ["train", "taxonomy", str(tmp_path / "paths.txt"), "--out", ckpt, "--construct"]
    assert main([*train, "--dimension", "128"]) == 0
    nodes = str(tmp_path / "ckpt.nodes.jsonl")
    assert nodes in capsys.readouterr().out, "the next command names the documents"
    assert main(["index", ckpt, nodes, "--out", place, "--quiet"]) == 0
    assert found(place, "owl 3", capsys) == ["owl 3", "owl", "animal"]
    assert main([*train, "--steps", "3"]) == 1
    assert "takes no --steps" in capsys.readouterr().err


def test_edges_lie_in_a_file(tmp_path: Path) -> None:
    steps = [path.split(" > ") for path in PATHS]
    terms = [json.dumps({"id": id, "text": id}) for id in sorted({id for path in steps for id in path})]
    (tmp_path / "terms.jsonl").write_text("\n".join(terms))
    edges = {f"{child}\t{parent}" for path in steps for parent, child in pairwise(path)}
    (tmp_path / "edges.tsv").write_text("\n".join(sorted(edges)))
    train = ["train", "taxonomy", str(tmp_path / "terms.jsonl"), "--edges", str(tmp_path / "edges.tsv")]
    options = ["--encoder", learner().name, "--steps", "2", "--batch-size", "4", "--device", "cpu", "--quiet"]
    assert main([*train, "--out", str(tmp_path / "ckpt"), *options]) == 0
    hierarchy = load_model(tmp_path / "ckpt").nodes.hierarchy
    above = [hierarchy.ids[row] for row in hierarchy.ancestors(hierarchy.row("owl 3"))]
    assert above == ["owl 3", "owl", "animal"]
