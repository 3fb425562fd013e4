"""Long passages are read in windows, every span once; one softmax over all spans of all passages."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from palmette import FakeEncoder
from palmette.encoder import load_encoder
from palmette.errors import ConfigError
from palmette.reader import Reader, ReaderConfig
from palmette.reader.losses import grouped_logsumexp, learn_passage_bias, reading_loss
from palmette.reader.scores import NEVER
from palmette.reader.spans import Read, SpanModule, batches, right_spans
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


def test_no_answer_begins_within_a_word_that_a_window_cuts(module):
    for lead in range(12):
        text = "cat " * lead + "zebra in house owlet " * 8
        for window in module.windows("where?", [text]):
            for start in window.offsets[window.starts, 0].tolist():
                assert start == 0 or text[start - 1] == " ", text[start:]


def test_answers_are_found_at_their_characters_and_widened_to_words(module):
    text = "the cat sings in house 12 at night"
    (window,) = module.windows("where?", [text])
    where = text.index("house 12")
    for length, expected in ((8, "house 12"), (3, "house")):
        ((first, last),) = window.gold([(where, where + length)], 3)
        assert text[window.offsets[first, 0] : window.offsets[last, 1]] == expected
    assert window.gold([(0, len(text))], 3) == [], "too long"
    assert window.gold([(500, 505)], 3) == []


def test_long_questions_are_cut_and_windows_grouped_by_length(module):
    windows = module.windows("where does the cat live? " * 20, ["the cat sings", "the dog " * 12])
    assert all(len(window) <= CONFIG.max_length for window in windows)
    groups = list(batches(windows, 40))
    assert sorted(at for group in groups for at in group) == list(range(len(windows)))
    assert all(len(group) * max(len(windows[at]) for at in group) <= 40 for group in groups)


def test_lone_surrogates_keep_every_character_in_its_place(module):
    text = "the cat \ud800\udc00 sings in\udfff house"
    (window,) = module.windows("where \ud800 is it", [text])
    found = {text[start:end] for start, end in window.offsets[window.words >= 0].tolist()}
    assert {"cat", "house", *map(chr, (0xD800, 0xDC00, 0xDFFF))} <= found


@pytest.mark.parametrize("wrong", [{"overlap": 2}, {"max_question": 14}, {"max_answer": 0}, {"absent": 1.0}])
def test_settings_that_would_lose_answers_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CONFIG.replace(**wrong)


def test_every_allowed_span_scores_its_ends_and_its_window(module):
    windows = module.windows("where does the cat live?", ["the cat lives in house 12", "the dog"])
    with torch.no_grad():
        scores = module(windows)  # [W, T, L]
        for row, window in enumerate(windows):
            inputs = {name: torch.tensor([values]) for name, values in window.inputs.items()}
            alone = module.qa(**inputs, output_hidden_states=True)
            relevance = module.relevance(alone.hidden_states[-1][0, :1])[0, 0]
            starts, ends = alone.start_logits[0], alone.end_logits[0]
            for first in range(len(window)):
                for extra in range(CONFIG.max_answer):
                    last = first + extra
                    there = last < len(window) and window.starts[first] and window.ends[last]
                    expected = starts[first] + ends[last] + relevance if there else NEVER
                    assert scores[row, first, extra] == pytest.approx(float(expected), abs=1e-4)
    assert (scores[1, len(windows[1]) :] == NEVER).all(), "padding is no answer"


def test_groups_are_summed_apart_and_an_empty_one_has_nothing():
    values = torch.tensor([1.0, 2.0, -3.0, NEVER, NEVER], requires_grad=True)
    sums = grouped_logsumexp(values, torch.tensor([0, 0, 2, 3, 3]), 4)
    assert sums[:3].tolist() == pytest.approx([math.log(math.e + math.e**2), NEVER, -3.0])
    assert sums[3] < NEVER / 2
    sums[0].backward()
    assert values.grad is not None
    assert values.grad[:2].sum() == pytest.approx(1.0)


def test_the_loss_is_the_probability_of_the_right_spans_or_of_no_answer():
    scores = torch.full((3, 4, 2), NEVER)
    scores[0, 0, 0], scores[0, 1, 1], scores[1, 2, 0], scores[2, 0, 0] = 1.0, 2.0, 0.5, 3.0
    gold = [[(0, 0), (0, 0)], [(2, 2)], []]  # windows 0 and 1 are of question 0: two right spans of three
    loss = reading_loss(scores.flatten(1).logsumexp(1), right_spans(scores, gold), torch.tensor([0, 0, 1]), 2)
    first = (math.e + math.exp(0.5)) / (1 + math.e + math.exp(2) + math.exp(0.5))
    second = 1 / (1 + math.exp(3))  # nothing is right: "no answer", which scores 0
    assert loss.tolist() == pytest.approx([-math.log(first), -math.log(second)], rel=1e-5)


def test_passages_are_described_whatever_else_is_read(module):
    texts = ["The green owl lives here.", " ", "Nobody painted the wall."]
    together, alone = module.passage_features([QUESTION, QUESTION], [texts, texts[2:]])
    assert together.shape == (3, 2)
    assert together[2].tolist() == alone[0].tolist()
    assert together[1].tolist() == [0, 0], "there is nothing to read"
    assert together[0, 1] == pytest.approx(4 / 6), "the, green, owl, live; not where, does"
    encoder = module.vectors.encoder
    query, vector = encoder.encode_queries([QUESTION])[0], encoder.encode(texts[:1])[0]
    cosine = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
    assert together[0, 0] == pytest.approx(cosine, abs=1e-5)
    assert [some.shape for some in module.passage_features([QUESTION], [[]])] == [(0, 2)]


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


def test_gains_move_passages_and_not_the_spans_within_one():
    totals, scores = np.array([np.logaddexp(1.0, 0.5), 0.8, 0.1]), np.array([1.0, 0.5, 0.8, 0.1])
    places = np.array([(0, 0, 3), (0, 4, 7), (2, 0, 3), (2, 0, 3)])
    read = Read(np.array([0, 2, 2]), totals, places, scores)
    plain, moved = read.candidates(np.zeros(3)), read.candidates(np.array([0.0, 9.0, 1.0]))
    assert plain.places[:, 0].tolist() == [0, 2, 0, 2]
    assert moved.places[:, 0].tolist() == [2, 2, 0, 0]
    for found in (plain, moved):
        assert found.shares.sum() + found.none == pytest.approx(1)
        of_first = found.shares[found.places[:, 0] == 0]
        assert of_first[0] / of_first[1] == pytest.approx(np.exp(0.5))
    assert moved.shares[0] / plain.shares[1] / (moved.none / plain.none) == pytest.approx(np.e)


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
