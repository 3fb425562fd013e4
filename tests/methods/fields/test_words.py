"""What a query's words add where the encoder stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from palmette import load_data
from palmette.methods.fields import FieldsConfig, FieldsModel
from palmette.methods.fields.queries import MADE, WORDS, with_field_queries
from palmette.methods.fields.reading import Reader, as_items
from palmette.methods.fields.wording import WordsTask
from palmette.methods.fields.words import QueryWords
from support.shop import FIELDS, questions, shop, train
from support.tiny import learner


def test_each_token_adds_its_row_and_others_add_nothing() -> None:
    words = QueryWords(vocabulary=10, count=2, width=3)
    words.hold(np.array([4, 7]))
    with torch.no_grad():
        words.table[:2] = torch.tensor([[1.0, 0, 0], [0, 2.0, 0]])
    found = words([[4, 7, 4], [1, 7], [3], []])
    assert found.tolist() == [[2, 2, 0], [0, 2, 0], [0, 0, 0], [0, 0, 0]]


def test_a_step_moves_the_rows_of_its_tokens_alone() -> None:
    words = QueryWords(10, 3, 2)
    words.hold(np.array([1, 2, 3]))
    words([[1, 3, 9]]).sum().backward()
    gradient = words.table.grad
    assert gradient.is_sparse
    assert gradient.to_dense()[:, 0].tolist() == [1, 0, 1, 0], "a token that has no vector learns none"


def test_nothing_is_added_before_anything_is_learned() -> None:
    own, without = (train(trained_layers=0, steps=0, query_words=way) for way in ("always", "never"))
    assert own.module.words is not None
    assert without.module.words is None
    texts = ["golden house 5", "unheard of"]
    np.testing.assert_allclose(
        own.vectors(texts, kind="query"), without.vectors(texts, kind="query"), atol=1e-6
    )
    assert train(trained_layers=0, steps=0).module.words is None, "somebody judged"
    learns = train(trained_layers=1, steps=0, query_words="always")
    assert learns.module.words is None, "an encoder that learns needs no table"


def test_what_words_learned_is_in_the_checkpoint(tmp_path: Path) -> None:
    made = train(trained_layers=0, steps=10, learning_rate=1e-3, query_words="always")
    table = made.module.words.table
    assert float(table[:-1].abs().max()) > 0
    assert float(table[-1].abs().max()) == 0
    known, unknown = made.vectors(["golden house 5"], kind="query"), made.vectors(["zebra"], kind="query")
    made.save_pretrained(tmp_path / "m")
    loaded = FieldsModel.from_pretrained(tmp_path / "m", encoder=made.encoder)
    np.testing.assert_allclose(loaded.vectors(["golden house 5"], kind="query"), known, atol=1e-6)
    assert abs(np.linalg.norm(known) - 1) < 1e-5
    with torch.no_grad():
        made.module.words.table.zero_()
    assert np.abs(made.vectors(["golden house 5"], kind="query") - known).max() > 1e-4
    np.testing.assert_allclose(made.vectors(["zebra"], kind="query"), unknown, atol=1e-3)


def test_the_last_stage_teaches_every_word_and_nothing_else() -> None:
    data = with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0)
    assert data.qrels[WORDS].keys().isdisjoint({*data.qrels["train"], *data.qrels["dev"]})
    config = FieldsConfig(fields=as_items(FIELDS), trained_layers=0, word_steps=40)
    _, task = FieldsModel.task(config, data, learner(), None, seed=0, progress=False)
    assert len(np.unique(task.query_rows)) == len(data.qrels["train"]), "single words wait for the last stage"
    stage = WordsTask.of(task, task.teacher, task.module.words)
    assert stage.size() == len(data.queries)
    before = {name: value.clone() for name, value in task.module.state_dict().items()}
    rows = np.arange(stage.size())

    def loss() -> float:
        with torch.no_grad():
            return float(stage.loss(stage.module, rows, torch.Generator().manual_seed(0), 0.0))

    first = loss()
    how = FieldsModel.training_class(steps=0, batch_size=32, learning_rate=1e-3)
    FieldsModel.run(task, how, progress=False)
    assert loss() == first, "no training, no stage after it"
    FieldsModel.run(task, how.replace(steps=1, learning_rate=1e-4), progress=False)
    assert loss() < first
    moved = {name for name, value in task.module.state_dict().items() if not torch.equal(value, before[name])}
    assert "words.table" in moved
    assert not any(name.startswith("backbone") for name in moved)


def test_judged_queries_that_are_held_out_teach_nothing() -> None:
    shown = load_data(questions())
    hidden = {"a": "zebra crossing", "b": "golden yak"}
    data = replace(
        shown,
        queries={**shown.queries, **hidden},
        qrels={**shown.qrels, "test": {"a": {"3": 1}, "b": {"5": 1}}},
    )
    made = with_field_queries(data, Reader.of(as_items(FIELDS)), 0)
    config = FieldsConfig(fields=as_items(FIELDS), trained_layers=0, targets="words")
    _, task = FieldsModel.task(config, made, learner(), None, seed=0, progress=False)
    names = list(made.queries)
    trained = {names[row] for row in task.query_rows.tolist()}
    assert trained == {*made.qrels["train"], *made.qrels[MADE]}
    assert {names[row] for row in task.heard.tolist()} == trained | set(made.qrels[WORDS])
    stage = WordsTask.of(task, task.teacher, task.module.words)
    assert stage.size() == len(task.heard)
    heard = {token for row in task.heard.tolist() for token in task.queries[row]}
    known = task.module.words.rows.numpy() < task.module.config.words
    assert set(np.flatnonzero(known)) == heard
    assert set(task.queries[names.index("a")]) - heard, "a word of a held-out query alone has no vector"


def test_what_judges_found_leads_what_the_teacher_would_rank_first() -> None:
    made = with_field_queries(load_data(questions()), Reader.of(as_items(FIELDS)), 0)
    config = FieldsConfig(fields=as_items(FIELDS), trained_layers=0, targets="words")
    _, task = FieldsModel.task(config, made, learner(), None, seed=0, progress=False)
    pairs = made.pairs("train")
    documents, scores = task.teacher.lesson(pairs.queries, np.random.default_rng(0))
    at = np.searchsorted(documents, pairs.documents)
    assert (documents[at] == pairs.documents).all()
    assert (scores[np.arange(len(at)), at] >= scores.max(1)).all()
    others = np.array([made.query_rows[name] for name in made.qrels[MADE]])
    plain = task.teacher.queries[others] @ task.teacher.vectors.T
    assert (task.teacher.scores(others) <= plain + 0.3 + 1e-5).all(), "nobody judged these"


def test_words_teach_beside_few_judgements() -> None:
    judged = load_data(questions())
    few = replace(judged, qrels={**judged.qrels, "train": dict(list(judged.qrels["train"].items())[:4])})
    made = train(data=few, trained_layers=0, targets="words", word_steps=10)
    own = train(data=few, trained_layers=0, targets="answers", query_words="always")
    assert made.config.words > 2 * own.config.words, "every word of the shop was asked for"
    assert made.record.labelled
    assert train(data=few, trained_layers=0, targets="answers").config.words == 0
