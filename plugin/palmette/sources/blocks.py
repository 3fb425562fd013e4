"""The block structure of a text: headings, paragraphs, lists, tables, fences, definitions, with their characters.

Blocks of one level follow each other without a gap and cover the text, blank lines included; a block that is too long
for a passage is taken apart into its own blocks.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
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
    if family == "rst":
        return _rst(lines)
    if family == "code":
        return _code(lines, language)
    return _paragraphs(lines)


def _paragraphs(lines: Lines) -> list[Block]:
    """Return the runs of lines between blank lines."""
    return _fill(lines, _runs_of_lines(lines, 0, len(lines)), 0, len(lines.text))


def _fill(lines: Lines, blocks: Sequence[Block], start: int, end: int) -> list[Block]:
    """Let each block end where the next one begins, so that nothing between them is lost."""
    kept = list(blocks)
    places = [start, *(block.start for block in kept[1:]), end]
    for block, (begin, stop) in zip(kept, pairwise(places), strict=False):
        first = last = block
        first.start, last.end = begin, stop
        while first.inside:
            first = first.inside[0]
            first.start = begin
        while last.inside:
            last = last.inside[-1]
            last.end = stop
    return kept


# Markdown


@lru_cache(1)
def _parser() -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    return parser.disable(["inline"])  # the text inside blocks is not looked at


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


# reStructuredText

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*$")
_RST_MARK = re.compile(r"(?:[-*+•]|\(?(?:\d+|#|\w)[.)])[ \t]")


def _rst(lines: Lines) -> list[Block]:
    """Return titles by their adornments, and paragraphs with what is indented below them."""
    blocks: list[Block] = []
    levels: list[str] = []
    number, body = 0, 0
    while number < len(lines):
        if rows := _title_rows(lines, number):
            blocks += _indented(lines, body, number)
            mark, name = lines[number + rows - 1].strip()[0] + str(rows), lines[number + rows - 2].strip()
            if mark not in levels:
                levels.append(mark)
            start, stop = lines.start(number), lines.start(number + rows)
            blocks.append(Block(start, stop, "heading", levels.index(mark) + 1, name))
            number = body = number + rows
        else:
            number += 1
    return _fill(lines, [*blocks, *_indented(lines, body, len(lines))], 0, len(lines.text))


def _title_rows(lines: Lines, number: int) -> int:
    """Return how many lines a title takes that begins here: 2, 3 with a line above it, or 0."""
    one, two, three = (lines[n].rstrip() if n < len(lines) else "" for n in range(number, number + 3))
    over = _ADORNMENT.match(one) and len(one) > 2 and one == three and two.strip() and len(two) <= len(one) + 1
    if over:
        return 3
    under = one and not one[0].isspace() and _ADORNMENT.match(two) and len(two) >= max(3, len(one) - 1)
    return 2 if under and not _ADORNMENT.match(one) else 0


def _indented(lines: Lines, first: int, last: int, depth: int = 0) -> list[Block]:
    """Return the paragraphs and items of lines, each with the more deeply indented ones below it."""
    written = [n for n in range(first, last) if not lines.blank(n, n + 1)]
    if not written:
        return []
    least = min(_indent(lines[n]) for n in written)
    starts = written[:1]
    for n in written[1:]:
        if _indent(lines[n]) == least and (lines.blank(n - 1, n) or _RST_MARK.match(lines[n], least)):
            starts.append(n)
    blocks = []
    for n, stop in pairwise([*starts, last]):
        block = Block(lines.start(n), lines.start(stop), "item" if _RST_MARK.match(lines[n], least) else "paragraph")
        rest = next((m for m in range(n + 1, stop) if lines.blank(m - 1, m) and not lines.blank(m, m + 1)), stop)
        if rest < stop and depth < _DEEPEST:
            head = Block(block.start, lines.start(rest), "paragraph")
            block.inside = _fill(lines, [head, *_indented(lines, rest, stop, depth + 1)], block.start, block.end)
        blocks.append(block)
    return blocks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# Source code

_MODIFIERS = (
    r"(?:(?:export|default|async|pub(?:\([\w: ]+\))?|public|private|protected|internal|static|final|abstract|override|"
    r"inline|unsafe|virtual|sealed|open|data|suspend|extern(?:\s+\"\w+\")?|const|constexpr|partial|readonly)\s+)*"
)
_KEYWORDS = (
    r"(?:def|class|fn|func|fun|function\*?|interface|struct|enum|union|trait|impl|namespace|module|mod|object|protocol|"
    r"extension|record|type|macro_rules!|sub|package|defmodule|defp?)(?=[\s(<])"
)
_NAMED = r"[A-Za-z_$][\w$.:<>,*&\[\]\s?~-]{0,120}?"
_SIGNATURE = re.compile(
    rf"[ \t]*(?:{_MODIFIERS}{_KEYWORDS}"  # def f, class A, func (s *Server) Serve, impl Display for A
    rf"|{_MODIFIERS}(?:const|let|var)\s+[\w$]+\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\([^)]*\)[^=]*=>|[\w$]+\s*=>|function\b)"
    rf"|(?!(?:return|if|for|while|switch|else|do|try|catch|with|case|new|throw|await|yield|elif|unless|until)\b)"
    rf"{_NAMED}\([^;]*(?:\{{\s*$|\)\s*$|,\s*$))"  # int main(void) {{, and with the brace on the next line
)
_ABOVE = re.compile(r"[ \t]*(?://|/\*|\*|#(?!include|define|if|endif|pragma)|@|--|;;|\[\w+.*\]\s*$)")
_CONTINUED = re.compile(r"[ \t]*(?:[})\]{;]|end\b|else\b|catch\b|finally\b|except\b|elif\b)")


_NAMED_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _code(lines: Lines, language: str) -> list[Block]:
    """Return definitions, with the comments above them, and the statements between."""
    blocks = _python(lines) if language == "python" else None
    if blocks is None:
        blocks = _definitions(lines, 0, len(lines))
    return _fill(lines, blocks, 0, len(lines.text))


def _python(lines: Lines) -> list[Block] | None:
    """Return the blocks of Python's own parser; ``None`` where it does not accept the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in the strings of others
            return _statements(lines, ast.parse(lines.text).body, 0, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statements(lines: Lines, body: Sequence[ast.stmt], first: int, depth: int) -> list[Block]:
    """Return the blocks of statements from line ``first`` on; those without a blank line between them are one."""
    blocks: list[Block] = []
    reached = first
    for node in body:
        begin = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
        begin = _with_comments(lines, begin, reached)
        stop = node.end_lineno or node.lineno
        named = isinstance(node, _NAMED_NODES)
        begin = max(begin, reached)  # a semicolon puts two on a line
        stop = max(stop, begin)
        blocks += _runs_of_lines(lines, reached, begin)
        block = Block(lines.start(begin), lines.start(stop), "statement")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            word = "class" if isinstance(node, ast.ClassDef) else "def"
            block.kind, block.name, block.level = "definition", f"{word} {getattr(node, 'name', '')}", depth + 1
        inner = getattr(node, "body", None)
        if isinstance(inner, list) and inner and inner[0].lineno > node.lineno:
            block.inside = _body(lines, node, begin, stop, depth)
        before = blocks[-1] if blocks else None
        if before and not named and before.kind == "statement" and before.end == block.start and not block.inside:
            before.end, before.inside = block.end, []
        else:
            blocks.append(block)
        reached = max(reached, stop)
    return blocks


def _body(lines: Lines, node: Any, begin: int, stop: int, depth: int) -> list[Block]:
    """Return the head of a compound statement with its docstring, and the blocks of its bodies."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(getattr(first, "value", None), ast.Constant)
    head = (first.end_lineno or first.lineno) if documented else first.lineno - 1
    parts = [one for name in ("body", "handlers", "orelse", "finalbody") for one in getattr(node, name, ())]
    rest = [one for one in parts[documented:] if isinstance(one, ast.stmt)]
    blocks = [Block(lines.start(begin), lines.start(head), "head")]
    named = isinstance(node, _NAMED_NODES)
    blocks += _statements(lines, rest, head, depth + named)
    return _fill(lines, blocks, lines.start(begin), lines.start(stop))


def _with_comments(lines: Lines, number: int, reached: int) -> int:
    """Return the first line of the comments and decorators right above a definition."""
    while number > reached and _ABOVE.match(lines[number - 1]):
        number -= 1
    return number


def _definitions(lines: Lines, first: int, last: int, depth: int = 0) -> list[Block]:
    """Return definitions by their first lines and their indentation, and what stands between as paragraphs."""
    blocks: list[Block] = []
    number, body = first, first
    while number < last:
        line = lines[number]
        if len(line) > _LONGEST_SIGNATURE or not _SIGNATURE.match(line):
            number += 1
            continue
        stop = _end_of_definition(lines, number, last)
        if stop - number < 2:
            number += 1
            continue
        begin = _with_comments(lines, number, body)
        blocks += _runs_of_lines(lines, body, begin)
        name = re.split(r"(?<!\bfunc)(?<=[\w>\])])\s*[({;]|\s*[{=]|:\s*$", lines[number].strip())[0].strip()[:80]
        block = Block(lines.start(begin), lines.start(stop), "definition", depth + 1, name)
        if depth < _DEEPEST:
            inner = _definitions(lines, number + 1, stop, depth + 1)
            block.inside = _fill(lines, inner, block.start, block.end)
        blocks.append(block)
        number = body = stop
    return [*blocks, *_runs_of_lines(lines, body, last)]


_DEEPEST = 8  # levels of definitions, and of indented paragraphs, inside each other
_LONGEST_SIGNATURE = 400  # characters


def _end_of_definition(lines: Lines, number: int, last: int) -> int:
    """Return the line after a definition: the first one that is indented no more, closing marks aside."""
    indent, stop = _indent(lines[number]), number + 1
    for n in range(number + 1, last):
        line = lines[n]
        if line.isspace() or not line:
            continue
        if _indent(line) <= indent and not (_indent(line) == indent and _CONTINUED.match(line)):
            break
        stop = n + 1
    return stop


def _runs_of_lines(lines: Lines, first: int, last: int) -> list[Block]:
    """Return the runs of lines between blank lines."""
    starts = [n for n in range(first, last) if not lines.blank(n, n + 1) and (n == first or lines.blank(n - 1, n))]
    return [Block(lines.start(n), lines.start(n), "paragraph") for n in starts]
