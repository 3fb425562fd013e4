"""What a reader makes of what a model finds, measured."""

from __future__ import annotations

import json

import pytest

from palmette import FakeEncoder, Index, TreeModel, evaluate
from palmette.cli import main
from palmette.data.metrics import exact_match, f1, holds_answer
from palmette.reader import load_reading
from support import readers


@pytest.fixture(scope="module")
def reader():
    return readers.sentence_reader()


@pytest.fixture(scope="module")
def asked():
    """Every other question has its whole sentence as answer, the others a wrong number; one has none."""
    records = readers.records("test")
    for place, record in enumerate(records):
        if place % 2:
            record["answers"] = [record["context"]]
    records[4]["answers"] = []
    return records


@pytest.fixture(scope="module")
def model(asked):
    texts = [record["context"] for record in asked]
    return TreeModel.fit(texts, encoder=FakeEncoder(64), depth=4, steps=0, progress=False)


def test_every_figure_is_what_searching_and_reading_give(reader, model, asked):
    row = evaluate(model, asked, reader=reader, passages=3, progress=False).rows[0]
    index = Index.build(load_reading(asked).passages, model)
    questions = [record["question"] for record in asked]
    found = index.search(questions, 10, lexical=0, sentences=False)
    given = [[hit.document for hit in hits[:3]] for hits in found]
    answers = [answer.text for answer in reader.answer(questions, given)]
    accepted = [record["answers"] for record in asked]
    pairs = list(zip(answers, accepted, strict=True))
    assert row.metrics["em"] == pytest.approx(sum(exact_match(*pair) for pair in pairs) / 48)
    assert row.metrics["f1"] == pytest.approx(sum(f1(*pair) for pair in pairs) / 48)
    assert row.metrics["silent"] == pytest.approx(sum(not text for text in answers) / 48)
    holding = [
        any(holds_answer(hit.document.text, some) for hit in hits)
        for hits, some in zip(found, accepted, strict=True)
        if some
    ]
    assert len(holding) == 47, "a question without an answer is none that documents could hold"
    assert row.metrics["accuracy@10"] == pytest.approx(sum(holding) / 47)
    assert 0 < row.metrics["em"] < row.metrics["f1"], "answers are sentences, so half of them can be exact"
    more = evaluate(model, asked, reader=reader, passages=1, progress=False).rows[0]
    assert more.metrics["accuracy@10"] == row.metrics["accuracy@10"]
    assert more.metrics["em"] != row.metrics["em"], "the reader saw other passages"


def test_baselines_are_read_too_and_the_table_shows_it(reader, model, asked, tmp_path, capsys):
    model.save_pretrained(tmp_path / "ckpt")
    reader.save_pretrained(tmp_path / "reader")
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(record) + "\n" for record in asked))
    words = ["evaluate", str(tmp_path / "ckpt"), str(tmp_path / "asked.jsonl"), "--quiet", "--baselines"]
    words += ["--reader", str(tmp_path / "reader"), "--passages", "3"]
    assert main(words) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split()[5:9] == ["accuracy@10", "em", "f1", "silent"]
    assert [row.split()[0] for row in rows] == ["tree", "tree", "untrained", "encoder", "BM25"]
    assert main([*words, "--json"]) == 0
    tree, *_, words_alone = json.loads(capsys.readouterr().out)["rows"]
    assert words_alone["metrics"]["accuracy@1"] > 0.9, "colour and animal are words of the question"
    assert words_alone["metrics"]["accuracy@1"] > tree["metrics"]["accuracy@1"], "each reads its own documents"
