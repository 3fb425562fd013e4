"""Marks of a passage: a sentence with what it announces, one row of a table, or the line of an identifier.

"price of LH-1004" over a table: the best sentence by its vector is a run of rows, often the header's. The row is marked
that has the question's identifier, else most of its words, and only words of that row are bold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palmette.encoder.sentences.splitting import split_sentences
from palmette.reader.blocks import SHORTEST_ANSWER, complete
from palmette.reader.rows import identifiers_of
from palmette.types import LINE_END, Highlights

Span = tuple[int, int]
WORDS_MARKED = 60
"""Words of a mark with its neighbours."""
_LINE = re.compile(r"[^\r\n]+")
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_INDENTED = re.compile(r"\n[ \t]*\n[ \t]+\S")
_RULE = re.compile(r"[\s|:+=-]*")


def highlight(content: str, question: str, sentence: Span | None, words: Sequence[Span], first_line: int) -> Highlights:
    """Choose what is marked, what stands around it, and which words are bold.

    Args:
        content: The passage.
        question: The query's text; empty where it has none.
        sentence: The best sentence by its vector; without one nothing but words is marked.
        words: The query's words in the content.
        first_line: Line of the document that the passage begins in.
    """
    if sentence is None:
        return Highlights(None, words)
    lines = [match.span() for match in _LINE.finditer(content) if match[0].strip()]
    tables = _tables(content, lines)
    # 1. Lines that have an identifier of the question as a whole; of several, the one with most of its words.
    identifiers = identifiers_of(question)
    places = [match.start() for match in identifiers.finditer(content)] if identifiers else []
    named = [line for line in lines if any(line[0] <= at < line[1] for at in places)]
    rows, mark = _rows_at(tables, sentence), sentence
    if named:
        line = max(named, key=lambda line: _distinct(content, line, words))
        at = next(place for place in places if line[0] <= place < line[1])
        in_table = any(line in table for table in tables)
        code = content[line[0]] in " \t" or content.count("```", 0, line[0]) % 2 == 1
        sentences = split_sentences(content, SHORTEST_ANSWER)
        mark = line if in_table or code else next((one for one in sentences if one[0] <= at < one[1]), line)
        rows = _rows_at(tables, mark)
    # 2. In a table one row; its header, and the rule below it, win nothing.
    elif len(rows) > 1:
        head = _RULE.fullmatch(content, *rows[1]) is not None  # none where the passage goes on with a table
        inside = [row for row in rows[head:] if not _RULE.fullmatch(content, *row)]
        mark = max(inside or rows, key=lambda row: (_distinct(content, row, words), row[0] < sentence[1], -row[0]))
    # 3. Of short blocks that were read as one sentence, the one with most words of the question; and the block that
    #    it announces, as far as it is short enough.
    else:
        mark = part = _best_block(content, sentence, words)
        mark = complete(content, *part)
        mark = mark if _short(content, mark) else part
    around = _with_neighbours(content, mark, rows)
    bold = [word for word in words if mark[0] <= word[0] and word[1] <= mark[1]] if rows or named else words
    return Highlights(mark, bold, around, first_line + len(LINE_END.findall(content, 0, mark[0])))


def _best_block(content: str, sentence: Span, words: Sequence[Span]) -> Span:
    """Return the block of a sentence that has more of the query's words than any other; else all of it.

    Short blocks are read as one sentence, be they slides, cells of a notebook, or a heading with its paragraph.
    Parts of code are not blocks: what is indented below a blank line belongs to what is above it.
    """
    blocks = [match.span() for match in _PARAGRAPH.finditer(content, *sentence)]
    if len(blocks) < 2 or "```" in content[slice(*sentence)] or _INDENTED.search(content, *sentence):
        return sentence
    ranked = sorted(blocks, key=lambda block: -_distinct(content, block, words))
    first, second = (_distinct(content, block, words) for block in ranked[:2])
    title = "\n" not in content[slice(*ranked[0])].strip() and content[ranked[0][1] - 1] not in ".!?:;"
    return ranked[0] if first > second and not title else sentence


def _tables(content: str, lines: Sequence[Span]) -> list[list[Span]]:
    """Return the rows of each table: lines that begin with a bar."""
    tables: list[list[Span]] = []
    end = -1
    for start, stop in lines:
        if content[start:stop].lstrip().startswith("|"):
            if end < 0 or len(LINE_END.findall(content, end, start)) > 1:
                tables.append([])
            tables[-1].append((start, stop))
            end = stop
        else:
            end = -1
    return tables


def _rows_at(tables: Sequence[Sequence[Span]], span: Span) -> Sequence[Span]:
    """Return the rows of the table that a span lies in, mostly."""
    for rows in tables:
        overlap = min(span[1], rows[-1][1]) - max(span[0], rows[0][0])
        if 2 * overlap > span[1] - span[0]:
            return rows
    return ()


def _distinct(content: str, line: Span, words: Sequence[Span]) -> int:
    """Count the different words of the query that a line has."""
    return len({content[a:b].casefold() for a, b in words if line[0] <= a and b <= line[1]})


def _short(content: str, span: Span) -> bool:
    return len(content[slice(*span)].split()) <= WORDS_MARKED


def _with_neighbours(content: str, mark: Span, rows: Sequence[Span]) -> Span:
    """Add the sentence after a mark and the one before it, or a table's rows from the header on, where they fit."""
    start, end = mark
    sentences = split_sentences(content, SHORTEST_ANSWER)
    for one in () if rows else sentences:  # the rest of a sentence that the mark is a part of
        whole = min(start, one[0]), max(end, one[1])
        if one[0] < mark[1] and mark[0] < one[1] and _short(content, whole):
            start, end = whole
    after = [] if rows else [one[1] for one in sentences if one[0] >= end]
    before = [rows[0][0]] if rows else [one[0] for one in sentences if one[1] <= start][::-1]
    # One after it and one before it in turn; where one does not fit, nothing beyond it comes along.
    for step in range(max(len(after), len(before))):
        if step < len(after):
            fits = _short(content, (start, after[step]))
            end, after = (after[step], after) if fits else (end, [])
        if step < len(before):
            fits = _short(content, (before[step], end))
            start, before = (before[step], before) if fits else (start, [])
        if not after and not before:
            break
    return start, end
