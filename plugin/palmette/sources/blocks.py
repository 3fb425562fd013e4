"""The block structure of a text: headings, paragraphs, lists, tables, fences, definitions, with their characters.

Blocks of one level follow each other without a gap and cover the text, blank lines included; a block that is too long
for a passage is taken apart into its own blocks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

LINE_END = re.compile(r"\r\n|\r|\n")
"""What ends a line: the three of Markdown and of editors, none of Unicode's others."""


@dataclass
class Block:
    """Characters ``start`` to ``end`` of a text, and the blocks inside."""

    start: int
    end: int
    kind: str
    """``heading``, ``paragraph``, ``item``, ``code``, ``table``, ``definition`` …"""
    level: int = 0
    """Of a heading or a definition: 1 for the outermost."""
    name: str = ""
    """Of a heading or a definition: its words without markup."""
    inside: list[Block] = field(default_factory=list)


class Lines:
    """The lines of a text by number, from 0."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in LINE_END.finditer(text))]
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


def blocks_of(text: str, kind: str) -> list[Block]:
    """Return the outermost blocks of a text; a kind without a parser of its own has paragraphs."""
    lines = Lines(text)
    family, _, language = kind.partition(":")
    if family in ("markdown", "mdx"):
        return _markdown(lines)
    if family == "code":
        return _code(lines, language)
    return _paragraphs(lines)


def _paragraphs(lines: Lines) -> list[Block]:
    """Return the runs of lines between blank lines."""
    starts = [n for n in range(len(lines)) if not lines.blank(n, n + 1) and (n == 0 or lines.blank(n - 1, n))]
    return _fill(lines, [Block(lines.start(n), lines.start(n), "paragraph") for n in starts], 0, len(lines.text))


def _fill(lines: Lines, blocks: Sequence[Block], start: int, end: int) -> list[Block]:
    """Let each block end where the next one begins, so that nothing between them is lost."""
    kept = list(blocks)
    for block, following in pairwise(kept):
        block.end = following.start
    if kept:
        kept[0].start, kept[-1].end = start, end
    return kept


# Markdown


@lru_cache(1)
def _parser() -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    return parser.disable(["inline"])  # the text inside blocks is not looked at


_FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*(?:\r\n|\r|\n)(?:.*(?:\r\n|\r|\n))*?\1[ \t]*(?:\r\n|\r|\n|\Z)")
_ADMONITION = re.compile(r"\s*(?:!!!|\?\?\?\+?|===\+?)\s")
_INDENTED = re.compile(r"(?: {4}|\t)")
_ATTRIBUTES = re.compile(r"\s*\{[^{}]*\}\s*$")
_KINDS = {
    "heading_open": "heading",
    "fence": "code",
    "code_block": "code",
    "table_open": "table",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    "blockquote_open": "quote",
    "html_block": "html",
    "hr": "rule",
}


def front_matter(text: str) -> str:
    """Return the block of metadata at the head of a Markdown file, its marks included; empty where there is none."""
    match = _FRONT_MATTER.match(text)
    return match[0] if match else ""


def _markdown(lines: Lines) -> list[Block]:
    """Return the blocks that CommonMark with tables sees, front matter and admonitions being blocks, too."""
    head = front_matter(lines.text)
    skipped = len(LINE_END.findall(head)) if head else 0
    rest = lines.text[len(head) :]
    blocks = [Block(0, 0, "front matter")] if head else []
    if rest.strip():
        blocks += _nodes(lines, _parser().parse(rest), skipped)
    blocks = _admonitions(lines, blocks)
    return _fill(lines, blocks, 0, len(lines.text))


def _nodes(lines: Lines, tokens: Sequence[Any], skipped: int) -> list[Block]:
    """Return the blocks of tokens that stand beside each other, and those inside them."""
    blocks: list[Block] = []
    at, reached = 0, skipped
    while at < len(tokens):
        token, last = tokens[at], _closing(tokens, at)
        if token.map and token.type != "inline":
            first, stop = (number + skipped for number in token.map)
            blocks += _unparsed(lines, reached, first)
            block = Block(lines.start(first), lines.start(stop), _KINDS.get(token.type, "paragraph"))
            if block.kind == "heading":
                block.level, block.name = int(token.tag[1]), heading_name(tokens[at + 1].content)
            else:
                block.inside = _fill(lines, _nodes(lines, tokens[at + 1 : last], skipped), block.start, block.end)
            blocks.append(block)
            reached = max(reached, stop)
        at = last + 1
    return blocks


def _closing(tokens: Sequence[Any], at: int) -> int:
    """Return the position of the token that closes the one at ``at``."""
    depth = tokens[at].nesting
    while depth > 0:
        at += 1
        depth += tokens[at].nesting
    return at


def _unparsed(lines: Lines, first: int, stop: int) -> Iterator[Block]:
    """Yield the lines between blocks that give no tokens, such as definitions of links."""
    while first < stop and lines.blank(first, first + 1):
        first += 1
    if first < stop:
        yield Block(lines.start(first), lines.start(stop), "paragraph")


def heading_name(source: str) -> str:
    """Return a heading's words, without links, emphasis, marks of code and trailing attributes."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parseInline(_ATTRIBUTES.sub("", source))[0].children or []
    words = "".join(" " if t.type.endswith("break") else t.content for t in tokens if t.type != "html_inline")
    return " ".join(words.split())


def _admonitions(lines: Lines, blocks: list[Block]) -> list[Block]:
    """Join a line such as ``!!! note`` and the indented blocks below it, and a term and its definitions."""
    joined: list[Block] = []
    for block in blocks:
        text = lines.text[block.start : block.start + 8]
        before = joined[-1] if joined else None
        if before and _belongs(lines, before, block, text):
            if before.kind != "group":
                before = joined[-1] = Block(before.start, before.end, "group", inside=[before])
            before.inside.append(block)
            before.end = block.end
        else:
            joined.append(block)
    for block in joined:
        if block.kind == "group":
            block.inside = _fill(lines, block.inside, block.start, block.end)
    return joined


def _belongs(lines: Lines, before: Block, block: Block, text: str) -> bool:
    if before.kind not in ("paragraph", "group"):
        return False
    if text.startswith((": ", ":\t")):
        return True
    return bool(_INDENTED.match(text)) and bool(_ADMONITION.match(lines.text, before.start))


# Source code


def _code(lines: Lines, language: str) -> list[Block]:
    return _paragraphs(lines)


Parser = Callable[[Lines], list[Block]]
