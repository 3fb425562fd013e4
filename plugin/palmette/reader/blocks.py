"""Extends an answer to the block that its sentence announces or belongs to.

A sentence that ends in a colon announces what follows: code, a list, a table. One step of numbered steps is no answer
without the others::

    To build, run:          the sentence ends in a colon, so the answer is the sentence with the code block
    ```sh
    make build
    ```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 1500
"""Characters of a block that an answer takes along; longer ones stay out."""
_ANNOUNCES = re.compile(r":[\s*_)\"']*\Z")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_STEP = re.compile(r"\s*\d{1,9}[.)]\s")
_TABLE = re.compile(r"\s*\|")
_TAB = re.compile(r"\s*===[!+]?\s+\S")


def complete(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of an answer: those of its sentence, and of the block that makes it whole."""
    if _ANNOUNCES.search(text, start, end):
        block = _block_after(text, end)
        return (start, block) if block - end <= LONGEST else (start, end)
    first, last = _steps_around(text, start, end)
    return (first, last) if last - first <= LONGEST else (start, end)


def _lines(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield lines from a position on: first character, the one after the last, and the text."""
    for line in text[start:].splitlines(keepends=True):
        yield start, start + len(line), line
        start += len(line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block_after(text: str, end: int) -> int:
    """Return the end of the code, list, table or tabs that follow, or ``end`` where something else does."""
    newline = text.find("\n", end)
    if newline < 0:
        return end
    kind: re.Pattern[str] | None = None
    fence, stop = "", end
    for _, after, line in _lines(text, newline + 1):
        mark = _FENCE.match(line)
        if fence:  # inside code
            stop = after
            if mark and mark[1].startswith(fence):
                fence = ""
                if kind is None:
                    return _trimmed(text, stop)
            continue
        if not line.strip():
            continue
        if kind is None:
            kind = next((pattern for pattern in (_TAB, _ITEM, _TABLE) if pattern.match(line)), None)
            if mark is None and kind is None:
                return end
        elif not (kind.match(line) or (kind is not _TABLE and _indent(line) >= 2)):
            break
        fence, stop = mark[1] if mark else "", after
    return _trimmed(text, stop)


def _steps_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of the numbered steps that the sentence is one of, or those of the sentence."""
    run: list[tuple[int, int]] = []  # lines of the steps in view
    inside = False
    for first, after, line in _lines(text, 0):
        if _STEP.match(line) or (run and (not line.strip() or _indent(line) >= 2)):
            run.append((first, after))
            inside = inside or first <= start < after
        elif inside:
            break
        else:
            run = []
    steps = sum(1 for first, after in run if _STEP.match(text[first:after]))
    if not inside or steps < 2:
        return start, end
    first = run[0][0] + _indent(text[run[0][0] : run[0][1]])
    return first, max(end, _trimmed(text, run[-1][1]))


def _trimmed(text: str, end: int) -> int:
    return len(text[:end].rstrip())
