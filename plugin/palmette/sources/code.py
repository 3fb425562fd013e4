"""Source code as blocks: definitions with the comments above them, and the statements between."""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from palmette.sources.lines import Lines, TextBlock, fill, indent_of, runs_of_lines

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
_CONTINUED = re.compile(r"[ \t]*(?:[})\]{;]|where\b|end\b|else\b|catch\b|finally\b|except\b|elif\b)")


_parsing = threading.Lock()  # the filters of warnings are the whole process's: two threads would restore each other's
_NAMED_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def code_blocks(lines: Lines, language: str) -> list[TextBlock]:
    """Return definitions, with the comments above them, and the statements between."""
    blocks = _python(lines) if language == "python" else None
    if not blocks:  # it accepts comments alone, and names none of them
        blocks = _definitions(lines, 0, len(lines))
    return fill(blocks, 0, len(lines.text))


def _python(lines: Lines) -> list[TextBlock] | None:
    """Return the blocks of Python's own parser; ``None`` where it does not accept the text."""
    try:
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in the strings of others
            body = ast.parse(lines.text).body
        return _statements(lines, body, 0, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statements(lines: Lines, body: Sequence[ast.stmt], first: int, depth: int) -> list[TextBlock]:
    """Return the blocks of statements from line ``first`` on; those without a blank line between them are one."""
    blocks: list[TextBlock] = []
    reached = first
    for node in body:
        begin = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]) - 1
        begin = _with_comments(lines, begin, reached)
        stop = node.end_lineno or node.lineno
        named = isinstance(node, _NAMED_NODES)
        begin = max(begin, reached)  # a semicolon puts two on a line
        stop = max(stop, begin)
        blocks += runs_of_lines(lines, reached, begin)
        block = TextBlock(lines.start(begin), lines.start(stop), "statement")
        if named:
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


def _body(lines: Lines, node: Any, begin: int, stop: int, depth: int) -> list[TextBlock]:
    """Return the head of a compound statement with its docstring, and the blocks of its bodies."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(getattr(first, "value", None), ast.Constant)
    head = (first.end_lineno or first.lineno) if documented else first.lineno - 1
    parts = [statement for name in ("body", "handlers", "orelse", "finalbody") for statement in getattr(node, name, ())]
    rest = [statement for statement in parts[documented:] if isinstance(statement, ast.stmt)]
    blocks = [TextBlock(lines.start(begin), lines.start(head), "head")]
    named = isinstance(node, _NAMED_NODES)
    blocks += _statements(lines, rest, head, depth + named)
    return fill(blocks, lines.start(begin), lines.start(stop))


def _with_comments(lines: Lines, number: int, reached: int) -> int:
    """Return the first line of the comments and decorators right above a definition."""
    while number > reached and _ABOVE.match(lines[number - 1]):
        number -= 1
    return number


def _definitions(lines: Lines, first: int, last: int, depth: int = 0) -> list[TextBlock]:
    """Return definitions by their first lines and their indentation, and what stands between as paragraphs."""
    blocks: list[TextBlock] = []
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
        blocks += runs_of_lines(lines, body, begin)
        name = re.split(r"(?<!\bfunc)(?<=[\w>\])])\s*[({;]|\s*[{=]|:\s*$", lines[number].strip())[0].strip()[:80]
        block = TextBlock(lines.start(begin), lines.start(stop), "definition", depth + 1, name)
        if depth < _DEEPEST:
            inner = _definitions(lines, number + 1, stop, depth + 1)
            block.inside = fill(inner, block.start, block.end)
        blocks.append(block)
        number = body = stop
    return [*blocks, *runs_of_lines(lines, body, last)]


_DEEPEST = 8  # levels of definitions inside each other
_LONGEST_SIGNATURE = 400  # characters
_LONGEST_STRING = 1000  # lines
_NO_STRING = re.compile(r"^\s*(?://|/?\*|#|--|;)|[\"']`|`[\"']")
"""A line with a backtick that begins no string: a comment, or a backtick in a string."""


def _end_of_definition(lines: Lines, number: int, last: int) -> int:
    """Return the line after a definition: the first one that is indented no more, closing marks aside."""
    indent, stop, raw = indent_of(lines[number]), number + 1, False
    for n in range(number + 1, last):
        line = lines[n]
        # A string of Go or JavaScript between two backticks is not indented; one that would never end is none.
        if "`" in line and line.count("`") % 2 and not _NO_STRING.search(line):
            raw = not raw and any("`" in lines[m] for m in range(n + 1, min(last, n + _LONGEST_STRING)))
            stop = n + 1
            continue
        if raw:
            stop = n + 1
            continue
        if line.isspace() or not line:
            continue
        if indent_of(line) <= indent and not (indent_of(line) == indent and _CONTINUED.match(line)):
            break
        stop = n + 1
    return stop
