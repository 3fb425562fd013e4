"""The block structure of a text: headings, paragraphs, lists, tables, fences, definitions, with their characters.

Blocks of one level follow each other without a gap and cover the text, blank lines included; a block that is too long
for a passage is taken apart into its own blocks::

    # Pruning                    heading, level 1, "Pruning"; the blank line below it belongs to it

    Old nodes are pruned:        paragraph

    - by age                     list, inside: two items, the second of a paragraph and a list
    - by size, unless
      - they are pinned

    !!! note                     group, inside: the line and the indented block below it

        pruned once a day
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from palmette.sources.asciidoc import asciidoc_blocks
from palmette.sources.code import code_blocks
from palmette.sources.lines import Lines as Lines
from palmette.sources.lines import TextBlock, fill, indent_of, runs_of_lines
from palmette.sources.nested import config_blocks, log_blocks
from palmette.types import LINE_END

_TEXTS = {"asciidoc": asciidoc_blocks, "config": config_blocks, "log": log_blocks}


def blocks_of(text: str, kind: str, adornments: list[str] | None = None) -> list[TextBlock]:
    """Return the outermost blocks of a text; a kind without a parser of its own has paragraphs.

    Args:
        text: A document, or a stretch of one.
        kind: How it is read.
        adornments: Those of the titles of reStructuredText so far, the outermost first; new ones are added.
    """
    lines = Lines(text)
    family, _, language = kind.partition(":")
    if family in ("markdown", "mdx"):
        return _markdown(lines, mdx=family == "mdx")
    if family == "rst":
        return _rst(lines, [] if adornments is None else adornments)
    if family == "code":
        return code_blocks(lines, language)
    if language in _TEXTS:
        return fill(_TEXTS[language](lines), 0, len(lines.text))
    return fill(runs_of_lines(lines, 0, len(lines)), 0, len(lines.text))


# Markdown


@lru_cache
def _parser(*, inline: bool) -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    if not inline:  # the text inside blocks is not looked at
        parser.disable(["inline"])
    parser.parse("a")  # it prepares its rules at first use: before threads share it
    return parser


_BREAK = LINE_END.pattern
_FRONT_MATTER = re.compile(rf"\ufeff?(---|\+\+\+)[ \t]*(?:{_BREAK})(?:[^\r\n]*(?:{_BREAK}))*?\1[ \t]*(?:{_BREAK}|\Z)")
_ADMONITION = re.compile(r"\s*(?:!!!|\?\?\?\+?|===\+?)\s")
_INDENTED = re.compile(r"(?: {4}|\t)")
_ATTRIBUTES = re.compile(r"\s*\{[^{}]*\}\s*$")
_KINDS = {
    "heading_open": "heading",
    "fence": "code",
    "code_block": "code",
    "table_open": "table",
    "thead_open": "directive",
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


def _markdown(lines: Lines, *, mdx: bool) -> list[TextBlock]:
    """Return the blocks that CommonMark with tables sees, front matter and admonitions being blocks, too."""
    # 1. Front matter stays out of the parser, whose numbers of lines begin after it.
    head = front_matter(lines.text)
    skipped = len(LINE_END.findall(head)) if head else 0
    rest = lines.text[len(head) :]
    blocks = [TextBlock(0, 0, "front matter")] if head else []
    # 2. The parser's tokens as blocks inside each other, and 3. the blocks that CommonMark does not know.
    if rest.strip():
        nodes = _nodes(lines, _parser(inline=False).parse(rest), skipped, skipped)
        blocks += nodes or [TextBlock(len(head), len(lines.text), "paragraph")]  # definitions of links alone
    blocks = fill(_admonitions(lines, blocks), 0, len(lines.text))
    return _contained(lines, _components(lines, blocks) if mdx else blocks)


def _nodes(lines: Lines, tokens: Sequence[Any], skipped: int, reached: int) -> list[TextBlock]:
    """Return the blocks of tokens that stand beside each other from line ``reached`` on, and those inside them."""
    blocks: list[TextBlock] = []
    at = 0
    while at < len(tokens):
        token, last = tokens[at], at
        depth = token.nesting
        while depth > 0:  # to the token that closes it
            last += 1
            depth += tokens[last].nesting
        if token.map and token.type != "inline":
            first, stop = (number + skipped for number in token.map)
            # Lines between blocks that give no tokens, such as definitions of links, are a paragraph.
            while reached < first and lines.blank(reached, reached + 1):
                reached += 1
            if reached < first and token.type != "tbody_open":  # but the rule below the head of a table
                blocks.append(TextBlock(lines.start(reached), lines.start(first), "paragraph"))
            block = TextBlock(lines.start(first), lines.start(stop), _KINDS.get(token.type, "paragraph"))
            if block.kind == "heading":
                # Its words, without links, emphasis, marks of code and trailing attributes.
                words = _parser(inline=True).parseInline(_ATTRIBUTES.sub("", tokens[at + 1].content))[0].children or []
                name = "".join(" " if t.type.endswith("break") else t.content for t in words if t.type != "html_inline")
                block.level, block.name = int(token.tag[1]), " ".join(name.split())
            else:
                block.inside = fill(_nodes(lines, tokens[at + 1 : last], skipped, first), block.start, block.end)
            blocks.append(block)
            reached = max(reached, stop)
        at = last + 1
    return blocks


def _admonitions(lines: Lines, blocks: list[TextBlock]) -> list[TextBlock]:
    """Join a line such as ``!!! note`` and the indented blocks below it, and a term and its definitions."""
    joined: list[TextBlock] = []
    for block in blocks:
        text = lines.text[block.start : block.start + 8]
        before = joined[-1] if joined and joined[-1].kind in ("paragraph", "group") else None
        # A definition, or what is indented below the line of an admonition.
        belongs = text.startswith((": ", ":\t")) or _INDENTED.match(text)
        if before and belongs and (text[0] == ":" or _ADMONITION.match(lines.text, before.start)):
            if before.kind != "group":
                before = joined[-1] = TextBlock(before.start, before.end, "group", inside=[before])
            before.inside.append(block)
            before.end = block.end
        else:
            joined.append(block)
    for block in joined:
        if block.kind == "group":
            block.inside = fill(block.inside, block.start, block.end)
    return joined


_OPENING = re.compile(r"(:{3,}|/{3,}) ?[\w{]|<([A-Za-z][\w.]*)(?=[\s>])|\{\{?[%<]-?\s*(\w[\w-]*)|\{(?![*{%#])")
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr p".split())
_FARTHEST = 64  # blocks of a container


def _contained(lines: Lines, blocks: list[TextBlock]) -> list[TextBlock]:
    """Join the blocks from an element's, container's or expression's first line to its last; none around a heading.

    From ``<details>`` to ``</details>``, from ``:::note`` to ``:::``, from ``{% tab %}`` to ``{% endtab %}``.
    """
    joined, at = list[TextBlock](), 0
    while at < len(blocks):
        last = _last_contained(lines.text, blocks, at)
        if last == at:
            joined.append(blocks[at])
        else:
            inside = blocks[at : last + 1]
            if lines.at(inside[0].end - 1) == lines.at(inside[0].start) or lines.blank(
                lines.at(inside[0].start) + 1, lines.at(inside[0].end - 1) + 1
            ):
                inside[0].kind = "directive"  # a first line alone stays with what follows
            closing = lines.text[inside[-1].start : inside[-1].end].split()
            if len(inside) > 2 and len(closing) == 1:  # a last line alone stays with what is before
                inside.pop()
            start, end = blocks[at].start, blocks[last].end
            joined.append(TextBlock(start, end, "group", inside=fill(inside, start, end)))
        at = last + 1
    return joined


def _last_contained(text: str, blocks: Sequence[TextBlock], at: int) -> int:
    """Return the position of the block that closes what the block at ``at`` opens; ``at`` where it opens nothing."""
    block = blocks[at]
    match = _OPENING.match(text, block.start) if block.kind in ("paragraph", "html") else None
    if not match or (match[2] or "").lower() in _VOID:
        return at
    if match[1]:
        opens, closes = re.compile(rf"^{match[1]} ?[\w{{]", re.M), re.compile(rf"^{match[1]}\s*$", re.M)
    elif match[2]:
        name = re.escape(match[2])
        opens, closes = re.compile(rf"<{name}(?=[\s>])"), re.compile(rf"</{name}>|<{name}\s[^<>]*/>")
    elif match[3]:
        mark, name = r"\{\{?[%<]-?\s*", re.escape(match[3])
        opens, closes = re.compile(rf"{mark}{name}\b"), re.compile(rf"{mark}(?:/\s*|end){name}\b")
    else:
        opens, closes = re.compile(r"\{"), re.compile(r"\}")
    depth = 0
    for number, one in enumerate(blocks[at : at + _FARTHEST], at):
        if one.kind == "heading":
            break
        depth += len(opens.findall(text, one.start, one.end)) - len(closes.findall(text, one.start, one.end))
        if depth <= 0:
            return number
    return at


_MODULE = re.compile(r"(?:import|export)\s[\w{*\"']")


def _components(lines: Lines, blocks: list[TextBlock]) -> list[TextBlock]:
    """Take modules' first lines as front matter, and elements for what they are."""
    above = True  # above the first words
    for block in blocks:
        if block.kind in ("paragraph", "html"):
            module = _MODULE.match(lines.text, block.start)
            if module and above:
                block.kind = "front matter"
            elif module or lines.text[block.start] in "<{":
                block.kind = "html"
        above = above and block.kind == "front matter"
    return blocks


# reStructuredText

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*$")
_DEEPEST = 8  # levels of indented paragraphs inside each other
_RST_MARK = re.compile(r"(?:[-*+•]|\(?(?:\d+|#|\w)[.)])[ \t]|:[^\s:`](?:[^:`\r\n]*[^\s:`])?:(?:\s|$)")
"""The mark of an item, or the name of a field."""
_LABEL = re.compile(r"[ \t]*\.\. _[^\r\n]+:\s*$")
_DIRECTIVE = re.compile(r"[ \t]*\.\. (?:\|[^|\r\n]+\| )?([\w:.+-]+)::(?:\s|$)")
_LITERAL = frozenset(
    "code code-block sourcecode highlight parsed-literal literalinclude raw math doctest testcode testoutput testsetup "
    "testcleanup ipython prompt productionlist graphviz mermaid csv-table".split()
)
"""Directives whose content is no reStructuredText."""
_BORDER = re.compile(r"[ \t]*\+(?:-+\+)+\s*$")
_SAYING = frozenset(
    "note warning tip hint important danger caution attention error seealso admonition versionadded versionchanged "
    "deprecated topic".split()
)
"""Directives whose first line is prose."""
_OPTION = re.compile(r"[ \t]+:[\w-]+:(?:\s|$)")
_ATX = re.compile(r" {0,3}#{1,6}[ \t]")


def labels_of(text: str) -> list[tuple[int, int]]:
    """Return the lines that say nothing by themselves: front matter, titles, labels, and heads of directives.

    Found without parsing, so that a passage that begins in the middle of a block has them, too.
    """
    lines, found, head = Lines(text), list[tuple[int, int]](), front_matter(text)
    number, options = len(LINE_END.findall(head)), False
    if head:
        found.append((0, len(head)))
    while number < len(lines):
        line = lines[number]
        directive = _DIRECTIVE.match(line)
        prose = directive and directive[1] in _SAYING and line[directive.end() :].strip()
        options = bool((directive and not prose) or (options and _OPTION.match(line)))
        rows = 1 if options or _LABEL.match(line) or _ATX.match(line) else _title_rows(lines, number)
        if rows:
            found.append((lines.start(number), lines.start(number + rows)))
        number += rows or 1
    return found


def _rst(lines: Lines, levels: list[str]) -> list[TextBlock]:
    """Return titles by their adornments, and paragraphs with what is indented below them."""
    blocks: list[TextBlock] = []
    number, body = 0, 0
    while number < len(lines):
        if rows := _title_rows(lines, number):
            # A title ends the text before it. Its level is the order in which its adornment first appeared.
            # A label above it stays with that text: before the title, it would be read first, which ranks worse.
            blocks += _indented(lines, body, number)
            mark, name = lines[number + rows - 1].strip()[0] + str(rows), lines[number + rows - 2].strip()
            if mark not in levels:
                levels.append(mark)
            start, stop = lines.start(number), lines.start(number + rows)
            blocks.append(TextBlock(start, stop, "heading", levels.index(mark) + 1, name))
            number = body = number + rows
        else:
            number += 1
    return fill([*blocks, *_indented(lines, body, len(lines))], 0, len(lines.text))


def _title_rows(lines: Lines, number: int) -> int:
    """Return how many lines a title takes that begins here: 2, 3 with a line above it, or 0."""
    first, second, third = (lines[n].rstrip() if n < len(lines) else "" for n in range(number, number + 3))
    over = (
        _ADORNMENT.match(first)
        and len(first) > 2
        and first == third
        and second.strip()
        and len(second) <= len(first) + 1
    )
    if over:
        return 3
    under = first and not first[0].isspace() and _ADORNMENT.match(second) and len(second) >= max(3, len(first) - 1)
    return 2 if under and not _ADORNMENT.match(first) else 0


def _indented(lines: Lines, first: int, last: int, depth: int = 0) -> list[TextBlock]:
    """Return the paragraphs, items and directives of lines, each with what is indented more deeply below it."""
    written = [n for n in range(first, last) if not lines.blank(n, n + 1)]
    if not written:
        return []
    # A block begins at each line of least indent below a blank line, or with the mark of an item.
    least = min(indent_of(lines[n]) for n in written)
    starts = written[:1]
    labelled = _LABEL.match(lines[starts[0]])
    for n in written[1:]:
        # A label stays with the block below it.
        if indent_of(lines[n]) == least and (lines.blank(n - 1, n) or _RST_MARK.match(lines[n], least)):
            if not labelled:
                starts.append(n)
            labelled = _LABEL.match(lines[n])
    blocks = []
    for n, stop in pairwise([*starts, last]):
        block = TextBlock(
            lines.start(n), lines.start(stop), "item" if _RST_MARK.match(lines[n], least) else "paragraph"
        )
        # What is below the labels and the first paragraph of it
        top = next((m for m in range(n, stop) if not _LABEL.match(lines[m]) and not lines.blank(m, m + 1)), n)
        rest = next((m for m in range(top + 1, stop) if lines.blank(m - 1, m) and not lines.blank(m, m + 1)), stop)
        directive = _DIRECTIVE.match(lines[top])
        last_line = next((lines[m] for m in range(rest - 1, top - 1, -1) if not lines.blank(m, m + 1)), "").rstrip()
        literal = directive[1] in _LITERAL if directive else last_line.endswith("::")
        if rest < stop and depth < _DEEPEST:
            # is code, cut at its blank lines at worst, or has blocks in the same way.
            head = TextBlock(block.start, lines.start(rest), "directive" if literal or directive else "paragraph")
            inner = runs_of_lines(lines, rest, stop) if literal else _indented(lines, rest, stop, depth + 1)
            for one in inner[1:] if literal else ():
                one.kind = "part"
            block.inside = fill([head, *inner], block.start, block.end)
        elif _BORDER.match(lines[top]):
            # A grid table has its rows, the first one with the head above it.
            rows = [m for m in range(top + 1, stop - 1) if _BORDER.match(lines[m]) and not lines.blank(m + 1, stop)]
            parts = [TextBlock(lines.start(m), lines.start(m), "part") for m in (n, *rows)]
            block.inside = fill(parts, block.start, block.end) if rows else []
        blocks.append(block)
    return blocks
