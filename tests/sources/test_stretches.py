"""A long text is cut into stretches where its blocks end, and its passages are those of the whole text."""

from itertools import pairwise

import pytest

from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.sources import passages as module
from palmette.sources.passages import PassageOptions, split, stretches

SECTIONS = [
    f"## Section {number}\n\n" + f"Words of paragraph {number}, and some more of them.\n\n" * (number % 5 + 1)
    for number in range(60)
]
CODE = "```python\n# a comment, no heading\n\nvalue = 1\n```\n\n"
ODD = ["a", "a\n", "a b ", "\n", "\r\n", "  a\n", "```", "~~~\n", "# ", "---\n", "\n\n---\n", "語"]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(module, "STRETCH", 400)
    monkeypatch.setattr(module, "CODE_STRETCH", 800)


def passages(text, kind="markdown", tokens=60):
    return split(text, kind, PassageOptions(tokens=tokens), estimate_tokens)


def parts(text, kind="markdown"):
    listed = list(stretches(text, kind))
    assert [listed[0][0], listed[-1][1]] == [0, len(text)]
    assert all(before[1] == after[0] and before[0] < before[1] for before, after in pairwise(listed))
    assert max(stop - start for start, stop, _ in listed) <= 2 * (800 if "code" in kind else 400)
    return [(text[start:stop], part) for start, stop, part in listed]


def test_a_text_is_cut_before_headings():
    texts = parts("".join(SECTIONS))
    assert len(texts) > 10
    assert all(text.startswith("## Section") and kind == "markdown" for text, kind in texts)
    assert parts("short") == [("short", "markdown")]


def test_no_cut_lies_in_a_fence_that_is_no_longer_than_a_stretch():
    text = "".join(section + CODE * 3 for section in SECTIONS)
    assert all(part.count("```") % 2 == 0 and not part.startswith("# a comment") for part, _ in parts(text))


def test_what_is_left_of_a_long_fence_is_plain_text():
    text = "Words.\n\n```\n" + "# a comment\n\nvalue = 1\n" * 100 + "```\n\n# Heading\n\n" + "Words. " * 200
    kinds = [kind for _, kind in parts(text)]
    assert kinds[:2] == ["markdown", "text"]
    assert kinds[-1] == "markdown"
    assert {name for place in passages(text) for name in place.headings} == {"Heading"}
    assert {kind for _, kind in parts("```\n" + "a\n" * 2000)[1:]} == {"text"}, "a fence that never ends"


@pytest.mark.parametrize("part", ODD)
@pytest.mark.parametrize("kind", ["markdown", "text", "rst", "code:python"])
def test_any_text_is_covered(part, kind):
    text = part * (5000 // len(part)) + "end"
    parts(text, kind)
    covered = "".join(text[place.start : place.end] for place in passages(text, kind))
    assert "".join(covered.split()) == "".join(text.split())


def test_headings_go_on_from_stretch_to_stretch(monkeypatch):
    text = "# Book\n\n" + "".join(SECTIONS)
    places = passages(text)
    assert all(place.headings[:1] == ("Book",) for place in places)
    assert [place.number for place in places] == list(range(len(places)))
    assert all(text[: place.start].count("\n") + 1 == place.first_line for place in places)
    monkeypatch.setattr(module, "STRETCH", 10**6)
    whole = {(place.start, place.end) for place in passages(text)}
    assert len(whole & {(place.start, place.end) for place in places}) > 0.7 * len(whole)


def test_many_small_blocks_are_joined_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(module, "STRETCH", 2**15)
    text = "".join(f"{number}\n\n" for number in range(20_000))
    texts = [text[place.start : place.end] for place in passages(text, "text", 320)]
    assert 200 < max(estimate_tokens(texts)) <= 320
    assert "\n".join(texts).split() == text.split()
