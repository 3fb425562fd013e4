"""Support and critical words, on documents that can be counted by hand."""

import numpy as np
import pytest

from palmette.methods.layers.metrics import CriticalWords, support

DOCUMENTS = [
    "Harvard is in Cambridge",
    "Harvard joined the Ivy League",
    "the league of cities",
    "Cambridge schools and leagues",
    "the rest",
]


def test_the_rarest_word_is_the_critical_one() -> None:
    words = CriticalWords(DOCUMENTS, common=0.6)
    question = "When did Harvard join the Ivy League of zebras?"
    rarest = [("join", 1), ("ivi", 1), ("of", 1), ("harvard", 2), ("the", 3), ("leagu", 3)]
    assert words.of(question) == rarest
    measured = words.measure([question, "zebras"], [[0, 2], [1]])  # the second has no word to be found
    assert measured == pytest.approx({"occurrence": 0.0, "critical": 0.0, "coverage": 4 / 6})
    assert words.measure([question], [[1, 2]])["occurrence"] == 1
    assert words.measure(["zebras"], [[1]]) == {"occurrence": 0.0, "critical": 0.0, "coverage": 0.0}
    strict = CriticalWords(DOCUMENTS, common=0.4)
    assert "the" not in dict(strict.of(question))


def test_support_counts_each_layers_own_finds() -> None:
    holds = np.array([[True, False, True], [False, False, True]])
    layer = np.array([[1, 1, 2], [1, 2, 2]])
    assert support(holds, layer) == {1: 0.5, 2: 1.0}
