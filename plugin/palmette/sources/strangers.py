"""Texts of PDF, Word, PowerPoint, Excel and EPUB files, by libraries that a strange file may lead astray.

This module runs in a process of its own (``worker.py``), and imports what one kind of file needs, when it is needed.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from palmette.errors import InputError, MissingExtraError
from palmette.machine.files import RATIO, SMALL
from palmette.sources.decode import decode
from palmette.sources.pages import html_to_markdown
from palmette.types import LONGEST_DOCUMENT, Metadata, join_numbered

_NEEDED = {".docx": "markitdown", ".pptx": "markitdown", ".xlsx": "openpyxl", ".epub": "defusedxml", ".pdf": "pypdf"}
"""Suffix → module that reads such files."""
_GRID = 2**18
"""Cells of a sheet's table, empty ones included, above which empty ones are left out where most are empty."""
_SLIDE = re.compile(r"<!-- Slide number: (\d{1,6}) -->")
_NO_HEADING = re.compile(r"<p>\s*(?=#{1,6}[\s<])")
"""The begin of a paragraph that would become a heading of Markdown."""
_MARKS = re.compile(r"^(?:#{1,2} |#{4,6} |={2,}\s*$|-{2,}\s*$)", re.MULTILINE)
"""Lines of a slide that would become headings; a third level is the converter's, of notes and charts."""
_ROW = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}row"
_FACTS = "Title Authors:creator Language Publisher Date Description Identifier".split()
"""Facts of a book that stand above its text, each with its name in the file where that is another."""


class Converted(NamedTuple):
    """Text of a file, the title that the file states, further facts, and what page, slide or row each line is of."""

    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = {}
    places: Mapping[str, Any] = {}


def check_installed(suffix: str) -> None:
    """Raise if the library that reads files of a suffix is not installed."""
    module = _NEEDED[suffix]
    if find_spec(module) is None:
        kind = "PDF files" if suffix == ".pdf" else "Word, PowerPoint, Excel and EPUB files"
        raise MissingExtraError(module, "files", f"reading {kind}")


def converter(suffix: str) -> Callable[[BinaryIO], Converted]:
    """Import what reads files of a suffix, and return a function that does so."""
    if suffix == ".pdf":
        import pypdf

        logging.getLogger(pypdf.__name__).setLevel(logging.CRITICAL)  # it tells of every flaw that it can read over
        return _pdf
    if suffix == ".xlsx":
        import openpyxl  # noqa: F401

        return _unpacked(suffix, _workbook)
    if suffix == ".epub":
        import markdownify  # noqa: F401

        return _unpacked(suffix, _book)
    return _unpacked(suffix, _by_markitdown(suffix))


def _unpacked(suffix: str, convert: Callable[[BinaryIO], Converted]) -> Callable[[BinaryIO], Converted]:
    """Refuse archives that are none, or that unpack to much more than their size."""

    def checked(file: BinaryIO) -> Converted:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
        except zipfile.BadZipFile as error:
            raise InputError(f"it is no {suffix} file, or a part of one ({error})") from error
        if unpacked > max(SMALL, RATIO // 4 * os.fstat(file.fileno()).st_size):  # real ones reach 20 times
            raise InputError(f"it unpacks to {unpacked:,} bytes: open it, if you trust it, and save it as text")
        file.seek(0)
        return convert(file)

    return checked


def _by_markitdown(suffix: str) -> Callable[[BinaryIO], Converted]:
    """Return markitdown's converter of Word or PowerPoint files.

    Its packages are entered without their ``__init__``, which would import models and data frames that no converter
    needs here: 80 MB and five times the time. Where a version is built otherwise, they are imported whole.
    """
    name = f"{suffix[1:].capitalize()}Converter"
    try:
        if (spec := find_spec("markitdown")) is not None and "markitdown" not in sys.modules:
            for package, folder in (("markitdown", ""), ("markitdown.converters", "converters")):
                sys.modules[package] = module_from_spec(ModuleSpec(package, None, is_package=True))
                sys.modules[package].__path__ = [
                    str(Path(path, folder)) for path in spec.submodule_search_locations or ()
                ]
        converter = getattr(import_module(f"markitdown.converters._{suffix[1:]}_converter"), name)()
        stream_info = import_module("markitdown._stream_info").StreamInfo
    except (ImportError, AttributeError):
        for module in [module for module in sys.modules if module.partition(".")[0] == "markitdown"]:
            del sys.modules[module]
        converter = getattr(import_module("markitdown.converters"), name)()
        stream_info = import_module("markitdown").StreamInfo
    pages: Any = getattr(converter, "_html_converter", None)
    if suffix == ".docx" and hasattr(pages, "convert_string"):
        to_markdown = pages.convert_string
        pages.convert_string = lambda page, **options: to_markdown(_NO_HEADING.sub(r"\g<0>\\", page), **options)

    def read(file: BinaryIO) -> Converted:
        result = converter.convert(file, stream_info(extension=suffix))
        text = str(result.markdown)
        if suffix != ".pptx":
            return Converted(text, result.title)
        text, places = _slides(text)
        return Converted(text, result.title, places=places)

    return read


def _slides(text: str) -> tuple[str, Metadata]:
    """Take markitdown's comments with the numbers of slides out of a presentation's text."""
    slides, number = list[tuple[int, str]](), 0
    pieces = _SLIDE.split(text)  # what is before the first slide; then a number and a text in turns
    for told, piece in zip(["0", *pieces[1::2]], pieces[::2], strict=True):
        if int(told) in (0, number + 1):
            number = int(told)
            slides.append((number, piece))
        else:  # words of a slide that look like such a comment
            slides[-1] = number, f"{slides[-1][1]}<!-- Slide number: {told} -->{piece}"
    return join_numbered(((number, _headed(piece.strip())) for number, piece in slides), "slide")


def _headed(slide: str) -> str:
    """Leave a slide its title as the only heading of the first level: lines of code begin with such marks, too."""
    title = re.search(r"^# .*$", slide, re.MULTILINE)
    marks = (match for match in _MARKS.finditer(slide) if title is None or match.start() != title.start())
    places = [0, *(match.start() for match in marks), len(slide)]
    return "\\".join(slide[start:end] for start, end in pairwise(places))


def _pdf(file: BinaryIO) -> Converted:
    """Return the text of a PDF page by page, as it is printed: there are no headings in it."""
    from pypdf import PdfReader

    reader = PdfReader(file)
    pages, size = list[str](), 0
    for number, page in enumerate(reader.pages, 1):
        try:
            pages.append(page.extract_text().replace("\f", "\n").strip())
        except Exception as error:
            raise InputError(f"page {number} cannot be read ({reason_of(error)})") from error
        size = _bounded(size + len(pages[-1]))
    if not any(pages):
        raise InputError("no text was found in it: its pages may be pictures, which need character recognition")
    title = reader.metadata.title if reader.metadata else None
    title = title.strip() if isinstance(title, str) else ""
    text, places = join_numbered(enumerate(pages, 1), "page")
    return Converted(text, title or None, {"pages": len(pages)}, places)


def _bounded(characters: int) -> int:
    """Refuse a text that is longer than a document may be, before all of it is in memory."""
    if characters > LONGEST_DOCUMENT:
        raise InputError(f"it has more than {LONGEST_DOCUMENT:,} characters: split it")
    return characters


# -- workbooks ----------------------------------------------------------------------------------------------


def _workbook(file: BinaryIO) -> Converted:
    """Return the sheets of a workbook as headings and tables of their filled cells.

    Rows and columns without any value are left out, however far away the last cell is.
    """
    from openpyxl import load_workbook

    book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
    parts, size, marks, line = list[str](), 0, list[list[int]](), 1
    for place, sheet in enumerate(book.worksheets, 1):
        rows, numbers = list[dict[int, str]](), list[int]()
        for number, row in _filled_rows(sheet, book):
            size = _bounded(size + sum(map(len, row.values())))
            rows.append(row)
            numbers.append(number)
        if rows:
            table = "\n".join(_table(rows))
            size = _bounded(size + len(table) - sum(len(text) for row in rows for text in row.values()))
            parts.append(f"## {sheet.title}\n{table}")
            # The heading, the head of the table and the line under it are of the first row; then a line is a row, and
            # where rows were left out a new mark says so.
            marks += [[line + below, numbers[0], place] for below in range(3)]
            line += 3
            for before, number in pairwise(numbers):
                if number != before + 1:
                    marks.append([line, number, place])
                line += 1
            line += 1
    places = {"kind": "sheet", "marks": marks, "sheets": [sheet.title for sheet in book.worksheets]}
    return Converted("\n\n".join(parts), places=places)


def _filled_rows(sheet: Any, book: Any) -> Iterator[tuple[int, dict[int, str]]]:
    """Yield the rows of a sheet that hold a value, each with its number: column → text.

    openpyxl's own rows are padded to the last column and by the rows between; its parser gives the cells that the file
    has.
    """
    from openpyxl.worksheet._reader import WorkSheetParser
    from openpyxl.xml.functions import iterparse

    with sheet._get_source() as source:
        parser = WorkSheetParser(
            source, sheet._shared_strings, data_only=True, epoch=book.epoch,
            date_formats=book._date_formats, timedelta_formats=book._timedelta_formats,
        )  # fmt: skip
        for _, element in iterparse(source):
            if element.tag != _ROW:
                continue
            try:
                number, cells = parser.parse_row(element)
            except MemoryError:
                raise
            except Exception as error:
                where = f"sheet {sheet.title!r}, row {parser.row_counter}"
                raise InputError(f"{where}: cannot be read ({reason_of(error)})") from error
            element.clear()
            parser.row_dimensions.clear()
            row = {cell["column"]: text for cell in cells if (text := _cell(cell["value"]))}
            if row:
                yield number, row


def _cell(value: Any) -> str:
    """Return the value of a cell as one line of a table."""
    if value is None:
        return ""
    text = (
        value.isoformat(" ").removesuffix(" 00:00:00") if hasattr(value, "hour") and hasattr(value, "year") else value
    )
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(rows: Sequence[Mapping[int, str]]) -> Iterator[str]:
    """Yield the lines of a table; its head is the first row."""
    columns, filled = sorted({column for row in rows for column in row}), sum(map(len, rows))
    sparse = len(columns) * len(rows) > max(_GRID, 8 * filled)
    for number, row in enumerate(rows):
        cells = list(row.values()) if sparse else [row.get(column, "") for column in columns]
        yield f"| {' | '.join(cells)} |"
        if not number:
            yield f"|{' --- |' * len(cells)}"


# -- books --------------------------------------------------------------------------------------------------


def _book(file: BinaryIO) -> Converted:
    """Return the pages of an EPUB in the order of its spine, each once, below what the book says of itself."""
    from defusedxml.ElementTree import fromstring

    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        container = fromstring(archive.read("META-INF/container.xml"))
        root = next(element for element in container.iter() if _tag(element) == "rootfile").get("full-path", "")
        package = fromstring(archive.read(root))
        elements = list(package.iter())
        places = {item.get("id"): item.get("href", "") for item in elements if _tag(item) == "item"}
        spine = [places.get(item.get("idref"), "") for item in elements if _tag(item) == "itemref"]
        # 1. What the book says of itself.
        facts = []
        for fact in _FACTS:
            fact_name, _, tag = fact.partition(":")
            values = [_words(element) for element in elements if _tag(element) == (tag or fact_name.lower())]
            if text := ", ".join(filter(None, values if tag else values[:1])):
                facts.append(f"**{fact_name}:** {text}")
        # 2. Its pages.
        parts, size = ["\n".join(facts)], 0
        for name in dict.fromkeys(_inside(href, root, names) for href in dict.fromkeys(spine)):
            if name:
                try:
                    text, _ = html_to_markdown(decode(archive.read(name)), whole=True)
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
                size = _bounded(size + len(text))
                parts.append(text.strip())
    title = next((text for element in elements if _tag(element) == "title" and (text := _words(element))), None)
    return Converted("\n\n".join(filter(None, parts)) if any(parts[1:]) else "", title)


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _words(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())


def _inside(href: str, root: str, names: set[str]) -> str:
    """Return the name in the archive that a reference of the file ``root`` means; nothing where there is none."""
    for candidate in (unquote(href), href):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(root), candidate.partition("#")[0]))
        if name in names:
            return name
    return ""


def reason_of(error: BaseException) -> str:
    """Say in one line why something failed."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
