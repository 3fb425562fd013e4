"""Splits texts into sentences: their first and last characters, in any script, in lists, tables and code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

VERSION = 1
"""Of what :func:`split_sentences` finds: sentences that another version found are not read from a cache."""
SHORTEST_SENTENCE = 12
"""Words of the shortest sentence; shorter ones join a neighbour."""
WORDS_OF_A_PART = 60
"""Words of the parts into which much longer sentences are cut."""
_CODE_SHORTEST = 30  # words of a run of code before a blank line may end it
_WRAPPED = 160
"""Characters of the longest line of a wrapped paragraph."""
_SHORT = 40
"""Characters of a line that was not full."""
# Runs of lines: a fenced block of code, or what stands between blank lines, fences and headings.
_BLOCK = re.compile(
    r"(?:```|~~~)[^`\n]*\n(?:.*\n)*?[^\S\n]*(?:```|~~~).*|"
    r"\S.*(?:\n[^\S\n]*(?!```|~~~|\#{1,6}\s)\S.*)*"
)
# A line break, or a run of marks that may end a sentence, quotes and brackets that close after it, and blanks.
_END = re.compile(
    r"[\n.!?…。！？｡।॥۔؟։።፧။។]"
    r"(?:(?<=\n)[^\S\n]*|(?<!\n)[.!?…。！？]*[\"'”’»)\]」』）》】*_]*\s*)"
)
_MARKED = re.compile(r"(?:[-*+•‣▪–]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})[.)])\s|\|")  # an item of a list, a row
_CODE_LINE = re.compile(
    r"\s*(?:@\w|//|/\*|\#include|import\s|from\s+\S+\s+import\s|return\b|(?:def|class|fn|func|function)\s)"
    r"|[^\n]*?(?:\s[-+*/|&]?=\s|=>|::|->|\w\(\)|[;{}\[(=\\,:)\]]\s*$)"
)
_MODIFIER = r"(?:async|export|default|pub|public|private|protected|internal|static|final|abstract|override|inline)\s+"
_DEFINITION = re.compile(
    rf"^[^\S\n]*(?:@\w|(?:{_MODIFIER})*(?:def|class|fn|func|function|interface|struct|enum|trait|impl|namespace)\s|"
    rf"(?:{_MODIFIER})+[\w<>\[\], ]{{1,60}}\(|"
    r"(?<![^\n])[A-Za-z_][\w *<>&:~]{0,99}\([^;\n]{0,200}\)[^;\n]{0,50}\{$)",
    re.MULTILINE,
)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_TOKEN = re.compile(rf"{_WIDE.pattern}|[^\W\d_]{{1,8}}|\d{{1,3}}|[^\w\s]|_")
_CLAUSE = re.compile(r"[,;:،、，；：]\s*|\s[-–—]\s")
_LINE = re.compile(r"\n")
_GAP = re.compile(r"\s+")
_ALWAYS = "。！？｡।॥۔؟։።፧။។"
_FINAL = ".!?…\"'”’»)" + _ALWAYS
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st mt vs cf ca al approx dept gen col sgt capt lt hon gov sen rep rev jr sr messrs mme mlle "
    "jan feb mar apr jun jul aug sep sept oct nov dec resp incl excl esp ie eg viz bzw vgl ggf evtl sog bspw "
    "sra srta dña ud uds pág núm art env ing".split()
)
_BEFORE_NUMBERS = frozenset("no nr nos vol p pp fig figs eq eqs sec ch ref refs tab abs bd n º".split())


def estimate_tokens(texts: Sequence[str]) -> list[int]:
    """Estimate the tokens of texts as most tokenizers cut them: a word in eight letters, a mark, a wide character."""
    return [len(_TOKEN.findall(text)) for text in texts]


def split_sentences(text: str, shortest: int = SHORTEST_SENTENCE) -> list[tuple[int, int]]:
    """Split a text into sentences: spans in order, which cover all characters but blanks.

    Prose ends at sentence marks of any script, at items of lists and at rows of tables; code at definitions and blank
    lines. Headings go with what follows. Sentences of less than ``shortest`` words join a neighbour; those much longer
    than sixty are cut at commas, at lines of code, or between words.
    """
    splitter, lower = _Splitter(text, shortest), text.islower()
    for block in _BLOCK.finditer(text):
        first, last = block.start(), _end_of(text, block.end())
        lines = block[0].split("\n")
        code = _is_code(lines)
        splitter.start_block(first, code)
        unwrapped = max(map(len, lines)) > _WRAPPED
        for stop, after in _definitions(text, first, last) if code else _ends(text, first, last, lower, unwrapped):
            splitter.add(stop, after)
        splitter.end_block(last)
    return splitter.spans()


def first_sentences(texts: Sequence[str]) -> list[str]:
    """Return the first sentence of each text that has one."""
    return [text[start:end] for text in texts for start, end in split_sentences(text)[:1]]


class _Splitter:
    """Sentences found so far, and one that may still be too short."""

    def __init__(self, text: str, shortest: int) -> None:
        self.text, self.shortest = text, shortest
        self.wide = not text.isascii() and _WIDE.search(text) is not None
        self.found: list[tuple[int, int, bool]] = []  # spans, and whether they are code
        self.begin: int | None = None
        self.end = self.at = self.words = self.before = 0
        self.code = False

    def start_block(self, first: int, code: bool) -> None:
        """Begin a block of prose or code; the sentence before it ends, where it is long enough."""
        inside = self.code and code and not _DEFINITION.match(self.text, first)
        self._close(_CODE_SHORTEST if inside else self.shortest)
        if self.begin is None:
            self.begin, self.words = first, 0
        self.before, self.code, self.at = len(self.found), code, first

    def add(self, stop: int, after: int) -> None:
        """End a part of the block at ``stop``; the next one begins at ``after``."""
        self.end_block(stop)
        self.at = after
        if self.words >= self.shortest and self.begin is not None:
            self.found.append((self.begin, stop, self.code))
            self.begin, self.words = after, 0

    def end_block(self, stop: int) -> None:
        """End the block's last part."""
        self.words += _count(self.text[self.at : stop], self.wide)
        self.end = stop

    def spans(self) -> list[tuple[int, int]]:
        """Return all sentences, long ones cut."""
        self._close(self.shortest)
        if self.begin is not None and self.found:
            self._join()
        elif self.begin is not None:
            self.found.append((self.begin, self.end, self.code))
        spans: list[tuple[int, int]] = []
        for first, last, code in self.found:
            spans += _cut(self.text, first, last, code, self.wide)
        return spans

    def _close(self, least: int) -> None:
        """End the sentence, or join it to the one before; a short block without a full stop goes with what follows."""
        if self.begin is None:
            return
        if self.words >= least:
            self.found.append((self.begin, self.end, self.code))
        elif len(self.found) > self.before or (self.found and not self.code and self.text[self.end - 1] in _FINAL):
            self._join()
        else:
            return
        self.begin = None

    def _join(self) -> None:
        first, _, code = self.found[-1]
        self.found[-1] = (first, self.end, code)


def _count(piece: str, wide: bool) -> int:
    """Count words: between blanks, two characters of scripts without blanks, or sixteen of anything."""
    words = max(len(piece.split()), len(piece) >> 4)
    return words + len(_WIDE.findall(piece)) // 2 if wide else words


def _is_code(lines: Sequence[str]) -> bool:
    """Tell whether a block is fenced, or most of its lines look like code."""
    if lines[0].startswith(("```", "~~~")):
        return True
    looks = sum(len(line) < 200 and _CODE_LINE.match(line) is not None for line in lines)
    return len(lines) > 1 and 2 * looks > len(lines)


def _ends(text: str, first: int, last: int, lower: bool, unwrapped: bool) -> Iterator[tuple[int, int]]:
    """Yield where sentences of prose end, and where the next begin."""
    for match in _END.finditer(text, first, last):
        at, after = match.span()
        if after == last:
            return
        mark = text[at]
        if mark in _ALWAYS:
            ended = True
        elif mark == "\n":
            ended = _ends_line(text, first, at, after, unwrapped)
        elif not text[after - 1].isspace():  # a decimal, a domain, a file
            ended = False
        elif "\n" in match[0] and _MARKED.match(text, after):
            ended = True
        else:
            following = text[after]
            inside = (following.islower() and not lower) or following in ",;:)"
            inside = inside or mark == "…" or text.startswith("..", at)
            single = mark == "." and text[at + 1].isspace()
            ended = not inside and not (single and _is_abbreviated(text, first, at, following))
        if ended:
            yield _end_of(text, after), after


def _ends_line(text: str, first: int, at: int, after: int, unwrapped: bool) -> bool:
    """Tell whether a line break within a block ends a sentence: before an item or row, or after a short line."""
    line = text.rfind("\n", first, at) + 1 or first
    if text[line] == "#":  # a heading
        return False
    short = at - line < _SHORT and not text[after].islower() and text[at - 1] != ","
    return short or unwrapped or _MARKED.match(text, after) is not None


def _is_abbreviated(text: str, first: int, dot: int, following: str) -> bool:
    """Tell whether a full stop belongs to the word before it: an abbreviation, an initial, the number of an item."""
    before = text[max(first, dot - 16) : dot]
    parts = before.split()
    word = parts[-1].lstrip("([\"'“‘«").lower() if parts and not before[-1].isspace() else ""
    if len(word) == 1 and word.isalpha():
        return True
    if word.isdigit():
        line = text.rfind("\n", first, dot) + 1 or first
        return len(word) <= 3 and text[line:dot].strip() == word
    if word in _BEFORE_NUMBERS:
        return following.isdigit()
    return word in _ABBREVIATIONS or ("." in word and all(len(part) <= 2 for part in word.split(".")))


def _definitions(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield where a definition begins within a block of code, and the end of what is before it."""
    for match in _DEFINITION.finditer(text, first + 1, last):
        line = match.start()
        begin = line + len(match[0]) - len(match[0].lstrip())
        yield _end_of(text, line), begin


def _end_of(text: str, at: int) -> int:
    """Return the place after the last character before ``at`` that is no blank."""
    while text[at - 1].isspace():
        at -= 1
    return at


def _cut(text: str, first: int, last: int, code: bool, wide: bool) -> Iterator[tuple[int, int]]:
    """Cut a long sentence into near equal parts: at lines of code, at commas, else between words, else anywhere."""
    words = _count(text[first:last], wide) if last - first > 3 * WORDS_OF_A_PART or wide else 0
    parts = -(-words // WORDS_OF_A_PART) if words > 1.5 * WORDS_OF_A_PART else 1
    places = [first]
    while parts > 1:
        begin = places[-1]
        step = (last - begin) // parts
        ideal, low, high = begin + step, begin + step // 2, min(last - 1, begin + 3 * step // 2)
        for pattern in (_LINE if code else _CLAUSE, _GAP):
            ends = [match.end() for match in pattern.finditer(text, low, high)]
            if ends:
                ideal = min(ends, key=lambda place: abs(place - ideal))
                break
        places.append(ideal)
        parts -= 1
    for begin, end in pairwise([*places, last]):
        piece = text[begin:end]
        if piece.strip():
            yield begin + len(piece) - len(piece.lstrip()), _end_of(text, end)
