"""Several models as one: weights, checkpoints, and an index given a list of models."""

from pathlib import Path

import numpy as np
import pytest

from palmette import FusionModel, Index, load_model
from palmette.data import RetrievalData
from palmette.errors import ConfigError, InputError
from support.tiny import documents, fusion, pairs, taxonomy, tree

QUESTION = "where does the red owl live?"


def test_a_fused_score_is_the_weighted_sum() -> None:
    fused = fusion()
    index = Index.build(documents(), fused)
    alone = [
        {h.id: h.score for h in Index.build(documents(), m).search(QUESTION, 48, lexical=0)}
        for m in fused.members
    ]
    (a, b), (x, y) = fused.config.weights, fused.config.scales
    assert (a, b) == pytest.approx((2 / 3, 1 / 3))
    for hit in index.search(QUESTION, 48, lexical=0):
        assert hit.score == pytest.approx(a * alone[0][hit.id] / x + b * alone[1][hit.id] / y, rel=1e-5)
        assert {part.name.split(" ")[0] for part in hit.explain().parts} == {"0:tree", "1:taxonomy"}


def test_a_checkpoint_holds_its_members(tmp_path: Path) -> None:
    fused = fusion()
    fused.save_pretrained(tmp_path / "c")
    again = load_model(tmp_path / "c")
    assert isinstance(again, FusionModel)
    assert again.fingerprint == fused.fingerprint
    assert again.mixes == fused.mixes
    assert [m.fingerprint for m in again.members] == [m.fingerprint for m in fused.members]
    assert again.members[0].encoder is again.members[1].encoder
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
    assert set(learned.mixes) == {""}
    equal = FusionModel.of([tree(), taxonomy()])
    assert equal.config.weights == (0.5, 0.5)
    assert np.isfinite(equal.score(QUESTION, documents()[:2])).all()


def test_ranks_are_fused(tmp_path: Path) -> None:
    fused = FusionModel.of([tree(), taxonomy()], weights="rrf")
    index = Index.build(documents(), fused, tmp_path / "i")
    ranks = [
        {h.id: r for r, h in enumerate(Index.build(documents(), m).search(QUESTION, 48, lexical=0), 1)}
        for m in fused.members
    ]
    expected = {id: sum(1 / (60 + rank[id]) for rank in ranks) for id in ranks[0]}
    every = index.search(QUESTION, 48)
    assert {hit.id: hit.score for hit in every} == pytest.approx(expected, rel=1e-6)
    assert every == sorted(every, key=lambda hit: -hit.score)
    assert index.search(QUESTION, 3) == every[:3]
    assert Index.open(tmp_path / "i").search(QUESTION, 3) == every[:3]
    for hit in every[:3]:
        parts = {part.name: part for part in hit.explain().parts}
        assert {name: part.detail["rank"] for name, part in parts.items()} == {
            f"{place}:{m.method} rank": rank[hit.id]
            for place, (m, rank) in enumerate(zip(fused.members, ranks, strict=True))
        }
        assert sum(part.value for part in parts.values()) == pytest.approx(hit.score, rel=1e-6)
    alone = fused.score(QUESTION, [hit.document for hit in every])
    assert alone == pytest.approx([hit.score for hit in every], abs=2e-3), "a bit less may cost a rank"


def test_a_window_is_how_far_ranks_go() -> None:
    index = Index.build(documents(), FusionModel.of([tree(), taxonomy()], weights="rrf"))
    shown = {
        h.id for m in index.model.members for h in Index.build(documents(), m).search(QUESTION, 5, lexical=0)
    }
    found = index.search(QUESTION, 5, window=5)
    assert {hit.id for hit in found} <= shown
    [first] = index.search(QUESTION, 1, window=1)
    assert first.score == pytest.approx(len(first.explain().parts) / 61)
    filtered = index.search(QUESTION, 8, filter={"colour": "red"})
    assert {part.detail["rank"] for hit in filtered for part in hit.explain().parts} == set(range(1, 9))


def test_ranks_refuse_what_needs_scores() -> None:
    index = Index.build(documents(), FusionModel.of([tree(), taxonomy()], weights="rrf"))
    assert index.search(QUESTION, 3, lexical=0) == index.search(QUESTION, 3)
    with pytest.raises(ConfigError, match=r"lexical=0\.5.*ranks"):
        index.search(QUESTION, 3, lexical=0.5)
    with pytest.raises(InputError, match=r"hit\.explain"):
        index.explain(QUESTION, "red-owl")
    with pytest.raises(ConfigError, match="window"):
        Index.build(documents(), fusion()).search(QUESTION, 3, window=9)
    with pytest.raises(ConfigError, match="window"):
        index.search(QUESTION, 3, window=0)
    for weights, data in (("rrf", pairs()), ("rank", None)):
        with pytest.raises(ConfigError, match="rrf"):
            FusionModel.of([tree(), taxonomy()], data, weights=weights)


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
