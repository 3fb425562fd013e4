"""What speaks for a passage beside its spans."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palmette import FakeEncoder
from palmette.encoder.recent import Recent
from palmette.reader.prior import Prior, described, learn
from palmette.reader.reading import Seen
from palmette.reader.windows import Window

QUESTION = "where does the green owl live?"


def test_a_passage_is_described_whatever_else_is_read() -> None:
    encoder = FakeEncoder(32)
    texts = ["The green owl lives here.", " ", "Nobody painted the wall."]
    together, alone = described(Recent(encoder), [QUESTION, QUESTION], [texts, texts[2:]])
    assert together.shape == (3, 2)
    assert together[2].tolist() == alone[0].tolist()
    assert together[1].tolist() == [0, 0]  # there is nothing to read
    assert together[0, 1] == pytest.approx(4 / 6)  # the, green, owl, live; not where, does
    query, vector = encoder.encode_queries([QUESTION])[0], encoder.encode(texts[:1])[0]
    cosine = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
    assert together[0, 0] == pytest.approx(cosine, abs=1e-6)
    assert [some.shape for some in described(Recent(encoder), [QUESTION], [[]])] == [(0, 2)]


def test_it_learns_what_right_passages_have_and_leaves_alone_what_says_nothing() -> None:
    draw = np.random.default_rng(0)
    totals = [draw.normal(size=5) for _ in range(300)]
    signs = [draw.normal(size=(5, 2)).astype(np.float32) for _ in totals]
    chances = [
        np.exp(np.append(total + 3 * sign[:, 0] - 1, 0.0))  # the last is "no answer"
        for total, sign in zip(totals, signs, strict=True)
    ]
    right = [np.arange(5) == draw.choice(6, p=chance / chance.sum()) for chance in chances]
    prior = Prior()
    assert prior.silent
    learn(prior, [], [], [])
    assert prior.silent
    learn(prior, totals, signs, right)
    first, second = prior.weigh.weight[0].tolist()
    assert (first, second, float(prior.weigh.bias)) == pytest.approx((3, 0, -1), abs=0.5)
    assert not any(parameter.requires_grad for parameter in prior.parameters())
    again = Prior()
    learn(again, totals[:2], signs[:2], right[:2])
    assert again.weigh.weight.abs().max() < prior.weigh.weight.abs().max()  # two questions say little


def test_it_moves_passages_and_not_the_spans_within_one() -> None:
    nothing = np.zeros((4, 2), np.int64)
    offsets = np.array([(0, 0), (0, 3), (4, 7), (8, 9)])
    windows = [
        Window(passage, [1] * 4, [1] * 4, offsets, nothing[:, 0], np.ones(4, bool), np.ones(4, bool))
        for passage in (0, 2, 2)
    ]
    scores = [np.array([1.0, 0.5]), np.array([0.8]), np.array([0.1])]
    kept = [(some, np.array([(1, 1), (2, 2)])[: len(some)]) for some in scores]
    seen = Seen(windows, np.array([np.logaddexp.reduce(some) for some in scores]), kept)
    assert seen.sums(3)[[0, 2]] == pytest.approx([np.logaddexp(1.0, 0.5), np.logaddexp(0.8, 0.1)])
    assert seen.sums(3)[1] < -1000
    plain, moved = seen.candidates(), seen.candidates(np.array([0.0, 9.0, 1.0]))
    assert plain.passages.tolist() == [0, 2, 0, 2]
    assert moved.passages.tolist() == [2, 2, 0, 0]
    for found in (plain, moved):
        assert found.shares.sum() + found.none == pytest.approx(1)
        of_first = found.shares[found.passages == 0]
        assert of_first[0] / of_first[1] == pytest.approx(np.exp(0.5))
    assert moved.shares[0] / plain.shares[1] / (moved.none / plain.none) == pytest.approx(np.e)


def test_it_is_applied_by_the_network_that_holds_it() -> None:
    prior = Prior()
    with torch.no_grad():
        prior.weigh.weight.copy_(torch.tensor([[2.0, 1.0]]))
        prior.weigh.bias.fill_(-1.0)
    assert not prior.silent
    assert prior(torch.tensor([[0.5, 0.25], [0.0, 0.0]])).tolist() == pytest.approx([0.25, -1.0])


def test_without_a_question_that_has_no_answer_it_says_little_more_than_the_network() -> None:
    draw = np.random.default_rng(1)
    totals = [np.array([6.0, -4.0, -5.0]) + draw.normal(size=3) for _ in range(5)]
    signs = [draw.normal(0.5, 0.1, size=(3, 2)).astype(np.float32) for _ in totals]
    prior = Prior()
    learn(prior, totals, signs, [np.array([True, False, False])] * 5)
    with torch.no_grad():
        added = prior(torch.from_numpy(np.concatenate(signs)))
    assert added.mean().abs() < 1  # to the log-odds of an average passage
