"""Passages that questions are trained and examined in."""

from __future__ import annotations

import numpy as np
import pytest

from palmette import FakeEncoder, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.reader import ReaderConfig, ReadingData, load_reading
from palmette.reader.spans import SpanModule, SpanTask
from palmette.reader.training import TrainingSet, best_threshold
from support import readers

CONFIG = ReaderConfig(max_length=24, overlap=4, max_answer=4, max_question=10, passages=3, absent=0.0, dropout=0.0)


@pytest.fixture(scope="module")
def data():
    """Long passages, and a question without an answer; the first and the last passage hold the same answer."""
    filler = "the dog sings at night and the cat lives in the house . " * 3
    records = []
    for number in range(10):
        answer, question = f"house {number % 9}", f"where does the cat {number} live?"
        context = f"{filler}the cat {number} lives in {answer}. {filler}"
        records.append({"question": question, "context": context, "answers": [answer] * (number != 4)})
    return load_reading(records)


@pytest.fixture(scope="module")
def asked(data):
    return [one for split in data.splits.values() for one in split]


def training_set(data, folder, config=CONFIG, **splits):
    """Lessons of the data's own splits, or of others on its passages."""
    read = ReadingData("other", data.passages, splits) if splits else data
    return TrainingSet.of(read, config, FakeEncoder(32), EncodingCache(folder), seed=0, progress=False)


def test_other_passages_neither_belong_nor_hold_an_answer(data, tmp_path):
    made = training_set(data, tmp_path)
    assert len(made.negatives) == len(made.train)
    for asked, negatives in zip(made.train, made.negatives, strict=True):
        assert negatives
        assert not set(negatives) & set(asked.passages)
        for text in made.texts(negatives):
            assert not any(answer in text for answer in asked.answers or ())


@pytest.mark.parametrize("absent", [0.0, 0.9])
def test_a_lesson_is_one_right_window_and_wrong_ones(data, tmp_path, absent):
    encoder = load_encoder(readers.encoder(), dtype="float32", device="cpu")
    config = CONFIG.replace(absent=absent)
    task = SpanTask(SpanModule(config, encoder), training_set(data, tmp_path / "cache", config))
    draw, withheld = np.random.default_rng(0), 0
    for row, asked in enumerate(task.training_set.train):
        for _ in range(8):
            sample = task.example(row, draw)
            assert len(sample) == CONFIG.passages
            right = [spans for _, spans in sample if spans]
            assert len(right) <= (1 if asked.answers else 0)
            withheld += bool(asked.answers) and not right
            assert len({id(window) for window, _ in sample}) == CONFIG.passages
    assert bool(withheld) == (absent > 0)


def test_the_threshold_balances_precision_and_recall():
    there, worth = [0.9, 0.3, 0.8, 0.2], [1.0, 0.0, 0.5, 0.0]
    # 2 · 1.5 / (3 + 2) of three answers is less than 2 · 1.5 / (2 + 2) of two
    assert best_threshold(there, worth, 2) == pytest.approx((0.55, 0.75))
    assert best_threshold([0.4, 0.6], [1.0, 1.0], 2) == pytest.approx((0.2, 1.0)), "all are answered"
    assert best_threshold([0.4, 0.6], [0.0, 0.0], 0) == pytest.approx((0.8, 0.0)), "none is"
    assert best_threshold([], [], 0) == pytest.approx((0.5, 0.0))
