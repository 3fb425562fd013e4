"""Long Markdown and text files, cut where their author did: encoders read the first few hundred words and no more.

Neighbouring sections stay together while they are short, so that a short file is one document; a section that is too
long is cut between paragraphs, a paragraph between sentences. A section keeps the title of its file in its heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["WORDS", "pieces"]

WORDS = 180
"""Words of a piece at most: the 256 tokens that small encoders read."""

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^(#{1,6})[ \t]+(.+?)[ \t#]*$")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?…。！？])\s+|\n")


def pieces(text: str) -> list[str]:
    """The pieces of a file, in order; one of a short file, which is the file as it is."""
    if len(text.split()) <= WORDS:
        return [text]
    parts = [part for section in _titled(list(_sections(text))) for part in _short(section)]
    return list(_together(parts, "\n\n"))


def _sections(text: str) -> Iterator[str]:
    """From heading to heading, without those that stand in code."""
    lines: list[str] = []
    coded = False
    for line in text.splitlines():
        coded ^= bool(_FENCE.match(line))
        if _HEADING.match(line) and not coded and any(map(str.strip, lines)):
            yield "\n".join(lines).strip()
            lines = []
        lines.append(line)
    yield "\n".join(lines).strip()


def _titled(sections: list[str]) -> list[str]:
    """The title of the file, before the heading of every later section."""
    first = _HEADING.match(sections[0].partition("\n")[0])
    if first is None:
        return sections
    titled = [sections[0]]
    for section in sections[1:]:
        line, _, body = section.partition("\n")
        heading = _HEADING.match(line)
        assert heading is not None, "later sections begin where a heading stands"
        titled.append(f"{heading[1]} {first[2]}: {heading[2]}\n{body}")
    return titled


def _short(section: str) -> Iterator[str]:
    """A section as it is, or in paragraphs, or those in sentences."""
    if len(section.split()) <= WORDS:
        yield section
        return
    heading, _, body = (
        section.partition("\n") if _HEADING.match(section.partition("\n")[0]) else ("", "", section)
    )
    paragraphs = [part for part in _PARAGRAPH.split(body.strip()) if part.strip()]
    fine = [s for p in paragraphs for s in (_sentences(p) if len(p.split()) > WORDS else [p])]
    for part in list(_together(fine, "\n\n")) or [""]:  # of a long heading alone, itself
        yield f"{heading}\n\n{part}".strip()


def _sentences(paragraph: str) -> list[str]:
    """Runs of sentences that are short enough; what has no end is cut between words."""
    parts: list[str] = []
    for sentence in _SENTENCE.split(paragraph):
        words = sentence.split()
        parts += (
            [" ".join(words[at : at + WORDS]) for at in range(0, len(words), WORDS)]
            if len(words) > WORDS
            else [sentence]
        )
    return list(_together(parts, " "))


def _together(parts: Iterable[str], joint: str) -> Iterator[str]:
    """Neighbours joined while they are short enough."""
    held, words = "", 0
    for part in parts:
        more = len(part.split())
        if held and words + more > WORDS:
            yield held
            held, words = "", 0
        held, words = f"{held}{joint}{part}" if held else part, words + more
    if held:
        yield held
