"""Probabilities of an index that are fitted on judged questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import InputError
from palmette.learning.probability import calibrate_index

COUNT = 60


def topics(path: Path | None = None) -> Index:
    documents = [Document(f"d{n}", f"garden topic{n} season{n % 7}") for n in range(COUNT)]
    return Index.build(documents, SpaceModel.untrained(FakeEncoder(64)), path, progress=False)


def judgements(index: Index, useful: int) -> dict[str, dict[str, int]]:
    """Judge the first hit of forty questions: of so many it is relevant."""
    questions = [f"topic{n} garden" for n in range(40)]
    return {
        question: {hits[0].id: int(n < useful)}
        for n, (question, hits) in enumerate(zip(questions, index.search(questions, k=1), strict=True))
    }


@pytest.mark.parametrize("useful", [4, 20, 36])
def test_the_mean_probability_is_the_share_of_useful_hits(useful: int, tmp_path: Path) -> None:
    with topics() as index:
        judged = judgements(index, useful)
        before = index.rank(list(judged), 5).ids
        model = calibrate_index(index, judged)
        assert model.fingerprint == index.model.fingerprint
        assert index.model.calibrations == {}
        index.copy_to(tmp_path / "calibrated", model=model, progress=False).close()
    with Index.open(tmp_path / "calibrated") as fitted:
        hits = fitted.search(list(judged), k=5)
        assert [[hit.id for hit in some] for some in hits] == before
        assert np.mean([some[0].score for some in hits]) == pytest.approx(useful / 40, abs=0.04)


def test_votes_of_the_index_are_the_judgements(tmp_path: Path) -> None:
    with topics(tmp_path / "index") as index:
        with pytest.raises(InputError, match="0 questions have a judged first hit, and 10 are needed"):
            calibrate_index(index)
        for question, grades in judgements(index, 10).items():
            for id, grade in grades.items():
                index.feedback(question, id, useful=bool(grade))
        expected = calibrate_index(index, judgements(index, 10)).calibrations
        assert calibrate_index(index).calibrations == expected
        index.add([Document("gone", "elsewhere")], progress=False)
        for n in range(40, 50):
            index.feedback(f"topic{n} season", "gone", useful=True)
        index.delete(["gone"])
        assert calibrate_index(index).calibrations == expected, "votes on what is gone say nothing"


def test_a_first_hit_without_a_grade_counts_only_beside_a_relevant_document() -> None:
    with topics() as index:
        judged = judgements(index, 40)
        elsewhere: dict[str, dict[str, int]] = {f"topic{n} season": {"d0": 1} for n in range(40, 50)}
        unknown = {f"topic{n} season": {"d0": 0} for n in range(50, 60)}
        plain, lower, same = (calibrate_index(index, judged | more) for more in ({}, elsewhere, unknown))
        assert lower.calibrations[""].prior < plain.calibrations[""].prior
        assert same.calibrations == plain.calibrations
