"""Extends an answer to where it ends: the block that its sentence announces or belongs to, and what stands around it.

A sentence that ends in a colon announces what follows: code, a list, a table. One step of numbered steps is no answer
without the others::

    To build, run:          the sentence ends in a colon, so the answer is the sentence with the code block
    ```sh
    make build
    ```

Manuals say what an option does in one paragraph and show it in the next. So the rest of the paragraph, up to two blocks
after it and before it come along, within a section and within 80 words: evidence for 26 of 40 questions in place of 15
(benchmarks/results/answers.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from palmette.sources.blocks import blocks_of
from palmette.sources.lines import indent_of

LONGEST_ANSWER_BLOCK = 1500
"""Characters of a block that an answer takes along; longer ones stay out."""
WORDS_AROUND_AN_ANSWER = 80
"""Words of an answer with what stands around it."""
BLOCKS_AFTER = 2
"""Blocks after an answer that come along where they fit."""
BLOCKS_BEFORE = 2
"""Blocks before it."""
PARSED = 100_000
"""Characters of the longest text that is read as blocks."""
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
        return (start, block) if block - end <= LONGEST_ANSWER_BLOCK else (start, end)
    first, last = _steps_around(text, start, end)
    return (first, last) if last - first <= LONGEST_ANSWER_BLOCK else (start, end)


def with_neighbours(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of an answer with the rest of its paragraph and the blocks around it, as far as they fit.

    A text of one paragraph has nothing to add, and what is under another heading stays out.
    """
    # 1. The blocks that the answer lies in. A text of one paragraph, or one too long to parse, adds nothing.
    blocks = blocks_of(text, "markdown") if len(text) <= PARSED else []
    overlapping = [at for at, block in enumerate(blocks) if block.start < end and block.end > start]
    if sum(block.kind not in ("heading", "front matter") for block in blocks) < 2 or not overlapping:
        return start, end
    first, last = overlapping[0], overlapping[-1]

    def fits(start: int, end: int) -> bool:
        return len(text[start:end].split()) <= WORDS_AROUND_AN_ANSWER

    # 2. The rest of the paragraph; where that does not fit, nothing else does.
    if not fits(start, blocks[last].end):
        return start, end
    end = max(end, _trimmed(text, blocks[last].end))
    # 3. Blocks after it, up to the next heading.
    for block in blocks[last + 1 : last + 1 + BLOCKS_AFTER]:
        if block.kind == "heading" or not fits(start, block.end):
            break
        end = _trimmed(text, block.end)
    # 4. Blocks before it, nearest first, where the answer opens its block: else words between would be left out.
    opens = not text[blocks[first].start : start].strip()
    for block in reversed(blocks[max(0, first - BLOCKS_BEFORE) : first] if opens else []):
        if block.kind in ("heading", "front matter") or not fits(block.start, end):
            break
        start = block.start + len(text[block.start : end]) - len(text[block.start : end].lstrip())
    return start, end


def _lines(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield lines from a position on: first character, the one after the last, and the text."""
    for line in text[start:].splitlines(keepends=True):
        yield start, start + len(line), line
        start += len(line)


def _block_after(text: str, end: int) -> int:
    """Return the end of the code, list, table or tabs that follow, or ``end`` where something else does."""
    newline = text.find("\n", end)
    if newline < 0:
        return end
    kind: re.Pattern[str] | None = None  # of the list, table or tabs whose lines are read
    fence, stop = "", end  # the marks of the code that is open; the end of what belongs to the block
    for _, after, line in _lines(text, newline + 1):
        mark = _FENCE.match(line)
        # 1. Inside code everything belongs, until its marks close it. Code alone is the whole block.
        if fence:
            stop = after
            if mark and mark[1].startswith(fence):
                fence = ""
                if kind is None:
                    return _trimmed(text, stop)
            continue
        if not line.strip():
            continue
        # 2. The first line says what the block is; a line of prose means that there is none.
        if kind is None:
            kind = next((pattern for pattern in (_TAB, _ITEM, _TABLE) if pattern.match(line)), None)
            if mark is None and kind is None:
                return end
        # 3. Further lines of its kind belong to it, and indented ones below an item; any other ends it.
        elif not (kind.match(line) or (kind is not _TABLE and indent_of(line) >= 2)):
            break
        fence, stop = mark[1] if mark else "", after
    return _trimmed(text, stop)


def _steps_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of the numbered steps that the sentence is one of, or those of the sentence."""
    run: list[tuple[int, int]] = []  # lines of the steps in view
    inside = False  # the sentence is in one of them
    # Numbered lines follow each other, with blank and indented ones between; the run with the sentence is kept.
    for first, after, line in _lines(text, 0):
        if _STEP.match(line) or (run and (not line.strip() or indent_of(line) >= 2)):
            run.append((first, after))
            inside = inside or first <= start < after
        elif inside:
            break
        else:
            run = []
    # One step alone has nothing to be completed by. From the first number on, without the indentation before it.
    steps = sum(1 for first, after in run if _STEP.match(text[first:after]))
    if not inside or steps < 2:
        return start, end
    first = run[0][0] + indent_of(text[run[0][0] : run[0][1]])
    return first, max(end, _trimmed(text, run[-1][1]))


def _trimmed(text: str, end: int) -> int:
    return len(text[:end].rstrip())
