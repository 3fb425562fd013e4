"""Coefficients learned from held-out questions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit

from palmette import Document, RetrievalData, SpaceModel, load_data
from palmette.data.metrics import Judgements, query_scores
from palmette.methods.layers.training import best_weights
from palmette.ranking import calibration
from palmette.ranking.calibration import draw_sample, fit_probability, learn, quality_by_weight, scores
from palmette.ranking.score import PRIOR, SLOPE, WORDS, Calibration, Evidence, ScoreScale, ScoreScales
from palmette.search.plan import Candidates
from support.tiny import documents


def sides(queries: int = 200, documents: int = 50) -> tuple[np.ndarray, np.ndarray, Judgements]:
    """Query i wants document i % N: a ranking that knows it, one that knows nothing, and who is right."""
    draw = np.random.default_rng(0)
    right, noise = draw.random((2, queries, documents)).astype(np.float32)
    rows = np.arange(queries)
    right[rows, rows % documents] += 2
    return right / 3, noise, Judgements.of(queries, documents, rows, rows % documents, np.ones(queries))


def learned(method: np.ndarray, words: np.ndarray, judged: Judgements | None) -> Calibration:
    none = np.full(method.shape, np.nan, np.float32)
    return learn(method, none, words, ScoreScales(method=ScoreScale.measured(method)), judged)


def test_the_weight_goes_to_whoever_is_right() -> None:
    right, noise, judged = sides()
    assert learned(noise, right, judged).words >= 0.5
    assert learned(right, noise, judged).words <= 0.3, "words that mislead"
    assert learned(right, right, judged).words == pytest.approx(WORDS, abs=0.01), "where nothing is to be gained"
    assert learned(right, noise, None) == Calibration(score_scales=ScoreScales(method=ScoreScale.measured(right)))


@pytest.mark.parametrize("lure", [0.0, 0.4, 0.8])
def test_words_that_mislead_cost_next_to_nothing(lure: float) -> None:
    """They point to a wrong document (or to none): learned from some queries, measured on others."""
    draw, count, documents = np.random.default_rng(1), 600, 50
    rows, right = np.arange(count), draw.integers(0, documents, count)
    method, words = draw.random((2, count, documents)).astype(np.float32)
    method[rows, right] += draw.random(count)
    words[rows, (right + 7) % documents] += lure
    words /= words.max()

    def judged(part: slice) -> Judgements:
        size = len(right[part])
        return Judgements.of(size, documents, np.arange(size), right[part], np.ones(size))

    def quality(mix: Calibration, part: slice) -> float:
        none = np.full(method[part].shape, np.nan)
        assert mix.score_scales is not None
        total = Evidence(mix, mix.score_scales, ("q",)).total(method[part], none, words[part])
        best = np.argsort(-total, axis=1)[:, :10]
        return float(query_scores(best, judged(part), ks=(10,))["ndcg@10"].mean())

    seen, new = slice(0, 300), slice(300, None)
    mix = learned(method[seen], words[seen], judged(seen))
    assert quality(mix, new) >= quality(mix.replace(words=0.0), new) - 0.005
    assert quality(mix.replace(words=0.5), new) < quality(mix, new), "a balance costs more"


def test_few_queries_stay_near_the_shipped_weight() -> None:
    right, noise, judged = sides()

    def weight(method: np.ndarray, words: np.ndarray, count: int) -> float:
        few = Judgements.of(count, 50, np.arange(count), judged.keys[:count] % 50, np.ones(count))
        return learned(method[:count], words[:count], few).words

    towards = [weight(right, noise, count) for count in (1, 10, 200)]
    assert towards == sorted(towards, reverse=True), "the more there are, the farther it may go"
    assert towards[0] >= 0.45
    assert towards[2] <= 0.3
    assert weight(right, right, 1) == weight(right, right, 10) == WORDS


@pytest.mark.parametrize(("pairs", "keys"), [(29, set()), (30, {""})])
def test_few_pairs_that_teach_nothing_leave_the_shipped_coefficients(pairs: int, keys: set[str]) -> None:
    data = [(f"question {number}", f"answer {number}") for number in range(pairs)]
    assert set(SpaceModel.fit(data, encoder="fake:32", progress=False).calibrations) == keys


def test_slope_and_prior_are_those_of_the_judgements() -> None:
    draw = np.random.default_rng(0)
    x = draw.random(4000) * 2
    y = draw.random(4000) < expit(6 * x - 7)
    slope, prior = fit_probability(x, y)
    assert slope == pytest.approx(6, rel=0.1)
    assert prior == pytest.approx(-7, rel=0.1)
    few = fit_probability(x[:2], y[:2])
    assert few == pytest.approx((SLOPE, PRIOR), rel=0.5), "two questions say little"
    assert fit_probability(x, np.zeros(4000, bool))[0] > 0
    assert fit_probability(x, x < 1)[0] == 0.5, "never falling"


def test_queries_without_an_answer_teach_nothing() -> None:
    right, noise, judged = sides()
    rows = np.arange(100)
    half = Judgements.of(200, 50, rows, judged.keys[:100] % 50, np.ones(100))
    alone = Judgements.of(100, 50, rows, judged.keys[:100] % 50, np.ones(100))
    score_scales, none = ScoreScales(method=ScoreScale.measured(noise)), np.full(noise.shape, np.nan, np.float32)
    expected = learn(noise[:100], none[:100], right[:100], score_scales, alone)
    assert learn(noise, none, right, score_scales, half) == expected
    made = load_data([document.text for document in documents()])
    assert draw_sample(made, 0)[2] is None, "made questions share words with their documents"


def test_questions_about_other_documents_decide_what_the_held_out_ones_leave_open() -> None:
    right, noise, judged = sides()
    none, score_scales = np.full(right.shape, np.nan, np.float32), ScoreScales(method=ScoreScale.measured(right))
    wanted = quality_by_weight(noise, none, right, score_scales, judged)  # by these, words alone
    unwanted = quality_by_weight(right, none, noise, score_scales, judged)

    def chosen(words: np.ndarray, others: np.ndarray | None, share: float = 0.5) -> float:
        return learn(right, none, words, score_scales, judged, others, share).words

    assert chosen(right, unwanted) < chosen(right, None) - 0.1 < chosen(right, wanted) - 0.2
    assert chosen(noise, wanted) <= 0.3, "held-out questions that words mislead are not outvoted"
    assert chosen(noise, wanted, 0.0) == chosen(noise, None)


def test_a_sample_holds_documents_near_to_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MAX_DOCUMENTS", 30)
    monkeypatch.setattr(calibration, "RANDOM_DOCUMENTS", 10)
    vectors = torch.nn.functional.normalize(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)))
    judged = {f"q{n}": {f"d{n}": 1} for n in (3, 50, 120)}
    corpus = [Document(id=f"d{n}", text=f"text {n}") for n in range(200)]
    data = RetrievalData("made", corpus, {f"q{n}": f"question {n}" for n in (3, 50, 120)}, {"dev": judged})
    asked = vectors[[3, 50, 120]]
    sample = draw_sample(data, 0, (asked, vectors))
    assert sample is not None
    assert len(sample.documents) == 30
    assert sample.usual.sum() == 13, "ten at random and the three that are judged"
    rows = {int(document.key[1:]) for document in sample.documents}
    near = (asked @ vectors.T).topk(6).indices  # 17 more places, so at least five each, of the nearest
    assert rows >= set(near[:, :5].flatten().tolist())
    kept = {int(sample.documents[n].key[1:]) for n in np.flatnonzero(sample.usual)}
    assert kept >= {3, 50, 120}
    few = RetrievalData("few", corpus[:25], {"q3": "question"}, {"dev": {"q3": {"d3": 1}}})
    small = draw_sample(few, 0, (asked, vectors))
    assert small is not None
    assert small.usual.all(), "all documents are in it"


def test_what_a_search_does_not_return_scores_as_its_last() -> None:
    found = Candidates(np.array([[2, 0], [1, -1]]), np.array([[0.9, 0.4], [0.7, -np.inf]], np.float32))
    model = SimpleNamespace(encode_queries=lambda *_: {}, search=lambda *_: found)
    table = scores(model, range(3), ["a", "b"], None)
    np.testing.assert_array_equal(table, np.array([[0.4, 0.4, 0.9], [0.7, 0.7, 0.7]], np.float32))


def test_weights_of_several_rankings() -> None:
    right, noise, judged = sides()
    good, bad = best_weights(np.stack([right, noise * 3]), judged)
    assert good > 0.8
    assert good + bad == pytest.approx(1)
    draw, rows = np.random.default_rng(1), np.arange(30)
    alike = draw.random((2, 30, 12)).astype(np.float32)
    alike[:, rows, rows % 12] += 0.3
    judged = Judgements.of(30, 12, rows, rows % 12, np.ones(30))
    assert best_weights(alike, judged) == (0.5, 0.5), "two points more in a single sample are noise"
