"""AsciiDoc as blocks: titles with the anchors above them, delimited blocks, tables, lists, paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from palmette.sources.lines import Lines, TextBlock, fill, indent_of
from palmette.sources.nested import LONGEST

_TITLE = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*?)(?:[ \t]+\1)?\s*$")
_UNDERLINES = "=-~^+"
_FENCE = re.compile(r"(?:-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|--|`{3,}.*|[|,:!]={3,})\s*$")
_WITH_BLOCKS = re.compile(r"={4}|\*{4}|_{4}|--$")
_AHEAD = re.compile(r"\[[^\]\n]*(?:\[[^\]\n]*\])?[^\]\n]*\]\s*$|\.[^\s.].*$|//(?!/)|(?:ifdef|ifndef|ifeval)::")
"""A line that belongs to the block below: attributes, an anchor, a title, a remark, a condition."""
_ATTRIBUTE = re.compile(r":!?[\w-]+!?:(?:\s|$)")
_ITEM = re.compile(
    r"[ \t]*([*-]{1,5}|\.{1,5}|\d+\.|[a-z]\.|<(?:\d+|\.)>)[ \t]+\S|[ \t]*(?![/|])\S.*?(:{2,4}|;;)(?:\s|$)"
)
_MACRO = re.compile(r"[a-z]+::\S*\[.*\]\s*$")
_INLINE = re.compile(
    r"(?:link|xref|image|pass|footnote|icon|kbd|btn):+[^\s\[]*\[([^\]]*)\]|[*_`#]+(?=\w)|(?<=\w)[*_`#]+|\[\[.*?\]\]"
)
_DEEPEST = 6


def asciidoc_blocks(lines: Lines, first: int = 0, last: int | None = None, depth: int = 0) -> list[TextBlock]:
    """Return the outermost blocks of a text, or of some of its lines."""
    last = len(lines) if last is None else last
    blocks: list[TextBlock] = []
    ahead = None  # the first line of what belongs to the next block
    number = first
    while number < last:
        line = lines[number].rstrip()
        begin = number if ahead is None else ahead
        if not line or (line == "+" and depth):
            number += 1
            continue
        title = _title(lines, number, last) if not depth else None
        if title:
            # 1. A title, with the attributes of the document below the first one.
            rows, level, name = title
            number += rows
            while (
                number < last
                and not lines.blank(number, number + 1)
                and (level == 1 or _ATTRIBUTE.match(lines[number]))
            ):
                number += 1
            blocks.append(TextBlock(lines.start(begin), lines.start(number), "heading", level, name))
            ahead = None
            continue
        if line.startswith("endif::") and blocks and ahead is None:
            number += 1  # stays with the block above
            continue
        if _is_ahead(line) and not (line.startswith("[") and _ITEM.match(line)):
            # 2. What belongs to the block below, which may be parted from it by blank lines only where it is an anchor.
            ahead, number = begin, number + 1
            continue
        # 3. A block to its last line, with those that a "+" adds.
        stop, kind = _end(lines, number, last)
        block = TextBlock(lines.start(begin), lines.start(stop), kind)
        block.inside = _inside(lines, begin, number, stop, kind, depth)
        blocks.append(block)
        ahead, number = None, stop
    if ahead is not None:
        blocks.append(TextBlock(lines.start(ahead), lines.start(last), "paragraph"))
    return blocks


def _is_ahead(line: str) -> bool:
    return len(line) <= LONGEST and bool(_AHEAD.match(line))


def _title(lines: Lines, number: int, last: int) -> tuple[int, int, str] | None:
    """Return rows, level and words of a title: ``== Words``, or words above a line of marks as long as they are."""
    line = lines[number].rstrip()
    if len(line) > LONGEST:
        return None
    if match := _TITLE.match(line):
        return 1, len(match[1]), _words(match[2])
    under = lines[number + 1].rstrip() if number + 1 < last else ""
    alone = line[:1].isalnum() and (number == 0 or lines.blank(number - 1, number))
    marks = len(under) > 3 and under[0] in _UNDERLINES and under == under[0] * len(under)
    if alone and marks and abs(len(under) - len(line)) < 2:
        return 2, _UNDERLINES.index(under[0]) + 1, _words(line)
    return None


def _words(source: str) -> str:
    return " ".join(_INLINE.sub(lambda match: match[1] or "", source).split())


def _end(lines: Lines, number: int, last: int) -> tuple[int, str]:
    """Return the line after a block, and its kind."""
    line = lines[number].rstrip()
    if _FENCE.match(line):
        mark = "```" if line.startswith("```") else line
        for n in range(number + 1, last):
            if lines.text.startswith(mark, lines.start(n)) and lines[n].rstrip() == mark:
                table = len(mark) > 3 and mark[1:].strip("=") == "" and mark[0] in "|,:!"
                return n + 1, "table" if table else "group" if _WITH_BLOCKS.match(mark) else "code"
        return last, "paragraph"  # it never ends
    if item := _ITEM.match(line):
        return _end_of_list(lines, number, last), "callouts" if line.lstrip().startswith("<") and item[1] else "list"
    if _MACRO.match(line):
        return number + 1, "code" if line.startswith("include") else "paragraph"
    n = number + 1
    while n < last and not lines.blank(n, n + 1) and not _FENCE.match(lines[n]):
        n += 1
    return n, "code" if indent_of(lines[number]) else "paragraph"


def _end_of_list(lines: Lines, number: int, last: int) -> int:
    """Return the line after a list: what follows a blank line and is neither an item nor indented is none of it."""
    n, stop = number, number + 1
    while n < last:
        line = lines[n].rstrip()
        if line == "+" and n + 1 < last:  # it adds the next block
            n += 1
            while n < last and _is_ahead(lines[n]):
                n += 1
            n = stop = _end(lines, n, last)[0] if n < last else n
            continue
        blank = not line
        if not blank and n > number and lines.blank(n - 1, n):
            described = re.search(r"(?:::|;;)$", lines[stop - 1].rstrip())
            if _title(lines, n, last) or not (_ITEM.match(line) or indent_of(lines[n]) or described):
                break
        if not blank and _FENCE.match(line):
            break
        if not blank:
            stop = n + 1
        n += 1
    return stop


def _marks(lines: Lines, number: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the lines of items, those in delimited blocks left out, and their marks."""
    while number < stop:
        if _FENCE.match(lines[number]):
            number = _end(lines, number, stop)[0]
            continue
        if item := _ITEM.match(lines[number]):
            yield number, (item[1] or item[2]).strip("0123456789")
        number += 1


def _inside(lines: Lines, begin: int, number: int, stop: int, kind: str, depth: int) -> list[TextBlock]:
    """Return rows, items or blocks inside a block."""
    start, end, inner = lines.start(begin), lines.start(stop), list[TextBlock]()
    if kind in ("list", "callouts"):
        inner = _items(lines, begin, number, stop, depth)
    elif kind == "table":
        # Rows of several lines have blank lines between them. The first one stays with what is above it.
        rows = [n for n in range(number + 1, stop - 1) if "|" in lines[n][:8]]
        apart = [n for n in rows if lines.blank(n - 1, n)]
        rows = apart if len(apart) > 2 else rows
        inner = [TextBlock(lines.start(n), 0, "directive" if n == rows[0] else "row") for n in rows]
    elif kind == "group" and depth < _DEEPEST:
        inner = asciidoc_blocks(lines, number + 1, stop - 1, depth + 1)
    if inner and kind in ("table", "group"):
        inner.insert(0, TextBlock(start, start, "directive"))
    return fill(inner, start, end)


def _items(lines: Lines, begin: int, number: int, stop: int, depth: int) -> list[TextBlock]:
    """Return items with the mark of the first one, each with what belongs to it above, and the others below them."""
    marks = list(_marks(lines, number, stop))
    own = [n for n, mark in marks if mark == marks[0][1]]
    following = {n: at for at, (n, _) in enumerate(marks, 1)}
    starts = [begin]
    for n in own[1:]:
        while _is_ahead(lines[n - 1]):
            n -= 1
        starts.append(n)
    items = []
    for n, first, after in zip(own, starts, [*starts[1:], stop], strict=True):
        item = TextBlock(lines.start(first), lines.start(after), "item")
        at = following[n]
        below = marks[at][0] if at < len(marks) and marks[at][0] < after else after
        plus = next((m for m in range(n, below) if lines[m].rstrip() == "+"), after)
        inner: list[TextBlock] = []
        if plus < below and depth < _DEEPEST:
            below, inner = plus, asciidoc_blocks(lines, plus + 1, after, depth + 1)
        elif below < after and depth < _DEEPEST:
            inner = _items(lines, below, below, after, depth + 1)
        if inner:
            item.inside = fill([TextBlock(item.start, lines.start(below), "directive"), *inner], item.start, item.end)
        items.append(item)
    return items
