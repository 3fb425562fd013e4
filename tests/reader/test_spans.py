"""Long passages are read in windows, every span once; one softmax over all spans of all passages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from palmette import FakeEncoder
from palmette.encoder import load_encoder
from palmette.errors import ConfigError
from palmette.reader import Reader, ReaderConfig
from palmette.reader.losses import learn_passage_bias
from palmette.reader.spans import SpanModule
from support import readers

CONFIG = ReaderConfig(max_length=20, overlap=4, max_answer=3, max_question=6)
QUESTION = "where does the green owl live?"


@pytest.fixture(scope="module")
def module():
    return SpanModule(CONFIG, load_encoder(readers.encoder(), dtype="float32", device="cpu")).eval()


def test_every_span_of_whole_words_is_in_exactly_one_window(module):
    words = [("cat", "dog", "owlet", "in", "house", str(n))[n % 6] for n in range(40)]
    text = " ".join(words)
    windows = module.windows("where does the cat live?", ["", text, "the cat"])
    assert {window.passage for window in windows} == {1, 2}, "a blank passage has none"
    spans = Counter(
        (int(window.offsets[first, 0]), int(window.offsets[last, 1]))
        for window in windows
        if window.passage == 1
        for first in range(len(window))
        for last in range(first, min(len(window), first + CONFIG.max_answer))
        if window.starts[first] and window.ends[last]
    )
    assert set(spans.values()) == {1}
    found = {text[start:end] for start, end in spans}
    pairs = [" ".join(words[at : at + size]) for at in range(40) for size in (1, 2)]
    assert {pair for pair in pairs if "owlet" not in pair} <= found
    assert not any(piece.startswith("wl") or piece.endswith(" ow") for piece in found), "owlet is read by letters"


def test_answers_are_found_at_their_characters_and_widened_to_words(module):
    text = "the cat sings in house 12 at night"
    (window,) = module.windows("where?", [text])
    where = text.index("house 12")
    for length, expected in ((8, "house 12"), (3, "house")):
        ((first, last),) = window.gold([(where, where + length)], 3)
        assert text[window.offsets[first, 0] : window.offsets[last, 1]] == expected
    assert window.gold([(0, len(text))], 3) == [], "too long"
    assert window.gold([(500, 505)], 3) == []


@pytest.mark.parametrize("wrong", [{"overlap": 2}, {"max_question": 14}, {"max_answer": 0}, {"absent": 1.0}])
def test_settings_that_would_lose_answers_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CONFIG.replace(**wrong)


def test_weights_are_learned_of_what_right_passages_have():
    draw = np.random.default_rng(0)
    totals = [draw.normal(size=5) for _ in range(300)]
    features = [draw.normal(size=(5, 2)).astype(np.float32) for _ in totals]
    chances = [
        np.exp(np.append(total + 3 * sign[:, 0] - 1, 0.0))  # the last is "no answer"
        for total, sign in zip(totals, features, strict=True)
    ]
    right = [np.arange(5) == draw.choice(6, p=chance / chance.sum()) for chance in chances]
    w, b = learn_passage_bias(totals, features, right)
    assert [*w.tolist(), b.item()] == pytest.approx([3, 0, -1], abs=0.5)
    assert learn_passage_bias(totals[:2], features[:2], right[:2])[0].abs().max() < w[0], "two questions say little"
    sure = [np.array([6.0, -4.0, -5.0]) + draw.normal(size=3) for _ in range(5)]
    near = [draw.normal(0.5, 0.1, size=(3, 2)).astype(np.float32) for _ in sure]
    w, b = learn_passage_bias(sure, near, [np.array([True, False, False])] * 5)
    added = torch.from_numpy(np.concatenate(near)).double() @ w + b
    assert added.mean().abs() < 1, "without a question that has no answer an average passage has no bias"


def test_a_published_model_reads_without_training(module, tmp_path):
    known = module.qa
    known.save_pretrained(tmp_path / "qa")
    module.tokenizer.save_pretrained(tmp_path / "qa")
    options = {**readers.span_options(), "model": str(tmp_path / "qa"), "steps": 0}
    reader = Reader.fit(readers.records()[:12], encoder=FakeEncoder(16), cache=tmp_path / "cache", **options)
    texts = readers.texts()[8:10]
    answer = reader.answer(QUESTION, texts, threshold=0)
    assert answer.text
    again = Reader.from_pretrained(reader.save_pretrained(tmp_path / "reader"))
    assert again.answer(QUESTION, texts, threshold=0).confidence == pytest.approx(answer.confidence)
    torch.testing.assert_close(reader.module.qa.qa_outputs.weight, known.qa_outputs.weight)
    window = reader.module.windows(QUESTION, texts[:1])
    ends = reader.module.qa(**{name: torch.tensor([values]) for name, values in window[0].inputs.items()})
    first, last = np.flatnonzero(window[0].starts)[0], np.flatnonzero(window[0].ends)[0]
    no_answer = ends.start_logits[0, 0] + ends.end_logits[0, 0]
    expected = ends.start_logits[0, first] + ends.end_logits[0, last] - no_answer
    torch.testing.assert_close(reader.module(window)[0, first, last - first], expected)
