"""Safe HTML of texts for the page, by kind: Markdown, code, tables, records and plain text, with marks.

Every tag is written here, and every character of a document is escaped. Attributes hold numbers, names of classes, and
addresses that begin with ``http://``, ``https://`` or ``#doc=``. Markdown's own HTML stays text, and images are named
instead of loaded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import dirname, join, normpath
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from palmette.encoder.sentences.splitting import split_sentences
from palmette.sources.blocks import front_matter
from palmette.sources.kinds import RECORDS, kind_of
from palmette.sources.lines import Lines
from palmette.types import Document
from palmette.types.values import written

RENDERED = 300_000
"""Largest number of characters that are parsed; longer texts are lines without markup."""
LONGEST_CODE_LINE = 2_000
"""Characters of a line of a block that is shown by lines, on average; of longer ones sentences are shown."""
SHOWN = 420
"""Characters that a snippet aims at."""
SHOWN_LINES = 12
"""Lines of code, or rows of a table, that a snippet shows."""
Span = tuple[int, int]

_UNSEEN = {code: " " if code in (11, 12) else None for code in (*range(9), 11, 12, *range(14, 32), 127)}
"""What control characters become: they are shown as boxes."""
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*(\S*)", re.MULTILINE)
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|\|.*\|[ \t]*$)", re.MULTILINE)


@dataclass(frozen=True)
class Marks:
    """Characters of a text to be marked: its best sentence, words of the question, and what is around the sentence."""

    sentence: Span | None = None
    words: Sequence[Span] = ()
    around: Span | None = None

    def moved(self, place: Sequence[int]) -> Marks:
        """Return the marks of another text, whose character ``n`` is character ``place[n]`` of this one."""

        def move(span: Span | None) -> Span | None:
            start, end = (bisect_left(place, at) for at in span or (0, 0))
            return (start, end) if start < end else None

        return Marks(move(self.sentence), [span for span in map(move, self.words) if span], move(self.around))


def text_kind(document: Document) -> str:
    """Return how a document is shown: ``markdown``, ``records``, ``text`` or ``code:LANGUAGE``."""
    source = document.metadata.get("source")
    name = source if isinstance(source, str) and source else document.key
    suffix = PurePosixPath(name.partition("#")[0]).suffix
    kind = kind_of(Path(f"a{suffix}")) if suffix else None
    if kind == RECORDS:
        return RECORDS if document.fields else "text"
    if kind is None or kind.startswith(("text", "rst", "pdf")):  # texts of programs have no name, and often Markdown
        return "markdown" if kind is None and _MARKDOWN.search(document.content[:RENDERED]) else "text"
    return kind if kind.startswith("code:") else "markdown"  # as others are converted to it


# -- a text with marks --------------------------------------------------------------------------------------------


def _painted(text: str, start: int, end: int, marks: Marks) -> str:
    """Return characters of a text as HTML: the sentence in ``mark``, words in ``b``."""
    sentence, around = marks.sentence or (0, 0), marks.around or (0, 0)
    words = [span for span in marks.words if span[0] < end and span[1] > start]
    cuts = {start, end, *(at for span in (sentence, around, *words) for at in span if start < at < end)}
    out, mark = list[str](), ""
    for first, last in pairwise(sorted(cuts)):
        piece = escape(text[first:last].translate(_UNSEEN))
        if any(at <= first < to for at, to in words):
            piece = f"<b>{piece}</b>"
        tag = "<mark>" if sentence[0] <= first < sentence[1] else ""
        tag = tag or ('<mark class="near">' if around[0] <= first < around[1] else "")
        if tag != mark:
            out.append("</mark>" * bool(mark) + tag)
            mark = tag
        out.append(piece)
    return "".join(out) + "</mark>" * bool(mark)


def _numbered(
    text: str, marks: Marks, first_line: int, breaks: Mapping[int, str] = MappingProxyType({}), dir: str = "auto"
) -> str:
    """Return the lines of a text, each with its number, and the names of pages in front of their first lines."""
    lines, out = Lines(text), list[str]()
    for number in range(len(lines)):
        start, end = lines.start(number), lines.start(number + 1)
        end -= len(text[start:end]) - len(text[start:end].rstrip("\r\n"))
        if name := breaks.get(number + first_line):
            out.append(f'<p class="break">{escape(name)}</p>')
        painted = _painted(text, start, end, marks)
        out.append(f'<div class="line" data-line="{number + first_line}"><span dir="{dir}">{painted}</span></div>')
    return "".join(out)


def _preformatted(text: str, marks: Marks) -> str:
    return f'<pre dir="ltr" tabindex="0"><code>{_painted(text, 0, len(text), marks)}</code></pre>'


# -- Markdown -----------------------------------------------------------------------------------------------------


@lru_cache
def _parser() -> Any:
    """Return the parser of Markdown, which writes marks and addresses by the rules of this module."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    rules = {
        "text": _text_rule,
        "code_inline": lambda *rule: f"<code>{_text_rule(*rule)}</code>",
        "fence": _fence_rule,
        "code_block": _fence_rule,
        "image": lambda tokens, at, *_: f"<i>{escape(tokens[at].content.translate(_UNSEEN)) or 'image'}</i>",
        "link_open": _link_rule,
        "link_close": lambda tokens, at, options, env: f"</{env['link']}>",
    }
    renderer: Any = parser.renderer
    renderer.rules.update(rules)
    parser.parse("a")  # it prepares its rules at first use: before threads share it
    return parser


def _text_rule(tokens: Sequence[Any], at: int, options: Any, env: Mapping[str, Any]) -> str:
    content, place = tokens[at].content, tokens[at].meta.get("place")
    return _painted(content, 0, len(content), env["marks"].moved(place) if place is not None else Marks())


def _fence_rule(tokens: Sequence[Any], at: int, options: Any, env: Mapping[str, Any]) -> str:
    token = tokens[at]
    code = _preformatted(token.content, env["marks"].moved(token.meta["place"]))
    return code.replace("<pre", f'<pre data-line="{token.attrs["data-line"]}"', 1)


def _link_rule(tokens: Sequence[Any], at: int, options: Any, env: dict[str, Any]) -> str:
    """Begin a link to the web or to another document; other addresses are no links."""
    href, env["link"] = str(tokens[at].attrs.get("href", "")), "a"
    if re.match(r"https?://", href, re.IGNORECASE):
        return f'<a href="{escape(href)}" target="_blank" rel="noopener noreferrer nofollow">'
    path = unquote(href.partition("#")[0].partition("?")[0])
    target = normpath(join(dirname(env["id"]), path)) if path else ""
    if not target or re.match(r"[a-z][a-z0-9+.-]*:|/|\.\.", path if ":" in path else target, re.IGNORECASE):
        env["link"] = "span"
        return "<span>"
    return f'<a href="#doc={quote(target, safe="")}">'


def _placed(content: str, text: str, start: int, end: int) -> Sequence[int]:
    """Return the place in a text of every character of what was read from its characters ``start`` to ``end``."""
    if (place := text.find(content, start, end)) >= 0:
        return range(place, place + len(content))
    places = []
    for character in content:  # markup stands between them
        place = text.find(character, start, min(end, start + 200))
        places.append(start if place < 0 else place)
        start = places[-1] + (place >= 0)
    return places


def _markdown(text: str, marks: Marks, id: str, first_line: int) -> str:
    """Return Markdown as HTML, each block with the number of its first line."""
    head, lines, parser = front_matter(text), Lines(text), _parser()
    skipped, cursor = lines.at(len(head)) if head else 0, len(head)
    tokens = parser.parse(text[len(head) :])
    for token in tokens:
        token.attrs.pop("style", None)  # the page's policy refuses it
        if token.map is None:
            continue
        first, last = (number + skipped for number in token.map)
        if token.nesting >= 0:
            token.attrs["data-line"] = first + first_line
        # where each character of it is in the text
        if token.type in ("fence", "code_block"):
            inside = lines.start(min(last, first + (token.type == "fence")))
            token.meta["place"] = _placed(token.content, text, inside, lines.start(last))
        cursor = max(cursor, lines.start(first))
        for child in token.children or ():
            if child.type in ("text", "code_inline") and child.content:
                child.meta["place"] = place = _placed(child.content, text, cursor, lines.start(last))
                cursor = place[-1] + 1
    html = str(parser.renderer.render(tokens, parser.options, {"marks": marks, "id": id}))
    return (_preformatted(head, marks) if head else "") + html


# -- whole texts and snippets -------------------------------------------------------------------------------------


def render(text: str, kind: str, marks: Marks = Marks(), *, id: str = "", first_line: int = 1) -> str:
    """Return a whole text as HTML: rendered Markdown, or numbered lines."""
    if len(text) <= RENDERED and kind == "markdown":
        return _markdown(text, marks, id, first_line)
    if kind.startswith("code:"):
        return f'<div class="code" dir="ltr">{_numbered(text, marks, first_line, dir="ltr")}</div>'
    return _numbered(text, marks, first_line)


def record(document: Document, marks: Marks) -> str:
    """Return a row of a table, or a record, as a table of its columns."""
    content, at, rows = document.content, 0, list[str]()
    for name, value in document.fields.items():
        text = written(value)
        start = content.find(text, at) if text else -1
        if start >= 0:
            at = start + len(text)
        cell = _painted(content, start, at, marks) if start >= 0 else escape(text.translate(_UNSEEN))
        rows.append(f'<tr><th scope="row">{escape(name.translate(_UNSEEN))}</th><td dir="auto">{cell}</td></tr>')
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def whole(document: Document, marks: Marks) -> str:
    """Return a document as HTML."""
    kind = text_kind(document)
    if kind == RECORDS:
        return record(document, marks)
    if kind == "text":
        return _numbered(document.content, marks, 1, _breaks(document))
    return render(document.content, kind, marks, id=document.key)


def _breaks(document: Document) -> dict[int, str]:
    """Return the names of pages, slides or cells by their first lines, as the reader of the file has noted them."""
    try:
        noted = document.payload["places"]
        if noted["kind"] not in ("page", "slide", "cell"):
            return {}
        return {int(line): f"{noted['kind']} {int(number)}" for line, number, *_ in noted["marks"]}
    except (KeyError, TypeError, ValueError):  # no notes, or a payload of another shape
        return {}


def snippet(document: Document, marks: Marks, first_line: int = 1) -> str:
    """Return the part of a passage around its best sentence as HTML; it begins and ends with blocks or sentences."""
    kind, text = text_kind(document), document.content
    if kind == RECORDS:
        return record(document, marks)
    if len(text) > RENDERED:
        kind = "text"
    # 1. what was cut off in front of the passage: the mark of a fence, the header of a table
    ahead = _cut_off(text) if kind == "markdown" else ""
    places: Sequence[int] = range(-len(ahead), len(text))
    text = ahead + text
    # 2. the blocks around the sentence, and of a long one its lines, rows or sentences
    focus = marks.sentence or (0, 0)
    spans = _chosen(text, kind, focus[0] + len(ahead), focus[1] + len(ahead))
    parts = [text[start:end] for start, end in spans]
    places = [places[at] for start, end in spans for at in range(start, end)]
    shown, line = "".join(parts), first_line + text.count("\n", 0, spans[0][0] if spans else 0)
    # 3. their HTML
    moved = marks.moved(places)
    if kind.startswith("code:") or kind == "markdown":
        return render(shown, kind, moved, id=document.key, first_line=line)
    return plain(shown, moved)


def _cut_off(text: str) -> str:
    """Return what has to stand before a passage of Markdown that begins inside a fence or a table."""
    fences = list(_FENCE.finditer(text))
    if len(fences) % 2 and not fences[0][2]:
        return f"{fences[0][1]}\n"
    lines = text.lstrip("\n").split("\n", 2)
    if lines[0].startswith("|") and not (len(lines) > 1 and re.fullmatch(r"[|\s:-]+", lines[1])):
        columns = max(1, lines[0].rstrip().rstrip("|").count("|"))
        return f"{'|' * (columns + 1)}\n{'|-' * columns}|\n"
    return ""


def _chosen(text: str, kind: str, start: int, end: int) -> list[Span]:
    """Return the parts of a text that a snippet shows, around characters ``start`` to ``end``."""
    blocks = _blocks(text, kind)
    if not blocks:
        return [(0, len(text))]
    at = max(0, bisect_left([first for first, _, _ in blocks], start + 1) - 1)
    first, last, name = blocks[at]
    if last - first > 2 * SHOWN or (name != "prose" and text.count("\n", first, last) > SHOWN_LINES + 2):
        return _inside(text, first, last, name, start, end)
    # neighbours while there is room: what follows, then what is before
    low = high = at
    while True:
        room = SHOWN - (blocks[high][1] - blocks[low][0])
        if high + 1 < len(blocks) and blocks[high + 1][1] - blocks[high + 1][0] <= room:
            high += 1
        elif low and blocks[low - 1][1] - blocks[low - 1][0] <= room:
            low -= 1
        else:
            return [(blocks[low][0], blocks[high][1])]


def _blocks(text: str, kind: str) -> list[tuple[int, int, str]]:
    """Return the outermost blocks of a text: ``prose``, ``code``, ``fence`` or ``table``."""
    if kind.startswith("code:"):
        return [(0, len(text), "code")]
    if kind == "markdown":
        head, lines = front_matter(text), Lines(text)
        skipped = lines.at(len(head)) if head else 0
        names = {"fence": "fence", "table_open": "table", "code_block": "code"}
        blocks = list[tuple[int, int, str]]()
        for token in _parser().parse(text[len(head) :]) if text else ():
            if token.level == 0 and token.map is not None:
                first, last = (lines.start(number + skipped) for number in token.map)
                blocks.append((first, last, names.get(token.type, "prose")))
        return blocks
    return [(match.start(), match.end(), "prose") for match in re.finditer(r"\S.*?(?:\n\s*\n|\Z)", text, re.DOTALL)]


def _inside(text: str, first: int, last: int, name: str, start: int, end: int) -> list[Span]:
    """Return the lines of code, rows of a table with its header, or sentences of a long block around a place."""
    if name != "prose" and last - first <= SHOWN_LINES * LONGEST_CODE_LINE:
        lines = Lines(text)
        top, bottom = lines.at(first), lines.at(max(first, last - 1))
        head = {"table": 2, "fence": 1}.get(name, 0)
        here = lines.at(max(first, min(start, last - 1)))
        low = max(top + head, min(here - SHOWN_LINES // 3, bottom - SHOWN_LINES + 1))
        high = min(bottom, max(low + SHOWN_LINES - 1, lines.at(max(start, min(end, last) - 1))))
        spans = [(lines.start(top), lines.start(top + head))] if head else []
        return [*spans, (lines.start(low), min(last, lines.start(high + 1)))]
    sentences = [(at + first, to + first) for at, to in split_sentences(text[first:last])] or [(first, last)]
    low = high = max(0, bisect_left([at for at, _ in sentences], start + 1) - 1)
    while high + 1 < len(sentences) and (
        sentences[high][1] < end or sentences[high + 1][1] - sentences[low][0] <= SHOWN
    ):
        high += 1
    while low and sentences[high][1] - sentences[low - 1][0] <= SHOWN:
        low -= 1
    return [(sentences[low][0], sentences[high][1])]


def quoted(document: Document, text: str, marks: Marks) -> str:
    """Return a sentence, a row or a block of code of a document as HTML."""
    kind = text_kind(document)
    if kind == "markdown":
        ahead = _cut_off(text)
        return _markdown(ahead + text, marks.moved(range(-len(ahead), len(text))), document.key, 1)
    if kind.startswith("code:"):
        return render(text, kind, marks)
    return plain(text, marks)


def plain(text: str, marks: Marks) -> str:
    """Return a short text without markup as a paragraph."""
    return f'<p class="plain" dir="auto">{_painted(text, 0, len(text), marks)}</p>'
