"""PathsModel end to end: budgets, filters, adds, explanations, checkpoints, load of the leaves."""

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, PathsModel, load_data, load_model
from palmette.encoder import Backbone, EncodingCache
from palmette.errors import CheckpointError, ConfigError
from palmette.methods.base import FitInputs
from palmette.methods.paths.config import PathsConfig, PathsSearch
from palmette.methods.paths.explain import IndexReport
from palmette.training.config import TrainingConfig
from palmette.training.loop import train
from support.alone import Index
from support.tiny import documents, learner, pairs, paths, train_paths

QUERY = "where does the red owl live?"


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(documents(), paths())


def within(index: Index, beam: int) -> int:
    """How many documents lie in the query's likeliest leaves."""
    model = index.model
    asked = model.encode_queries([QUERY], PathsSearch())["vector"]
    order = model.router.leaves_in_order(torch.from_numpy(asked).double(), beam)
    return np.isin(model.encode_documents(documents())["leaves"], order.leaves.numpy()).any(1).sum()


def test_a_beam_visits_the_documents_of_its_leaves(index: Index) -> None:
    for beam in (1, 2, 5, 8):
        assert index.rank([QUERY], k=3, beam=beam).visited == pytest.approx(within(index, beam) / 48)


def test_a_copy_under_another_model_is_routed_anew(index: Index, tmp_path) -> None:
    moved = index.copy_to(tmp_path / "moved", model=train_paths(branches=3, seed=4))
    assert moved.model.config.leaves == 3
    assert len(moved.rank([QUERY], k=48, beam=1).ids[0]) == 48


def test_an_explanation_names_leaves_and_adds_up(index: Index) -> None:
    hit = index.search(QUERY, k=1, beam=3, lexical=0)[0]
    why = hit.explain()
    assert [part.name for part in why.parts] == [f"theme of leaf {why.detail['leaf']}", "the document's own"]
    assert why.detail["visited"] == len(why.detail["leaves"]) == 3
    assert all(0 <= leaf["probability"] <= 1 for leaf in why.detail["leaves"])
    [own] = [document for document in documents() if document.key == hit.id]
    assert why.detail["path"] == index.model.encode_documents([own])["leaves"][0].tolist()
    assert "of 3 visited" in why.text
    assert "visited" not in index.explain(QUERY, "blue-hen", lexical=0).detail


def test_a_report_is_kept_and_a_spoilt_one_refused(tmp_path) -> None:
    paths().save_pretrained(tmp_path / "c")
    assert load_model(tmp_path / "c").report == paths().report
    wrong = b'{"curve":{"x":{}},"documents":{}}'
    for spoilt in (b"[]", b'{"curve": {}}', b"nothing", wrong):
        with pytest.raises(CheckpointError, match=r"leaves\.json"):
            IndexReport.from_json(spoilt)
    assert IndexReport.from_json(IndexReport().to_json()) == IndexReport()
    earlier = b'{"curve":{},"load":{"ideal":6.0},"documents":{"3":[["owl",1.5]]},"queries":{}}'
    assert IndexReport.from_json(earlier).documents == {"3": [("owl", 1.5)]}


def test_training_learns_and_needs_no_labels() -> None:
    early, late = train_paths(steps=0), train_paths(steps=60, learning_rate=1e-3)
    assert late.record.metrics["recall over visits"] >= early.record.metrics["recall over visits"]
    assert train_paths(steps=0, branches=None).config.branches == 28
    model = PathsModel.fit(documents(), encoder=FakeEncoder(16), branches=4, progress=False)
    assert not model.record.labelled
    index = Index.build(documents(), model)
    assert len(index.search("red owl", k=3, beam=1)) == 3
    held = index.model.encode_documents(documents())
    far = np.square(held["vector"][:, None] - model.module.centres.numpy()).sum(2)
    assert (held["leaves"][:, 0] == far.argmin(1)).mean() > 0.9


def test_the_encoder_may_learn_too(tmp_path) -> None:
    encoder, cache = learner(), EncodingCache(tmp_path / "cache")
    config = PathsConfig(branches=4, encoder_learns="all", negatives="leaves", refresh=2)
    config, task = PathsModel.task(config, FitInputs(load_data(pairs()), encoder, cache))
    task.held_out = None  # so that the last weights stay
    train(task, TrainingConfig(steps=9, batch_size=8, learning_rate=3e-3), progress=False)
    model = PathsModel(config, encoder, task.module)
    model.after_fit(task)
    before, after = Backbone.of(encoder).state_dict(), model.module.backbone.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert all(any(layer in name for name in moved) for layer in ("layer.0.", "layer.1."))
    assert not model.report.curve
    index = Index.build(documents(), model)
    hits = index.search(QUERY, k=5, beam=2, lexical=0)
    assert sum(part.value for part in hits[0].explain().parts) == pytest.approx(hits[0].score, abs=1e-5)
    model.save_pretrained(tmp_path / "c")
    loaded = load_model(tmp_path / "c", encoder=encoder)
    again = Index.build(documents(), loaded)
    assert [hit.id for hit in again.search(QUERY, k=5, beam=2, lexical=0)] == [hit.id for hit in hits]
    with pytest.raises(ConfigError, match="give the text itself"):
        index.rank(np.zeros((1, 32), np.float32))
