"""Long passages are read in windows, and every span of them once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from palmette.encoder import load_encoder
from palmette.encoder.backbone import Backbone
from palmette.errors import ConfigError
from palmette.reader import ReaderConfig
from palmette.reader.windows import Pairs, batch_of, by_length
from support.readers import tiny_encoder

CONFIG = ReaderConfig(max_length=20, overlap=4, max_answer=3, max_question=6)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    folder: Path = tiny_encoder(tmp_path_factory.mktemp("encoder") / "model")
    backbone = Backbone.of(load_encoder(folder, dtype="float32", device="cpu"))
    return Pairs(backbone.tokenizer, CONFIG)


def test_every_span_of_whole_words_is_in_exactly_one_window(pairs: Pairs) -> None:
    words = [("cat", "dog", "owlet", "in", "house", str(n))[n % 6] for n in range(40)]
    text = " ".join(words)
    windows = pairs.windows("where does the cat live?", ["", text, "the cat"])
    assert {window.passage for window in windows} == {1, 2}  # a blank passage has none
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
    singles = {
        " ".join(words[at : at + size])
        for at in range(40)
        for size in (1, 2)
        if "owlet" not in words[at : at + size]
    }
    assert singles <= found
    assert not any(
        piece.startswith("wl") or piece.endswith(" ow") for piece in found
    )  # owlet is read by letters


def test_no_answer_begins_within_a_word_that_a_window_cuts(pairs: Pairs) -> None:
    for lead in range(12):
        text = "cat " * lead + "zebra in house owlet " * 8
        for window in pairs.windows("where?", [text]):
            for start in window.offsets[window.starts, 0].tolist():
                assert start == 0 or text[start - 1] == " ", text[start:]


def test_answers_are_found_at_their_characters_and_widened_to_words(pairs: Pairs) -> None:
    text = "the cat sings in house 12 at night"
    (window,) = pairs.windows("where?", [text])
    where = text.index("house 12")
    ((first, last),) = window.gold([(where, where + len("house 12"))], 3)
    assert text[window.offsets[first, 0] : window.offsets[last, 1]] == "house 12"
    ((first, last),) = window.gold([(where, where + 3)], 3)  # hou
    assert text[window.offsets[first, 0] : window.offsets[last, 1]] == "house"
    assert window.gold([(0, len(text))], 3) == []  # too long
    assert window.gold([(500, 505)], 3) == []


def test_long_questions_are_cut_and_windows_padded_together(pairs: Pairs) -> None:
    question = "where does the cat live? " * 20
    windows = pairs.windows(question, ["the cat sings", "the dog " * 12])
    assert all(len(window) <= CONFIG.max_length for window in windows)
    batch = batch_of(windows, pairs.padding, torch.device("cpu"))
    assert batch.ids.shape == (len(windows), max(map(len, windows)))
    assert batch.mask.sum(1).tolist() == [len(window) for window in windows]
    assert not (batch.starts | batch.ends)[batch.mask == 0].any()
    groups = by_length(windows, 40)
    assert sorted(at for group in groups for at in group) == list(range(len(windows)))
    assert all(len(group) * max(len(windows[at]) for at in group) <= 40 for group in groups)


@pytest.mark.parametrize("wrong", [{"overlap": 2}, {"max_question": 14}, {"max_answer": 0}, {"absent": 1.0}])
def test_settings_that_would_lose_answers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CONFIG.replace(**wrong)


def test_lone_surrogates_keep_every_character_in_its_place(pairs: Pairs) -> None:
    text = "the cat \ud800\udc00 sings in\udfff house"
    (window,) = pairs.windows("where \ud800 is it", [text])
    found = {text[start:end] for start, end in window.offsets[window.words >= 0].tolist()}
    assert {"cat", "house", *map(chr, (0xD800, 0xDC00, 0xDFFF))} <= found
