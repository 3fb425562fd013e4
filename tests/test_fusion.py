"""Several models as one: weights, checkpoints, and an index given a list of models."""

import json
from pathlib import Path

import numpy as np
import pytest

from palmette import FusionModel, Index, load_model
from palmette.data import RetrievalData
from palmette.errors import CheckpointError, ConfigError, InputError
from palmette.fusion import FusionConfig
from palmette.hub import Checkpoint
from support.tiny import documents, fusion, pairs, taxonomy, tree

QUESTION = "where does the red owl live?"


def test_a_fused_score_is_the_weighted_sum() -> None:
    fused = fusion()
    index = Index.build(documents(), fused)
    alone = [
        {h.id: h.evidence["own"] for h in Index.build(documents(), m).search(QUESTION, 48, lexical=0)}
        for m in fused.members
    ]
    (a, b), (x, y) = fused.config.weights, fused.config.scales
    assert (a, b) == pytest.approx((2 / 3, 1 / 3))
    for hit in index.search(QUESTION, 48, lexical=0):
        total = a * alone[0][hit.id] / x + b * alone[1][hit.id] / y
        assert hit.evidence["own"] == pytest.approx(total, rel=1e-5)
        assert {part.name.split(" ")[0] for part in hit.explain().method.parts} == {"0:tree", "1:taxonomy"}


def test_a_checkpoint_holds_its_members(tmp_path: Path) -> None:
    fused = fusion()
    fused.save_pretrained(tmp_path / "c")
    again = load_model(tmp_path / "c")
    assert isinstance(again, FusionModel)
    assert again.fingerprint == fused.fingerprint
    assert again.calibrations == fused.calibrations
    assert [m.fingerprint for m in again.members] == [m.fingerprint for m in fused.members]
    assert again.members[0].encoder.plain is again.members[1].encoder.plain
    given = documents()[:5]
    assert again.score(QUESTION, given) == fused.score(QUESTION, given)
    again.save_pretrained(tmp_path / "d")
    assert load_model(tmp_path / "d").fingerprint == fused.fingerprint


def test_an_index_takes_a_list_of_models(tmp_path: Path) -> None:
    tree().save_pretrained(tmp_path / "tree")
    index = Index.build(documents(), [tmp_path / "tree", taxonomy()], tmp_path / "i")
    assert index.model.method == "fusion"
    assert len(index) == 48
    assert Index.open(tmp_path / "i").search(QUESTION, 5) == index.search(QUESTION, 5)


def test_weights_are_learned_or_given(tmp_path: Path) -> None:
    learned = FusionModel.of([tree(), taxonomy()], pairs(), cache=tmp_path, progress=False)
    assert sum(learned.config.weights) == pytest.approx(1)
    assert set(learned.calibrations) == {""}
    equal = FusionModel.of([tree(), taxonomy()])
    assert equal.config.weights == (0.5, 0.5)
    assert np.isfinite(equal.score(QUESTION, documents()[:2])).all()


def test_reciprocal_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'rrf'.*no longer.*leave weights out"):
        FusionModel.of([tree(), taxonomy()], weights="rrf")  # type: ignore[arg-type]
    fusion().save_pretrained(tmp_path / "c")
    config = tmp_path / "c" / "config.json"
    facts = json.loads(config.read_text())
    facts["config"]["rule"] = "scores"  # as checkpoints before this version say it
    config.write_text(json.dumps(facts))
    assert FusionConfig.from_dict(facts["config"]).weights == fusion().config.weights
    facts["config"]["rule"] = "ranks"
    with pytest.raises(CheckpointError, match=r"reciprocal ranks.*fuse its models again"):
        FusionModel.from_checkpoint(Checkpoint(tmp_path / "c", facts, "0", {}))
    with pytest.raises(ConfigError, match="window"):
        Index.build(documents(), fusion()).search(QUESTION, 3, window=9)


def test_what_cannot_be_fused_is_refused() -> None:
    for models, weights in (([tree()], None), ([tree(), taxonomy()], [1]), ([tree(), taxonomy()], [2, -1])):
        with pytest.raises(ConfigError, match="weight"):
            FusionModel.of(models, weights=weights)
    with pytest.raises(ConfigError, match=r"FusionModel\.of"):
        FusionModel.task()


def test_weights_want_questions_with_an_answer(tmp_path: Path) -> None:
    """Judgements of another split say nothing that may be learned from."""
    corpus = documents()
    asked = {"q": {corpus[0].key: 1}}
    for qrels in ({"test": asked}, {"train": {"q": {corpus[0].key: 0}}, "test": asked}):
        data = RetrievalData("judged", corpus, {"q": QUESTION}, qrels)
        with pytest.raises(InputError, match=r"judged has no queries with an answer.*'test'"):
            FusionModel.of([tree(), taxonomy()], data, cache=tmp_path, progress=False)
