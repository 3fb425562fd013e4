"""What words are worth beside a method, and how that is learned."""

import numpy as np
import pytest

from palmette.errors import ConfigError
from palmette.lexical.weight import (
    LexicalWeight,
    best_weights,
    check_lexical,
    explain_words,
    learn_weight,
    options_key,
    scale_of,
)
from palmette.methods.tree.config import TreeSearch
from palmette.metrics import Judgements, query_scores
from palmette.types import Explanation, Part


def test_a_mix_is_the_method_at_one_end_and_words_at_the_other() -> None:
    method, words = np.array([0.2, 0.9], np.float32), np.array([1.0, 0.25], np.float32)
    for weight, scale, mixed in (
        (0.0, 3.0, [0.2, 0.9]), (1.0, 3.0, [3.0, 3 * 0.25**1.5]), (0.5, 2.0, [0.1 + 1, 0.45 + 0.125])
    ):  # fmt: skip
        assert LexicalWeight(weight=weight, scale=scale).score(method, words) == pytest.approx(mixed)
    for wrong in ({"weight": -0.1}, {"weight": 1.1}, {"scale": 0.0}, {"scale": float("nan")}):
        with pytest.raises(ConfigError):
            LexicalWeight(**wrong)


def test_parts_of_an_explanation_add_up() -> None:
    own = Explanation(0.8, [Part("leaf", 0.5), Part("rest", 0.3)], "as it is")
    lexical = LexicalWeight(weight=0.25, scale=2.0)
    found = explain_words(own, ["red", "the", "owl"], [0.3, 0.0, 0.2], lexical)
    assert [part.name for part in found.parts] == ["leaf", "rest", "word 'red'", "word 'owl'"]
    assert sum(part.value for part in found.parts) == pytest.approx(found.score)
    assert found.score == pytest.approx(float(lexical.score(np.array(0.8), np.array(0.5))))
    assert "red (+" in found.text


def sides(queries: int = 200, documents: int = 50) -> tuple[np.ndarray, np.ndarray, Judgements]:
    """Query i wants document i % N: a ranking that knows it, one that knows nothing, and who is right."""
    draw = np.random.default_rng(0)
    right, noise = draw.random((2, queries, documents)).astype(np.float32)
    rows = np.arange(queries)
    right[rows, rows % documents] += 2
    return right / 3, noise, Judgements.of(queries, documents, rows, rows % documents, np.ones(queries))


def test_the_weight_goes_to_whoever_is_right() -> None:
    right, noise, judged = sides()
    assert learn_weight(noise, right, judged).weight >= 0.5
    assert learn_weight(right, noise, judged).weight <= 0.3, "words that mislead"
    assert learn_weight(right, right, judged).weight == 0.5, "where nothing is to be gained"


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

    def quality(mix: LexicalWeight, part: slice) -> float:
        best = np.argsort(-mix.score(method[part], words[part]), axis=1)[:, :10]
        return float(query_scores(best, judged(part), ks=(10,))["ndcg@10"].mean())

    seen, new = slice(0, 300), slice(300, None)
    learned = learn_weight(method[seen], words[seen], judged(seen))
    assert quality(learned, new) >= quality(learned.replace(weight=0.0), new) - 0.005
    assert quality(learned.replace(weight=0.5), new) < quality(learned, new), "a balance costs more"


def test_few_queries_or_none_leave_the_balance() -> None:
    right, noise, judged = sides()
    assert learn_weight(right, noise, None) == LexicalWeight(scale=scale_of(right))

    def weight(method: np.ndarray, words: np.ndarray, count: int) -> float:
        few = Judgements.of(count, 50, np.arange(count), judged.keys[:count] % 50, np.ones(count))
        return learn_weight(method[:count], words[:count], few).weight

    towards = [weight(right, noise, count) for count in (1, 10, 200)]
    assert towards == sorted(towards, reverse=True), "the more there are, the farther it may go"
    assert towards[0] >= 0.45
    assert towards[2] <= 0.3
    assert weight(right, right, 1) == weight(right, right, 10) == 0.5
    assert learn_weight(right, noise, judged).weight == towards[2]


def test_the_scale_follows_the_method() -> None:
    right, *_ = sides()
    assert scale_of(right * 100) == pytest.approx(100 * scale_of(right), rel=1e-3)
    assert scale_of(right + 5) == pytest.approx(scale_of(right), abs=1e-3)
    assert scale_of(np.ones((3, 4), np.float32)) > 0


def test_weights_of_several_rankings() -> None:
    right, noise, judged = sides()
    good, bad = best_weights(np.stack([right, noise * 3]), judged)
    assert good > 0.8
    assert good + bad == pytest.approx(1)
    assert best_weights(np.stack([right, noise]), None) == (0.5, 0.5)


def test_options_have_names() -> None:
    assert options_key(TreeSearch()) == ""
    assert options_key(TreeSearch(level=3)) == '{"level": 3}'


def test_weights_that_users_give() -> None:
    assert check_lexical("auto") == "auto"
    assert check_lexical(np.float32(0.5)) == 0.5
    for wrong in ("0.5", None, True, 2, -1):
        with pytest.raises(ConfigError, match="lexical"):
            check_lexical(wrong)
