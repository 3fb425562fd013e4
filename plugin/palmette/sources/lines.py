"""Lines and blocks of a text, by their characters."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from palmette.types import LINE_END


@dataclass
class TextBlock:
    """Characters ``start`` to ``end`` of a text, and the blocks inside."""

    start: int
    end: int
    kind: str
    """``heading``, ``paragraph``, ``item``, ``code``, ``table``, ``definition`` …"""
    level: int = 0
    """Of a heading or a definition: 1 for the outermost."""
    name: str = ""
    """Of a heading or a definition: its words without markup."""
    inside: list[TextBlock] = field(default_factory=list)

    def shift(self, characters: int) -> None:
        """Move the block and those inside it."""
        self.start, self.end = self.start + characters, self.end + characters
        for block in self.inside:
            block.shift(characters)


class Lines:
    """The lines of a text by number, from 0."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = array("i", [0])  # a list would take eight times the room
        self.starts.extend(match.end() for match in LINE_END.finditer(text))
        if len(self.starts) > 1 and self.starts[-1] == len(text):
            self.starts.pop()

    def __len__(self) -> int:
        return len(self.starts)

    def start(self, number: int) -> int:
        """Return the first character of a line, or the end of the text after the last line."""
        return self.starts[number] if number < len(self.starts) else len(self.text)

    def at(self, place: int) -> int:
        """Return the number of the line that holds a character."""
        return bisect_right(self.starts, place) - 1

    def __getitem__(self, number: int) -> str:
        return self.text[self.start(number) : self.start(number + 1)]

    def blank(self, first: int, last: int) -> bool:
        """Tell whether lines ``first`` to ``last``, the last excluded, hold blanks only."""
        return not self.text[self.start(first) : self.start(last)].strip()


def fill(blocks: Sequence[TextBlock], start: int, end: int) -> list[TextBlock]:
    """Let each block end where the next one begins, so that nothing between them is lost."""
    filled = list(blocks)
    places = [start, *(block.start for block in filled[1:]), end]
    for block, (begin, stop) in zip(filled, pairwise(places), strict=False):
        first = last = block
        first.start, last.end = begin, stop
        while first.inside:
            first = first.inside[0]
            first.start = begin
        while last.inside:
            last = last.inside[-1]
            last.end = stop
    return filled


def runs_of_lines(lines: Lines, first: int, last: int) -> list[TextBlock]:
    """Return the runs of lines between blank lines."""
    starts = [n for n in range(first, last) if not lines.blank(n, n + 1) and (n == first or lines.blank(n - 1, n))]
    return [TextBlock(lines.start(n), lines.start(n), "paragraph") for n in starts]


def indent_of(line: str) -> int:
    """Return the number of blanks before a line."""
    return len(line) - len(line.lstrip())
