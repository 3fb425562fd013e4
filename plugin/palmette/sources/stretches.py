"""Cut a long text into stretches, so that the blocks of few characters are in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from palmette.sources.nested import STAMPED
from palmette.types import LINE_END

STRETCH = 1 << 15
"""Characters of a stretch of prose, at least; twice as many at most."""
CODE_STRETCH = 1 << 17
"""Characters of a stretch of source code, whose definitions are longer."""
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\r\n]*)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_PARAGRAPH = re.compile(r"(?:\r\n|\r|\n)[^\S\r\n]*(?:\r\n|\r|\n)(?!---|\+\+\+)(?=\S)")
"""A blank line before one that is not indented, and begins no front matter."""
_ENTRIES = [
    re.compile(rf"^(?: {{0,{most}}}|\t{{0,{most // 4}}})(?=[\w\"'\[{{-])", re.MULTILINE) for most in (0, 2, 4, 8)
]
"""Lines of configuration, the outermost first."""


def stretches(text: str, kind: str) -> Iterator[tuple[int, int, str]]:
    """Yield the first character of each stretch, the one after its last, and the kind of its blocks.

    A short text is one stretch. A long one is cut before a heading of Markdown, an outer entry of configuration, a
    record of a log, else before a paragraph, else at a line, else anywhere. What is left of a fence that is longer than
    a stretch has the blocks of plain text.
    """
    least = CODE_STRETCH if kind.startswith(("code", "text:config")) else STRETCH
    patterns = {"text:config": _ENTRIES, "text:log": [STAMPED, _PARAGRAPH]}.get(kind, [_PARAGRAPH])
    fenced = kind.startswith(("markdown", "mdx"))
    start, fence = 0, ""  # the marks that opened the fence in which a stretch begins
    while start < len(text):
        stop = min(len(text), start + 2 * least)
        part = "text" if fence else kind
        fences = list(_fences(text, start, stop, fence)) if fenced else []
        if fence and fences[0][1] < stop:
            stop, fence = fences[0][1], ""
        elif stop < len(text):
            stop = _cut(text, start + least, stop, [_HEADING, _PARAGRAPH] if fenced else patterns, fences)
            fence = next((marks for first, end, marks in fences if first < stop < end), "")
        yield start, stop, part
        start = stop


def _fences(text: str, start: int, stop: int, fence: str) -> Iterator[tuple[int, int, str]]:
    """Yield first and last character, and marks, of the fences from ``start`` on; an open one ends after ``stop``."""
    begin = start
    for match in _FENCE.finditer(text, start, stop):
        marks, words = match[1], match[2]
        if not fence:
            begin, fence = match.start(), marks
        elif marks.startswith(fence) and not words.strip():
            yield begin, match.end(), fence
            fence = ""
    if fence:
        yield begin, len(text) + 1, fence


def _cut(text: str, low: int, high: int, patterns: list[re.Pattern[str]], fences: list[tuple[int, int, str]]) -> int:
    """Return the best place for a cut from ``low`` to ``high``: outside of fences at the first match of a pattern."""
    for pattern in patterns:
        inside = iter(fences)
        fence = next(inside, None)
        for match in pattern.finditer(text, low, high):
            place = match.end() if pattern is _PARAGRAPH else match.start()
            while fence is not None and fence[1] <= place:
                fence = next(inside, None)
            if low < place < high and (fence is None or place <= fence[0]):
                return place
    line = LINE_END.search(text, low, high - 1)
    return line.end() if line else high
