"""The measures of the passages benchmark, against what they are defined as; its questions have evidence."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

import passages
from palmette import FakeEncoder
from palmette.sources.convert import SourceText

TEXT = "# A\n\none two three\n\n# B\n\nfour five six seven\n"


def manual() -> passages.Manual:
    return passages.Manual({"a.md": SourceText(TEXT, "markdown"), "b.md": SourceText("two\n", "markdown")})


def test_evidence_stands_in_its_section_in_its_file_or_anywhere() -> None:
    made = manual()
    made.ask({"text": "q", "gold": [{"file": "a.md", "heading": "B"}], "evidence": ["FIVE", "two"]})
    made.ask({"text": "q", "file": "b.md", "evidence": ["two"]})
    made.ask({"text": "q", "evidence": ["two"]})
    at = TEXT.index("two")
    assert made.evidence[0] == [("a.md", TEXT.index("five"), TEXT.index("five") + 4)]
    assert made.evidence[1:] == [[("b.md", 0, 3)], [("a.md", at, at + 3), ("b.md", 0, 3)]]
    with pytest.raises(AssertionError, match="unasked"):
        made.ask({"text": "unasked", "evidence": ["nowhere"]})


def test_whole_passages_count_as_long_as_they_fit() -> None:
    spans = [("b.md", 0, 4), ("a.md", 5, 19), ("a.md", 25, 45)]
    assert passages.cut(manual(), spans, 4) == spans[:2]
    assert passages.cut(manual(), spans[1:], 2) == [("a.md", 5, 12)]
    assert passages.covered([("a.md", 5, 13)], spans) == 1
    assert passages.covered([("a.md", 0, 10), ("b.md", 2, 6)], spans) == 0.5


def test_a_search_gives_passages_and_the_cosines_of_their_sentences() -> None:
    made = manual()
    made.ask({"text": "five six", "evidence": ["five six"]})
    for way in passages.WAYS:
        count, answers = passages.search(made, 8, way, FakeEncoder(16))
        assert count == 3
        figures = passages.judge(made, answers)
        assert figures["mrr"] == figures["excerpts 300"] == 1, way
        for found in answers[0]:
            text = made.files[found.file].text
            for start, end in found.candidate.sentences:
                assert found.passage.start <= start < end <= found.passage.end
                assert text[start:end].strip()


def test_the_questions_have_evidence_in_what_lies_on_every_machine() -> None:
    made = passages.load("python", argparse.Namespace(data=Path("gone"), npm=None))
    assert made is not None
    assert len(made.questions) == 40
    assert passages.load("npm", argparse.Namespace(data=Path("gone"), npm=None)) is None
    lines = (passages.HERE / "passages_npm.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["text"] for line in lines}) == 40
