"""Cut a text into passages: verbatim slices of whole blocks, as large as the encoder reads well.

1. The text is read as blocks, and blocks that are too long are taken apart, until each *piece* fits into a passage.
2. A cut before a piece has a cost: little before a heading, more between paragraphs, much below a heading.
3. Of all divisions into passages the one that costs least is found from left to right (dynamic programming)::

       cost(a … b) = 1 + ½ (empty share)² + cut before a + 1 for each section that begins inside
       least(b)    = min over a ≤ b of least(a − 1) + cost(a … b)

For example, with at most 350 tokens::

    # Setup              a heading and 200 tokens below it
    Download it …
    Then build it …      190 tokens; a cut before it costs .3
    # Use                a heading and 120 tokens below it; a cut before it costs .03, between the two 4
    Run it …

    Setup | build | Use      3 + .41 empty + .33 cuts             = 3.74
    Setup | build + Use      2 + .10 empty + .30 cut  + 1 joined  = 3.40, the cheapest
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from palmette.config import Config
from palmette.encoder.sentences.splitting import split_sentences
from palmette.sources.blocks import blocks_of
from palmette.sources.lines import Lines, TextBlock
from palmette.sources.nested import STAMPED, by_indentation
from palmette.types import LINE_END, Passage

CountTokens = Callable[[Sequence[str]], Sequence[int]]

_GAP = re.compile(r"(?:\r\n|\r|\n)[^\S\r\n]*(?:\r\n|\r|\n)\s*")
_WORD = re.compile(r"\S+\s*")
_JOINED = 1.0
"""What a passage costs more for each section that begins inside it; a passage costs 1."""
_BALANCE = 0.5
"""What an empty passage would cost more than a full one."""
_SECTION = 0.0
"""What a cut before a heading or a definition costs."""
_DEEPER = 0.03
"""What it costs more for each level further in."""
_BLOCK = 0.3
"""What a cut between two blocks of a section costs."""
_ANNOUNCED = 1.0
"""What a cut costs after a line that announces what follows (it ends with a colon, or opens a brace), and before what
goes on: a second block of code, a figure, the rest of a sentence."""
_NESTED = 0.1
_MOST_NESTED = 0.95
"""What a cut between entries costs more for each step further in, two of which are a level; and costs at most."""
_INSIDE = 2.0
"""What a cut inside a block costs that had to be taken apart."""
_BROKEN = 1.0
"""What it costs more in the middle of a sentence."""
_HEADED = 4.0
"""What a cut between a heading, or the first lines of a directive, and what it heads costs."""
_ROW = 3
"""What a token of a table counts as: rows are many small texts, and a passage of few is found by what one says."""
_COUNTED = 64
"""Characters for each token of the limit; longer blocks do not fit, and their tokens are not counted."""
_MANY = 4096
"""Pieces of a stretch of which small ones are joined."""
_SHARES = 16
"""Part of a passage that joined pieces have at most."""
_WHITE = re.compile(r"\s+")
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


class PassageOptions(Config):
    """How documents are cut into passages."""

    tokens: Annotated[int, Field(ge=1)] = 350
    """Tokens of a passage at most, as the encoder counts them."""


@dataclass
class _Piece:
    """A part of the text that a passage takes whole."""

    start: int
    end: int
    tokens: int
    """At least 1: a tokenizer may give none for marks, and a passage has so many pieces at most."""
    path: tuple[str, ...] | None
    """Headings above it; ``None`` for front matter, which is under whatever follows."""
    cost: float
    """Of a cut before the piece."""


def split(text: str, kind: str, options: PassageOptions, count_tokens: CountTokens) -> list[Passage]:
    """Cut a text into passages of at most ``options.tokens`` tokens.

    Every character but blanks is in exactly one passage. Blocks (paragraphs, fences, items of
    lists, definitions, rows) stay whole where they fit, tables where they fill a third; of all divisions the one that
    costs least is taken.

    Args:
        text: The document.
        kind: ``markdown``, ``code:python``, ``text`` …; others are read as paragraphs.
        options: Sizes.
        count_tokens: Number of tokens of each text.
    """
    if not text or text.isspace():
        return []
    lines, passages = Lines(text), list[Passage]()
    for pieces in _Cutter(text, kind, options.tokens, count_tokens).passages():
        # A passage runs from its first piece to its last.
        start, end = pieces[0].start, pieces[-1].end
        # Blank lines at both ends and blanks at the end stay out; the indentation of the first line stays in.
        verbatim = text[start:end]
        end = start + len(verbatim.rstrip())
        first = start + len(verbatim) - len(verbatim.lstrip())
        start = max(start, text.rfind("\n", start, first) + 1, text.rfind("\r", start, first) + 1)
        if start >= end:
            continue
        # Code is under the definitions where it begins; prose under the headings that all of it is under.
        paths = [piece.path for piece in pieces if piece.path is not None]
        path = paths[0] if paths and kind.startswith("code") else _common(paths)
        passages.append(Passage(start, end, path, lines.at(start) + 1, lines.at(end - 1) + 1))
    return [replace(place, number=number, count=len(passages)) for number, place in enumerate(passages)]


class _Cutter:
    """Takes blocks apart until each piece fits."""

    def __init__(self, text: str, kind: str, limit: int, count_tokens: CountTokens) -> None:
        self.text, self.kind, self.limit, self.count = text, kind, limit, count_tokens
        self.prose = not kind.startswith(("code", "text:config", "text:log"))
        self._headings: list[tuple[int, str]] = []
        self._adornments: list[str] = []

    def passages(self) -> Iterator[Sequence[_Piece]]:
        """Yield the pieces of each passage; those of the last one of a stretch may go on in the next stretch."""
        pieces: list[_Piece] = []
        for start, end, part in stretches(self.text, self.kind):
            # 1. Blocks of the stretch, with their places in the whole text; each becomes a piece or several.
            blocks = blocks_of(self.text[start:end], part, self._adornments)
            for block in blocks:
                block.shift(start)
            pieces += _few(list(self._pieces(blocks)), self.limit // _SHARES)
            # 2. The cheapest division. Its last passage waits: the next stretch may belong to it.
            runs = _runs(pieces, self.limit)
            yield from (pieces[first:stop] for first, stop in runs[:-1])
            pieces = pieces[runs[-1][0] :] if runs else []
        if pieces:
            yield pieces

    def _pieces(self, blocks: Sequence[TextBlock]) -> Iterator[_Piece]:
        """Yield the pieces of a stretch, in order."""
        before: TextBlock | None = None
        ahead = 0
        for block, tokens in zip(blocks, self._sizes(blocks), strict=True):
            if block.kind == "heading":  # it closes headings of its level and deeper ones
                above = [heading for heading in self._headings if heading[0] < block.level]
                self._headings = [*above, (block.level, block.name)]
            path = None if block.kind == "front matter" else tuple(name for _, name in self._headings)
            cost = self._cost(before, block)
            ahead = ahead if cost in (_ANNOUNCED, _HEADED) else 0
            yield from self._taken_apart(block, tokens, path, cost, ahead)
            before, ahead = block, ahead + tokens

    def _tokens(self, spans: Sequence[tuple[int, int]]) -> Sequence[int]:
        return [max(1, tokens) for tokens in self.count([self.text[start:end] for start, end in spans])]

    def _sizes(self, blocks: Sequence[TextBlock]) -> Sequence[int]:
        """Return the tokens of blocks; very long ones, which are taken apart in any case, are not counted."""
        most = _COUNTED * self.limit
        counts = iter(self._tokens([(b.start, b.end) for b in blocks if not b.inside or b.end - b.start <= most]))
        return [next(counts) if not b.inside or b.end - b.start <= most else most for b in blocks]

    def _cost(self, before: TextBlock | None, block: TextBlock) -> float:
        """Return what a cut between two blocks costs."""
        if before is not None and before.kind == "heading":
            return _HEADED
        if block.kind == "definition" and before is not None and self._ends(before, "{"):
            return _ANNOUNCED
        if block.kind in ("heading", "definition"):
            return _SECTION + _DEEPER * block.level
        if before is not None and before.kind == "directive":
            return _HEADED
        if block.kind == "part":
            return _INSIDE
        if block.kind == "entry":
            remarked = before is not None and before.kind == "remark"
            return _ANNOUNCED if remarked else min(_MOST_NESTED, _BLOCK + _NESTED * block.level)
        if before is not None and (self._ends(before, ":") or block.kind == before.kind == "code"):
            return _ANNOUNCED
        if block.kind == "callouts" or (block.kind == "paragraph" and self.prose and self._goes_on(block.start)):
            return _ANNOUNCED
        return _BLOCK

    def _goes_on(self, start: int) -> bool:
        """Tell whether a paragraph is a figure, or goes on with the sentence before it."""
        text = self.text[start : start + 80].lstrip()
        return text[:1].islower() or text.startswith(("\u2026", "...", "![", "image::")) or "\nimage::" in text

    def _ends(self, block: TextBlock, mark: str) -> bool:
        return self.text[block.start : block.end].rstrip().endswith(mark)

    def _taken_apart(
        self, block: TextBlock, tokens: int, path: tuple[str, ...] | None, cost: float, ahead: int, weight: int = 1
    ) -> Iterator[_Piece]:
        """Yield a block if it fits, else the blocks inside it, else parts of it.

        A list, table or entry has to fit below the ``ahead`` tokens that announce it: its first part stays with them.
        """
        if block.name and (block.kind == "definition" or (block.kind == "entry" and self.kind == "text:config")):
            path = (*(path or ()), block.name)
        weight = _ROW if block.kind == "table" else 1 if block.kind == "directive" else weight
        below = weight > 1 or (block.inside and block.kind in ("list", "entry", "group"))
        room = self.limit - ahead if below and ahead < self.limit else self.limit
        size, leaf = tokens * weight, not block.inside
        if size <= room or (tokens <= room and (leaf or size <= self.limit)):
            yield _Piece(block.start, block.end, min(size, room), path, cost)
        elif leaf and tokens <= self.limit:
            yield _Piece(block.start, block.end, min(size, self.limit), path, cost)
        elif inside := block.inside or (
            by_indentation(self.text, block.start, block.end)
            if block.kind in ("code", "html") or self.kind.startswith("code")
            else []
        ):
            before = None
            for one, number in zip(inside, self._sizes(inside), strict=True):
                cost = self._cost(before, one) if before else cost
                ahead = ahead if cost in (_ANNOUNCED, _HEADED) else 0
                yield from self._taken_apart(one, number, path, cost, ahead, weight)
                before, ahead = one, ahead + number * weight
        else:
            for start, end, number in self._fine(block.start, block.end, self.limit, int(weight > 1)):
                # No sentence, row or statement ends after a colon, or after a letter that a small one follows.
                end_before = self.text[max(0, start - 80) : start].rstrip()[-1:]
                broken = end_before == ":" or (end_before not in ".!?;)]}>|" and self.text[start : start + 1].islower())
                # A row that fills a third and more has a passage without other such rows, but with its head.
                size = number * weight if number * weight <= self.limit else max(number, self.limit // 2 + 1)
                yield _Piece(start, end, size, path, cost + _BROKEN * (broken and start > block.start))
                cost = _INSIDE

    def _fine(self, start: int, end: int, limit: int, depth: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield parts of at most ``limit`` tokens: cut at blank lines, lines, sentences, words, anywhere.

        A table is cut at its lines (``depth`` 1) even where all of it would fit.
        """
        text = self.text
        match depth:
            case 0:  # behind blank lines
                inner = [match.end() for match in _GAP.finditer(text, start, end)]
            case 1:
                inner = [match.end() for match in LINE_END.finditer(text, start, end)]
            case 2:
                inner = [start + first for first, _ in split_sentences(text[start:end])[1:]]
            case 3:
                inner = [match.start() for match in _WORD.finditer(text, start, end)]
            case _:  # a word of many tokens: halves, again and again
                inner = [(start + end) // 2]
        places = [start, *inner, end]
        spans = [(a, b) for a, b in pairwise(places) if a < b]
        for (a, b), tokens in zip(spans, self._tokens(spans), strict=True):
            if tokens <= limit or b - a == 1:
                yield a, b, tokens
            else:
                yield from self._fine(a, b, limit, depth + 1)


def above(title: str | None, headings: Sequence[str], text: str) -> str:
    """Return what stands above a passage, for the encoder to read before it: title and headings, each once.

    A heading that the passage begins with is left to the passage.
    """
    names = [title, *headings] if title else list(headings)
    names = [name for at, name in enumerate(names) if name and name not in names[:at]]
    first = _WHITE.sub(" ", text[:400].lstrip("#=~ \t\r\n"))
    if names and headings and first.startswith(names[-1]):
        names.pop()
    return " \u203a ".join(names)


def _few(pieces: list[_Piece], tokens: int) -> list[_Piece]:
    """Join small pieces of a stretch to their neighbours if there are very many, so that few divisions are compared."""
    if len(pieces) <= _MANY:
        return pieces
    joined: list[_Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before and before.path == piece.path and piece.cost >= _BLOCK and before.tokens + piece.tokens <= tokens:
            joined[-1] = replace(before, end=piece.end, tokens=before.tokens + piece.tokens)
        else:
            joined.append(piece)
    return joined


def _runs(pieces: Sequence[_Piece], limit: int) -> list[tuple[int, int]]:
    """Return the runs of pieces that are passages: the division whose cuts cost least."""
    # least[n]: cost of the best division of the first n pieces; came[n]: where its last passage begins.
    least, came = [0.0] + [float("inf")] * len(pieces), [0] * (len(pieces) + 1)
    for last in range(1, len(pieces) + 1):
        tokens, joined = 0, 0.0
        # The passage that ends here grows to the left until it is full; a piece alone always fits.
        for first in range(last - 1, -1, -1):
            tokens += pieces[first].tokens
            if tokens > limit and first < last - 1:
                break
            empty = max(0.0, 1 - tokens / limit)
            cost = least[first] + joined + 1 + _BALANCE * empty * empty + (pieces[first].cost if first else 0)
            if cost < least[last]:
                least[last], came[last] = cost, first
            joined += _JOINED * (pieces[first].cost < _BLOCK)  # grows past the beginning of a section
    # The way back from the end.
    runs, last = [], len(pieces)
    while last:
        runs.append((came[last], last))
        last = came[last]
    return runs[::-1]


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the headings that all pieces of a passage are under."""
    shared: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return tuple(shared)


# Stretches, so that the blocks of few characters are in memory at a time


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
