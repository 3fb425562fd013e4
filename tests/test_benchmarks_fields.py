"""The benchmark of fields: its arithmetic, and that a broken-off run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from charm.bench import FIELDS, Bench, bm25_rows
from charm.methods import METHODS, diversity, fields_of
from charm.report import p_value
from fields import main

from support.shop import shop
from support.tiny import learner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shop, with a judged question for each product, dealt to the splits."""
    path = tmp_path_factory.mktemp("data") / "chorus_icecat"
    (path / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": d.id, "title": d.fields.get("title", ""), "text": d.text, "brand": d.metadata["brand"], "name": d.id}
        | {"attributes": {"number": float(d.id)}}
        for d in shop()
    ]
    asked = [{"_id": f"q{d.id}", "text": f"{d.metadata['brand']} {d.id}"} for d in shop()]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place, split in enumerate(("train", "dev", "test")):
        lines = [f"q{n}\t{n}\t1" for n in range(60) if n % 3 == place]
        (path / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))
    return path


def test_a_broken_off_run_goes_on(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    out = tmp_path / "fields.md"

    def run(*methods: str) -> list[tuple[str, str]]:
        how = ["--steps", "1", "--batch", "8", "--pool", "40", "--encoder", learner().name, "--out", str(out)]
        main([str(folder), *how, "--device", "cpu", "--methods", *methods])
        lines = (json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines())
        return [(line["method"], mode) for line in lines for mode in line["rows"]]

    first = run("untuned encoder, all fields joined")
    assert first == [
        ("BM25", "words"),
        ("BM25, title and text", "words"),
        ("BM25, fields weighted", "words"),
        ("untuned encoder, all fields joined", "aggregate"),
        ("untuned encoder, all fields joined", "aggregate and words"),
    ]
    second = run("untuned encoder, all fields joined", "CHARM", "MVR")
    assert second[:5] == first
    assert len(second) == 12
    text = out.read_text()
    assert "| two stages |" in text
    assert "\n| CHARM |" in text
    assert "kept of the ten that `best` finds" in text
    assert run("CHARM") == second
    crossed = run("untuned encoder, all*", "--folds", "3")
    assert len(crossed) == len(second) + 3 * 5
    assert "3-fold cross validation" in out.read_text()


def test_the_pool_holds_all_that_is_judged(folder: Path) -> None:
    bench = Bench.load(str(folder), 30, 0)
    texts, documents, judgements = bench.ranked("test")
    assert (len(texts), len(documents)) == (20, 30)
    assert (judgements.relevant == 1).all()
    assert len(Bench.load(str(folder), 0, 5).ranked("test")[1]) == 60
    assert len(Bench.load(str(folder), 0, 5).ranked("test")[0]) == 5
    folds = [Bench.load(str(folder), 0, 0).folded(3, fold).data.qrels for fold in range(3)]
    assert sorted(query for fold in folds for query in fold["test"]) == sorted(bench.data.queries)
    assert all(len(f["train"]) == len(f["dev"]) == 20 and not {*f["train"]} & {*f["test"]} for f in folds)


def test_words_find_what_they_name(folder: Path) -> None:
    pytest.importorskip("bm25s")
    rows = bm25_rows(Bench.load(str(folder), 0, 0), "test")
    assert rows["BM25, fields weighted"].scores["ndcg@10"] >= rows["BM25"].scores["ndcg@10"] - 0.05
    assert rows["BM25"].scores["ndcg@10"] > 0.5


def test_a_permutation_test_knows_chance_from_a_difference() -> None:
    draw = np.random.default_rng(0)
    one = draw.random(50)
    assert p_value(one, one + draw.normal(0, 0.1, 50) * 0) == 1
    assert p_value(one + 0.2 + draw.normal(0, 0.1, 50), one) < 0.001
    assert p_value(one + draw.normal(0, 0.1, 50), one) > 0.02


def test_methods_read_fields_their_own_way() -> None:
    fields = FIELDS["chorus_icecat"]
    assert fields_of(METHODS["title only"], fields) == {"title": "title"}
    assert fields_of(METHODS["all fields joined"], fields) == {"all": "brand+name+title+text+attributes"}
    assert list(fields_of(METHODS["fields from long to short"], fields)) == list(fields)[::-1]
    assert "question" not in "".join(FIELDS["medquad"].values())


def test_diversity_is_zero_where_one_field_says_it_all() -> None:
    logits = torch.stack([torch.full((2, 2), 50.0), torch.full((2, 2), -50.0)])
    assert float(diversity(logits, torch.tensor([0, 1]))) == pytest.approx(0, abs=1e-6)
    assert float(diversity(torch.zeros(4, 2, 2), torch.tensor([0, 1]))) == pytest.approx(np.log(4), abs=1e-6)
