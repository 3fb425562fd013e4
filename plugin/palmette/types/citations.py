"""Citations: where a passage stands in its file, as a person would name it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from palmette.types.documents import LINE_END, Document, Metadata, Passage

PlaceKind = Literal["page", "slide", "sheet", "cell", "row", "record", "lines"]
PLACES = "places"
"""Key of a document's payload under which the reader of its file notes which page, slide, row, … each line is of."""
CITATION = "citation"
"""Metadata key of a framework's passage: its citation, such as *guide.md › Pruning, lines 40–52*."""
PLACE = "place"
"""Metadata key of a framework's passage: the parts of its citation, as JSON."""
_SOURCES = ("source", "file_name")
"""Metadata that name a document's file."""
CITED_BY = (CITATION, PLACE, *_SOURCES, "page_label")
"""Metadata that the citation of a framework's passage is made of."""
_NUMBERS = ("first", "last", "start", "end")


@dataclass(frozen=True)
class Citation:
    """Place of a passage; as a text, ``handbook.pdf › Keys, page 12``."""

    file: str
    """What the document's metadata have as ``source``, else its id."""
    headings: tuple[str, ...] = ()
    """Headings above the passage, from the outermost."""
    kind: PlaceKind = "lines"
    """What ``first`` and ``last`` number, from 1: pages, slides, sheets, cells, rows, records or lines."""
    name: str = ""
    """Name of the sheet that rows are of."""
    first: int = 1
    last: int = 1
    start: int = 0
    """First character in the content of the whole document."""
    end: int = 0
    """Character after the last."""
    is_only_line: bool = field(default=False, repr=False)
    """Whether the text names no line, since the document has no other."""

    def to_dict(self) -> dict[str, Any]:
        """The parts as JSON values."""
        facts = asdict(self) | {"headings": list(self.headings)}
        del facts["is_only_line"]
        return facts

    def __str__(self) -> str:
        names = [self.file, *self.headings]
        if self.name and self.name not in self.headings:
            names.append(self.name)
        text = " ".join(" \u203a ".join(names).split())  # one line, whatever a file is called
        if self.is_only_line:
            return text
        kind, is_single = self.kind.removesuffix("s"), self.first == self.last
        return f"{text}, {kind} {self.first}" if is_single else f"{text}, {kind}s {self.first}\u2013{self.last}"


def cite(document: Document, passage: Passage | None, span: tuple[int, int] | None = None) -> Citation:
    """Cite a passage, whose text is the document's content; or a ``span`` of its characters, such as an answer.

    The content of a passage that no search found (``None``) counts as a whole document, unless its metadata cite it:
    a framework's retriever found it.
    """
    content = document.content
    if passage is None and (given := _given(document.metadata)):
        return given if span is None else _narrow(given, content, span)
    sources = (document.metadata.get(name) for name in _SOURCES)
    file = next((source for source in sources if isinstance(source, str) and source.strip()), document.key)
    place = Passage(0, len(content), (), 1, content.count("\n") + 1) if passage is None else passage
    first, last, start, end = place.first_line, place.last_line, place.start, place.end
    if span is not None:
        first, last = _lines(content, span, place.first_line)
        start, end = place.start + span[0], place.start + span[1]
    if passage is not None and (noted := _noted(document.payload.get(PLACES), first, last)):
        return Citation(file, place.headings, *noted, start, end)
    label = str(document.metadata.get("page_label", ""))  # a framework's loader gives a document for each page
    if file.lower().endswith(".pdf") and label.isdecimal():
        return Citation(file, place.headings, "page", "", int(label), int(label), start, end)
    is_only_line = passage is None or (place.first_line == place.last_line and place.count == 1)
    return Citation(file, place.headings, "lines", "", first, last, start, end, is_only_line)


def _given(metadata: Metadata) -> Citation | None:
    """Return the citation that a passage's metadata hold; nothing where ``place`` is a user's own."""
    try:
        cited = Citation(**{**metadata[PLACE], "headings": tuple(metadata[PLACE]["headings"])})
        only_line = replace(cited, is_only_line=True)
        is_without_line = str(only_line) == metadata.get(CITATION)
    except (AttributeError, KeyError, TypeError):
        return None
    given = cited.to_dict()
    if not (isinstance(given["kind"], str) and all(isinstance(given[one], int) for one in _NUMBERS)):
        return None
    return only_line if is_without_line else cited


def _narrow(cited: Citation, content: str, span: tuple[int, int]) -> Citation:
    """Cite a span of a passage by its own characters and lines; of several pages, which are unknown, by all."""
    if cited.end - cited.start != len(content):  # the text has more, or less, than the passage
        return cited
    narrowed = replace(cited, start=cited.start + span[0], end=cited.start + span[1])
    if cited.kind != "lines":
        return narrowed
    first, last = _lines(content, span, cited.first)
    return replace(narrowed, first=first, last=last)


def _lines(content: str, span: tuple[int, int], first: int) -> tuple[int, int]:
    """Return the lines of the first and the last character of a span, in a text that begins on line ``first``."""
    before, after = (len(LINE_END.findall(content, 0, at)) for at in (span[0], max(span[0], span[1] - 1)))
    return first + before, first + after


def _noted(noted: Any, first: int, last: int) -> tuple[PlaceKind, str, int, int] | None:
    """Return kind, sheet, and first and last number of some lines, as the reader of the file noted them."""
    try:
        kind, marks, names = noted["kind"], noted["marks"], noted.get("sheets", ())
        before, after = (
            marks[max(0, bisect_right(marks, line, key=lambda mark: mark[0]) - 1)] for line in (first, last)
        )
        if kind != "sheet":
            return kind, "", int(before[1]), int(after[1])
        if before[2] != after[2]:
            return "sheet", "", int(before[2]), int(after[2])
        rows = (max(mark[1], mark[1] + line - mark[0]) for mark, line in ((before, first), (after, last)))
        return "row", str(names[before[2] - 1]), *rows
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # no notes, or a user's payload
        return None


def join_numbered(parts: Iterable[tuple[int, str]], kind: PlaceKind) -> tuple[str, Metadata]:
    """Join the numbered parts of a file (pages, slides, cells) by blank lines; also return what number each line has.

    >>> join_numbered([(1, "They purr."), (2, ""), (3, "They sleep.")], "page")[1]
    {'kind': 'page', 'marks': [[1, 1], [3, 3]]}
    """
    texts, marks, line = list[str](), list[list[int]](), 1
    for number, text in parts:
        if text:
            texts.append(text)
            marks.append([line, number])
            line += len(LINE_END.findall(text)) + 2
    return "\n\n".join(texts), {"kind": kind, "marks": marks}


def numbered(kind: PlaceKind, number: int) -> Mapping[str, Any]:
    """Payload of a document that is one row of a table, or one record."""
    return {PLACES: {"kind": kind, "marks": [[1, number]]}}
