"""Extends an answer to where it ends: the block that its sentence announces or belongs to, and what stands around it.

A sentence that ends in a colon announces what follows: code, a list, a table::

    To build, run:          the sentence ends in a colon, so the answer is the sentence with the code block
    ```sh
    make build
    ```

Manuals say what an option does in one paragraph and show it in the next. So the rest of the paragraph, up to two blocks
after it and before it come along, paragraphs by sentences, within a section and within 80 words: evidence for 26 of 40
questions in place of 15 (benchmarks/results/answers.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from palmette.encoder.sentences.splitting import WORDS_OF_A_PART, split_sentences
from palmette.sources.blocks import blocks_of
from palmette.sources.lines import TextBlock, indent_of

SHORTEST_ANSWER = 4
"""Words of the shortest sentence that is an answer, or is shown around one."""
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
_ENDED = re.compile(r"[.!?:…。！？｡।|][\s\"'”’»)\]*_`]*\Z")
_FINAL = re.compile(r"[.!?…。！？｡][\"'”’»)\]]*(?=\s|\Z)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_TABLE = re.compile(r"\s*\|")
_CODE = re.compile(r"\s*\.\. (?:code|code-block|sourcecode|parsed-literal|literalinclude)::")


def complete(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of an answer: those of its sentence, and of the block that makes it whole."""
    first, last = _whole_sentence(text, start, end)
    start, end = (first, last) if last - first <= LONGEST_ANSWER_BLOCK else (start, end)
    if _ANNOUNCES.search(text, start, end):
        block = _block_after(text, end)
        end = block if block - end <= LONGEST_ANSWER_BLOCK else end
    return start, end


def with_neighbours(text: str, start: int, end: int, kind: str = "markdown") -> tuple[int, int]:
    """Return the characters of an answer with the rest of its paragraph and the blocks around it, as far as they fit.

    A text of one paragraph has nothing to add, and what is under another heading stays out.
    """
    # 1. The blocks that the answer lies in; of one that is too long, those inside it.
    blocks = blocks_of(text, kind) if len(text) <= PARSED else []
    if sum(block.kind not in ("heading", "front matter") for block in blocks) < 2:
        return start, end

    def fits(start: int, end: int) -> bool:
        return len(text[start:end].split()) <= WORDS_AROUND_AN_ANSWER

    while True:
        own = [at for at, block in enumerate(blocks) if block.start < end and block.end > start]
        if len(own) != 1 or not blocks[own[0]].inside or fits(blocks[own[0]].start, blocks[own[0]].end):
            break
        blocks = blocks[own[0]].inside
    if not own:
        return start, end
    # 2. What may come along, none of it beyond a heading: up to two blocks after it and before it.
    walls = [-1, *(at for at, block in enumerate(blocks) if block.kind in ("heading", "front matter")), len(blocks)]
    above, below = max(at for at in walls if at < own[0]), min(at for at in walls if at > own[-1])
    near = range(max(above + 1, own[0] - BLOCKS_BEFORE), min(below, own[-1] + 1 + BLOCKS_AFTER))
    units = [unit for at in near for unit in _units(text, blocks[at], at in own)]
    # 3. As much of it as fits, what follows first.
    for first, last in units:
        stop = _trimmed(text, last)
        stop = _block_after(text, stop) if _ANNOUNCES.search(text, first, stop) else stop
        if stop > end and not fits(start, stop):
            break
        end = max(end, stop)
    for begin, _ in reversed(units):
        if begin < start and not fits(begin, end):
            break
        start = min(start, begin)
    return start, end


def _units(text: str, block: TextBlock, own: bool) -> list[tuple[int, int]]:
    """Return what of a block may come along: sentences of an answer's own and of paragraphs, others as a whole."""
    if not own and (block.kind != "paragraph" or block.inside):
        return [(block.start, block.end)]
    sentences = split_sentences(text[block.start : block.end], SHORTEST_ANSWER)
    return [(block.start + first, block.start + last) for first, last in sentences]


def trimmed(text: str, labels: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return characters without blanks and labels at either end; no characters where there is nothing else."""
    begun = None
    while begun != (start, end):
        begun = (start, end)
        start = next((last for first, last in labels if first <= start < last), start)
        end = next((first for first, last in labels if first < end <= last), end)
        end = max(start, len(text[:end].rstrip()))
        start += len(text[start:end]) - len(text[start:end].lstrip())
    return start, end


def _whole_sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of a sentence that was cut in its middle, as those of ninety words are."""
    cuts = list[tuple[int, int, int]]()  # first characters of a part and of the next one, and the sentence's last
    for (first, last), (begin, _) in pairwise(split_sentences(text, SHORTEST_ANSWER)):
        paragraph = text.find("\n\n", last)
        mark = _FINAL.search(text, begin, paragraph if paragraph >= 0 else len(text))
        if mark and not _ENDED.search(text, first, last) and len(text[first:last].split()) >= WORDS_OF_A_PART // 2:
            cuts.append((first, begin, mark.end()))
    for first, begin, stop in cuts:
        end = max(end, stop) if first < end <= begin else end
    for first, begin, stop in reversed(cuts):
        start = first if begin <= start < stop else start
    return start, end


def _block_after(text: str, end: int) -> int:
    """Return the end of the code, list or table that follows, or ``end`` where something else does."""
    newline = text.find("\n", end)
    if newline < 0:
        return end
    own = indent_of(text[text.rfind("\n", 0, end) + 1 : end])
    code = own + (2 if text.endswith("::", 0, end) else 4)  # where code without marks is indented: after "::", or not
    kind: re.Pattern[str] | None = None  # of the list, table or code whose lines are read
    fence, stop = "", end  # the marks of the code that is open; the end of what belongs to the block
    after = newline + 1
    for line in text[after:].splitlines(keepends=True):
        after += len(line)
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
            indented = _CODE if mark is None and indent_of(line) >= code else None
            kind = next((pattern for pattern in (_ITEM, _TABLE, _CODE) if pattern.match(line)), indented)
            if mark is None and kind is None:
                return end
        # 3. Further lines of its kind belong to it, and indented ones below an item; any other ends it.
        elif not (kind.match(line) or (kind is not _TABLE and indent_of(line) >= own + 2)):
            break
        fence, stop = mark[1] if mark else "", after
    return _trimmed(text, stop)


def _trimmed(text: str, end: int) -> int:
    return len(text[:end].rstrip())
