"""Coefficients learned from held-out questions."""

import numpy as np
import pytest
from scipy.special import expit

from palmette.calibration import best_weights, fit_probability, learn
from palmette.evidence import PRIOR, SLOPE, WORDS, Calibration, Evidence, Scale, Units
from palmette.metrics import Judgements, query_scores


def sides(queries: int = 200, documents: int = 50) -> tuple[np.ndarray, np.ndarray, Judgements]:
    """Query i wants document i % N: a ranking that knows it, one that knows nothing, and who is right."""
    draw = np.random.default_rng(0)
    right, noise = draw.random((2, queries, documents)).astype(np.float32)
    rows = np.arange(queries)
    right[rows, rows % documents] += 2
    return right / 3, noise, Judgements.of(queries, documents, rows, rows % documents, np.ones(queries))


def learned(method: np.ndarray, words: np.ndarray, judged: Judgements | None) -> Calibration:
    none = np.full(method.shape, np.nan, np.float32)
    return learn(method, none, words, Units(own=Scale.of(method)), judged)


def test_the_weight_goes_to_whoever_is_right() -> None:
    right, noise, judged = sides()
    assert learned(noise, right, judged).words >= 0.5
    assert learned(right, noise, judged).words <= 0.3, "words that mislead"
    assert learned(right, right, judged).words == WORDS, "where nothing is to be gained"
    assert learned(right, noise, None) == Calibration(units=Units(own=Scale.of(right)))


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
        assert mix.units is not None
        total = Evidence(mix, mix.units, ("q",)).total(method[part], none, words[part])
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


def test_weights_of_several_rankings() -> None:
    right, noise, judged = sides()
    good, bad = best_weights(np.stack([right, noise * 3]), judged)
    assert good > 0.8
    assert good + bad == pytest.approx(1)
    assert best_weights(np.stack([right, noise]), None) == (0.5, 0.5)
