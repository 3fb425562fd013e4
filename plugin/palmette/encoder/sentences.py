"""Texts to sentences: spans of characters, and the vectors that an encoder gives for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

SHORTEST = 12
"""Words of the shortest sentence; shorter ones join a neighbour."""
LONGEST = 60
"""Words of the parts into which much longer sentences are cut."""
_CODE_SHORTEST = 30  # words of a run of code before a blank line may end it

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
_DEFINITION = re.compile(
    r"^[^\S\n]*(?:@\w|(?:(?:async|export|default|pub|public|private|protected|static|final|abstract|inline)\s+)*"
    r"(?:def|class|fn|func|function|interface|struct|enum|trait|impl|namespace)\s|"
    r"(?<![^\n])[A-Za-z_][\w *<>&:~]*\([^;\n]*\)[^;\n]*\{$)",
    re.MULTILINE,
)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_CLAUSE = re.compile(r"[,;:،、，；：]\s*|\s[-–—]\s")
_LINE, _GAP = re.compile(r"\n"), re.compile(r"\s+")

_ALWAYS = "。！？｡।॥۔؟։።፧။។"
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st mt vs cf ca al approx dept gen col sgt capt lt hon gov sen rep rev jr sr messrs mme mlle "
    "jan feb mar apr jun jul aug sep sept oct nov dec resp incl excl esp ie eg viz bzw vgl ggf evtl sog bspw "
    "sra srta dña ud uds pág núm art env ing".split()
)
_BEFORE_NUMBERS = frozenset("no nr nos vol p pp fig figs eq eqs sec ch ref refs tab abs bd n º".split())


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of N texts and their vectors; text i has rows ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
        vectors: [S, d] int8; times its scale, each has unit length.
        scales: [S] float32.
        spans: [S, 2] int32, the first character and the one after the last.
        starts: [N + 1] int64.
    """

    vectors: NDArray[np.int8]
    scales: NDArray[np.float32]
    spans: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.starts) - 1

    def floats(self) -> NDArray[np.float32]:
        """Return unit vectors [S, d]."""
        return self.vectors * self.scales[:, None]

    @classmethod
    def of(
        cls, rows: NDArray[np.floating | np.int8], spans: NDArray[np.int32], starts: NDArray[np.int64]
    ) -> Self:
        """Round vectors of any length to int8, unless they are, and scale them to unit length."""
        vectors = rows if rows.dtype == np.int8 else quantise(rows)
        squares = np.einsum("sd,sd->s", vectors, vectors, dtype=np.int32)
        return cls(vectors, (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32), spans, starts)

    def parts(self) -> list[bytes]:
        """Return each text's spans and vectors as bytes."""
        ends = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [self.spans[a:b].tobytes() + self.vectors[a:b].tobytes() for a, b in ends]


def whole_texts(texts: Sequence[str], pooled: NDArray[np.float32]) -> Sentences:
    """Return each text as its only sentence, with its own vector; a blank one has none."""
    spans = [(len(text) - len(text.lstrip()), len(text.rstrip())) for text in texts if text.strip()]
    kept = np.array([bool(text.strip()) for text in texts], np.bool_)
    return Sentences.of(pooled[kept], np.array(spans, np.int32).reshape(-1, 2), np.append(0, np.cumsum(kept)))


def quantise(rows: NDArray[np.floating]) -> NDArray[np.int8]:
    """Round rows [S, d] of any length to int8, the largest value of each to ±127."""
    most = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    return np.rint(rows * (127 / np.where(most > 0, most, 1))).astype(np.int8)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Split a text into sentences: spans in order, which cover all characters but blanks.

    Prose ends at sentence marks of any script, at items of lists and at rows of tables; code at definitions and blank
    lines. Headings go with what follows. Sentences of less than a dozen words join a neighbour, and much longer ones
    than sixty are cut at commas, lines or words.
    """
    wide, lower = not text.isascii() and _WIDE.search(text) is not None, text.islower()
    found: list[tuple[int, int, bool]] = []
    begin, end, words, mine, was_code = (
        -1,
        0,
        0,
        0,
        False,
    )  # a sentence not yet complete, pieces before its block

    def close(least: int) -> int:
        """End the sentence at the end of a block, where it is long enough; returns the next one's begin, or -1."""
        ends = text[end - 1] in ".!?…\"'”’»)" or text[end - 1] in _ALWAYS
        if words >= least:
            found.append((begin, end, was_code))
        elif found and (len(found) > mine or (ends and not was_code and least)):
            found[-1] = (found[-1][0], end, found[-1][2])
        else:
            return begin
        return -1

    for block in _BLOCK.finditer(text):
        first, last = block.span()
        lines = block[0].split("\n")
        code = block[0].startswith(("```", "~~~")) or (
            len(lines) > 1
            and 2 * sum(len(line) < 200 and _CODE_LINE.match(line) is not None for line in lines) > len(lines)
        )
        if begin >= 0:
            inside = was_code and code and not _DEFINITION.match(text, first)
            begin = close(_CODE_SHORTEST if inside else SHORTEST)
        if begin < 0:
            begin, words = first, 0
        mine, was_code, at = len(found), code, first
        end = _end_of(text, last)
        longest = max(map(len, lines))
        breaks = _definitions(text, first, end) if code else _ends(text, first, end, lower, longest > 120)
        for stop, after in breaks:
            words += _count(text[at:stop], wide)
            at = after
            if words >= SHORTEST:
                found.append((begin, stop, code))
                begin, words = after, 0
        words += _count(text[at:end], wide)
    if begin >= 0 and close(SHORTEST) >= 0:
        if found:
            found[-1] = (found[-1][0], end, found[-1][2])
        else:
            found.append((begin, end, was_code))
    room = LONGEST if wide else 3 * LONGEST  # characters of what is certainly short enough
    spans: list[tuple[int, int]] = []
    for first, last, code in found:
        if last - first > room and _count(text[first:last], wide) > 1.5 * LONGEST:
            spans += _cut(text, first, last, code, wide)
        else:
            spans.append((first, last))
    return spans


def _count(piece: str, wide: bool) -> int:
    """Count words: between blanks, two characters of scripts without blanks, or sixteen of anything."""
    words = max(len(piece.split()), len(piece) >> 4)
    return words + len(_WIDE.findall(piece)) // 2 if wide else words


def _ends(text: str, first: int, last: int, lower: bool, unwrapped: bool) -> Iterator[tuple[int, int]]:
    """Yield where sentences of prose end, and where the next begin."""
    for match in _END.finditer(text, first, last):
        at, after = match.span()
        if after == last:
            return
        mark, following = text[at], text[after]
        if mark == "\n":
            line = text.rfind("\n", first, at) + 1 or first
            short = at - line < 40 and not following.islower() and text[at - 1] != ","
            if (short or unwrapped or _MARKED.match(text, after)) and text[line] != "#":
                yield _end_of(text, at), after
            continue
        if mark in _ALWAYS:
            yield at + len(match[0].rstrip()), after
            continue
        if not text[after - 1].isspace():  # a decimal, a domain, a file
            continue
        if not ("\n" in match[0] and _MARKED.match(text, after)):
            if (following.islower() and not lower) or following in ",;:)":
                continue
            if mark == "…" or text.startswith("..", at):
                continue
            if mark == "." and text[at + 1].isspace() and _is_abbreviated(text, first, at, following):
                continue
        yield at + len(match[0].rstrip()), after


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
    parts = -(-_count(text[first:last], wide) // LONGEST)
    while parts > 1:
        step = (last - first) // parts
        ideal, low, high = first + step, first + step // 2, min(last - 1, first + 3 * step // 2)
        for pattern in (_LINE if code else _CLAUSE, _GAP):
            places = [match.end() for match in pattern.finditer(text, low, high)]
            if places:
                ideal = min(places, key=lambda place: abs(place - ideal))
                break
        yield from _stripped(text, first, ideal)
        first, parts = ideal, parts - 1
    yield from _stripped(text, first, last)


def _stripped(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    piece = text[first:last]
    if piece.strip():
        yield first + len(piece) - len(piece.lstrip()), _end_of(text, last)
