"""Configuration and logs as blocks: entries with what is indented below them, records with the lines that go on."""

from __future__ import annotations

import re
from itertools import pairwise

from palmette.sources.lines import Lines, TextBlock, fill, indent_of, runs_of_lines

_CLOSING = re.compile(r"[ \t]*(?:[\])}>]|/>|</|\{\{-? *(?:end|else)\b)")
_REMARK = re.compile(r"[ \t]*(?:#|;|//|\{\{|@\w[\w.]*(?:\(.*\))?\s*$)")
"""A remark, a line of a template, or an annotation."""
_RULE = re.compile(r"[ \t]*(?:#{3,}|;{3,}|[#;/]+[ \t]*[-=*#]{3,}[#;/]*)\s*$")
"""A line of marks around the words of a remark that heads what follows."""
_SECTION = re.compile(r"\[+[ \t]*([^\[\]]+?)[ \t]*\]+\s*(?:[#;].*)?$")
_PART = re.compile(r"---(?:\s|$)")
_KEY = re.compile(
    r"[\s{[-]*[\"']?([^\s\"':={\[<#][^\"':={\[]{0,79}?)[\"']?\s*[:={\[](?:.*[:={\[(|>]|.*[|>][-+\d]*)?\s*$"
)
"""A key without a value beside it."""
_TEXT = re.compile(r"[:-][ \t]+(?:[!&]\S+[ \t]+)?[|>][-+\d]*\s*(?:#.*)?$")
"""The key of a text of YAML, whose lines are no entries."""
_DEEPEST = 30
LONGEST = 400
"""Characters of a line that may be a key, a section or a title."""
STAMPED = re.compile(
    r"^(?=\S)(?:[^\r\n]{0,60}?(?<!\d)(?:\d{1,2}:\d\d:\d\d|\d{6} \d{6}(?!\d)|\d{10}(?:\.\d+)?(?!\d))"
    r"|\W{0,2}(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b)",
    re.MULTILINE,
)
"""The first line of a log's record: it has a time, or begins with a level."""
_LEAST_STAMPED = 0.05
"""Share of a log's lines, the others being those that records go on with."""
_FENCE = re.compile(r"[ \t]*(?:`{3,}|~{3,}|-{4,}\s*$|\.{4,}\s*$)")
_BANNER = re.compile(r"([=_*#~-])\1{3,} *(\S.*?) *\1{4,}\s*$")


def entries(lines: Lines, first: int, last: int, depth: int = 0) -> list[TextBlock]:
    """Return the lines of least indentation as blocks, each with the remarks above it and with what is deeper below.

    A block's level says how dear a cut before it is: twice its depth, and one more where no blank line is above it.
    """
    written = [n for n in range(first, last) if not lines.blank(n, n + 1)]
    # 1. How deep each line is. Items of YAML are below their key; remarks belong to what they stand above.
    depths: dict[int, int] = {}
    below = 0
    for n in reversed(written):
        indent = indent_of(lines[n])
        own = 2 * indent + lines[n].startswith("- ", indent)
        depths[n] = max(own, below) if _REMARK.match(lines[n]) else own
        below = depths[n]
    return _entries(lines, written, depths, last, depth)


def _entries(lines: Lines, written: list[int], depths: dict[int, int], last: int, depth: int) -> list[TextBlock]:
    # 2. A block begins at each line that is no deeper than those before it, closing brackets and remarked lines aside.
    starts: list[int] = []
    least, remarks = 1 << 30, False
    for at, n in enumerate(written):
        if depths[n] <= least:
            remark = bool(_REMARK.match(lines[n]) or _PART.match(lines[n]))
            goes_on = remarks and n - 1 == written[at - 1]
            if not starts or not (goes_on or _CLOSING.match(lines[n])):
                starts.append(at)
            remarks, least = remark, depths[n]
        else:
            remarks = False
    # 3. Its first lines head what is deeper below.
    blocks = []
    for begin, stop in pairwise([*starts, len(written)]):
        n, end = written[begin], written[stop] if stop < len(written) else last
        alone = n == 0 or lines.blank(n - 1, n)
        block = TextBlock(lines.start(n), lines.start(end), "entry", 2 * depth + (not alone))
        own = next((at for at in range(begin, stop) if not _REMARK.match(lines[written[at]])), stop)
        deeper = next((at for at in range(own + 1, stop) if depths[written[at]] > depths[written[own]]), stop)
        if own == stop:  # remarks alone; those between lines of marks head what follows
            block.kind = "directive" if _RULE.match(lines[n]) and stop - begin < 6 else "remark"
        elif deeper < stop and depth < _DEEPEST:
            head = TextBlock(block.start, lines.start(written[deeper]), "directive")
            line = lines[written[deeper - 1]]
            key = _KEY.match(line) if len(line) <= LONGEST else None
            block.name = key[1].strip() if key else ""
            if len(line) <= LONGEST and _TEXT.search(line):
                inner = [TextBlock(head.end, block.end, "paragraph")]
            else:
                inner = _entries(lines, written[deeper:stop], depths, end, depth + 1)
            block.inside = fill([head, *inner], block.start, block.end)
        blocks.append(block)
    return blocks


def by_indentation(text: str, start: int, end: int) -> list[TextBlock]:
    """Return the entries of a block of code or HTML; the marks of a fence stay with its first and last."""
    lines = Lines(text[start:end])
    blocks = entries(lines, 0, len(lines), 1)
    if len(blocks) == 1 and not blocks[0].inside:  # a line
        return []
    if _FENCE.match(lines.text):
        if blocks[1:]:
            blocks[0].kind = "directive"
        if blocks[2:] and _FENCE.match(lines.text, blocks[-1].start):
            blocks.pop()
    blocks = fill(blocks, 0, len(lines.text))
    for block in blocks:
        block.shift(start)
    return blocks


def config_blocks(lines: Lines) -> list[TextBlock]:
    """Return sections as headings, with the remarks right above them, and the entries; YAML's documents as wholes."""
    blocks: list[TextBlock] = []
    number = body = 0
    parts = [n for n in range(len(lines)) if lines.text.startswith("---", lines.start(n)) and _PART.match(lines[n])]
    if parts[1:] or (parts and not lines.blank(0, parts[0])):
        for first, last in pairwise(sorted({0, *parts, len(lines)})):
            part = TextBlock(lines.start(first), lines.start(last), "definition", 1)
            part.inside = fill(entries(lines, first, last), part.start, part.end)
            blocks.append(part)
        return blocks
    for number in range(len(lines)):
        line = lines[number] if lines.text.startswith("[", lines.start(number)) else ""
        section = _SECTION.match(line) if len(line) <= LONGEST else None
        if section:
            first = number
            while first > body and _REMARK.match(lines[first - 1]):
                first -= 1
            blocks += entries(lines, body, first)
            blocks.append(TextBlock(lines.start(first), lines.start(number + 1), "heading", 1, section[1]))
            body = number + 1
    return [*blocks, *entries(lines, body, len(lines))]


def log_blocks(lines: Lines) -> list[TextBlock]:
    """Return records, each with the lines that it goes on with; without times, sections and what is indented."""
    stamped = [n for n in range(len(lines)) if STAMPED.match(lines[n])]
    blocks: list[TextBlock] = []
    if len(stamped) > max(2, _LEAST_STAMPED * len(lines)):
        for n, stop in pairwise(sorted({0, *stamped, len(lines)})):
            block = TextBlock(lines.start(n), lines.start(stop), "entry", 0)
            if stop > n + 1:
                head = TextBlock(block.start, lines.start(n + 1), "directive")
                block.inside = fill([head, *entries(lines, n + 1, stop, 3)], block.start, block.end)
            blocks.append(block)
        return blocks
    banners = [n for n in range(len(lines)) if len(lines[n]) <= LONGEST and _BANNER.match(lines[n])]
    for n, stop in pairwise([-1, *banners, len(lines)]):
        if n >= 0 and (banner := _BANNER.match(lines[n])):
            level = 1 if banner[1] == "=" else 2
            blocks.append(TextBlock(lines.start(n), lines.start(n + 1), "heading", level, banner[2]))
        runs = runs_of_lines(lines, n + 1, stop)
        for run in fill(runs, lines.start(n + 1), lines.start(stop)) if runs else ():
            run.inside = fill(entries(lines, lines.at(run.start), lines.at(run.end - 1) + 1), run.start, run.end)
            blocks.append(run)
    return blocks
