"""The benchmark of fields: its arithmetic, and that a broken-off run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from charm import FIELDS, METHODS, Bench, bm25_rows, diversity, fields_of, p_value
from fields import main
from recording import read
from support.beir import write_beir
from support.shop import shop
from support.tiny import learner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shop, with a judged question for each product."""
    corpus = (
        {"_id": d.id, "title": d.fields.get("title", ""), "text": d.text, "brand": d.metadata["brand"], "name": d.id}
        | {"attributes": {"number": float(d.id)}}
        for d in shop()
    )
    asked = (f"{d.metadata['brand']} {d.id}" for d in shop())
    return write_beir(tmp_path_factory.mktemp("data") / "chorus_icecat", corpus, asked)


def test_a_broken_off_run_goes_on(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    out, untuned = tmp_path / "fields.md", "untuned encoder, all fields joined"

    def run(*methods: str) -> list[tuple[str, str]]:
        how = ["--steps", "1", "--batch", "8", "--encoder", learner().name, "--out", str(out)]
        main([str(folder), *how, "--methods", *methods])
        return [(line["method"], mode) for line in read(out.with_suffix(".jsonl")) for mode in line["rows"]]

    words = [(name, "words") for name in ("BM25", "BM25, title and text", "BM25, fields weighted")]
    first = run(untuned)
    assert first == [*words, (untuned, "aggregate"), (untuned, "aggregate, words")]
    second = run(untuned, "CHARM", "MVR")
    assert second[:5] == first
    assert [name for name, _ in second[5:]] == ["MVR", *["CHARM"] * 5]
    text = out.read_text()
    assert "| two stages |" in text
    assert "\n| CHARM |" in text
    assert "kept of the ten that `best` finds" in text
    assert run("CHARM") == second
    crossed = run("untuned encoder, all*", "--folds", "3")
    assert len(crossed) == len(second) + 3 * 5
    assert "3-fold cross validation" in out.read_text()


def test_folds_and_cuts_hold_what_is_judged(folder: Path) -> None:
    bench = Bench.load(str(folder), 0)
    texts, judgements = bench.asked("test")
    assert len(texts) == 20
    assert (judgements.relevant == 1).all()
    assert len(replace(bench, queries=5).asked("test")[0]) == 5
    folds = [bench.folded(3, fold).data.qrels for fold in range(3)]
    assert sorted(query for fold in folds for query in fold["test"]) == sorted(bench.data.queries)
    assert all(len(f["train"]) == len(f["dev"]) == 20 and not {*f["train"]} & {*f["test"]} for f in folds)
    few = replace(bench, name="medquad").cut(45).data
    assert len(few.corpus) == 45
    assert len(few.qrels["dev"]) == len(few.qrels["test"]) == 20
    assert len(few.qrels["train"]) == 5


def test_words_find_what_they_name(folder: Path) -> None:
    pytest.importorskip("bm25s")
    scores = {name: np.mean(rows) for name, rows in bm25_rows(Bench.load(str(folder), 0)).items()}
    assert scores["BM25, fields weighted"] >= scores["BM25"] - 0.05
    assert scores["BM25"] > 0.5


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
