"""Answers from a row of a table, or a record: its name, and the columns that the question asks for.

"price of LH-1004" over ``| part | price | stock |`` … ``| LH-1004 | 12.50 | 3 |`` gives ``LH-1004: price 12.50``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from palmette.reader.scores import words_of
from palmette.types import PLACES, Document

LONGEST_VALUE = 12
"""Words of the longest value of a record that is read as a row; one with longer values is prose."""
_TABLE = re.compile(
    r"^(?P<head>[ \t]*\|(?P<names>.*\|)[ \t]*\n[ \t]*\|(?=.*-)[ \t|:-]+)$(?P<rows>(?:\n[ \t]*\|.*)*)", re.MULTILINE
)
_ROW = re.compile(r"[^\n]+")
_IDENTIFIER = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*|(?<!\w)\w+(?:[-_./:]+\w+)+")
_BAR = re.compile(r"(?<!\\)\|")


def heads_of(text: str) -> list[tuple[int, int]]:
    """Return the characters of the heads of tables, with the rule below."""
    return [match.span("head") for match in _TABLE.finditer(text)]


def identifiers_of(question: str) -> re.Pattern[str] | None:
    """Return what finds the identifiers of a question as wholes; nothing of a question without one."""
    names = [one[0] for one in _IDENTIFIER.finditer(question) if one[0][0] == "-" or re.search(r"[\d_]", one[0])]
    return re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names), re.I) if names else None


def row_around(text: str, question: str, start: int, end: int) -> tuple[int, int, list[str], list[str]] | None:
    """Return the row that an answer lies in, or that has the question's identifier, with its columns and values.

    Nothing outside of tables, and where the head of the table is not in the text.
    """
    for table in _TABLE.finditer(text):
        rows = [match.span() for match in _ROW.finditer(text, *table.span("rows"))]
        own = next((row for row in rows if row[0] <= start and end <= row[1]), None)
        if own:
            identifiers = identifiers_of(question)
            first, last = next((row for row in rows if identifiers and identifiers.search(text, *row)), own)
            names, values = _cells(table["names"]), _cells(text[first:last].strip().removeprefix("|"))
            return (first, last, names, values) if len(names) == len(values) else None
    return None


def record_of(document: Document) -> tuple[list[str], list[str]] | None:
    """Return the columns and values of a record of short values; nothing of other documents."""
    fields = {name: str(value) for name, value in document.fields.items() if value is not None}
    values, noted = list(fields.values()), document.payload.get(PLACES)
    short = all(len(value.split()) <= LONGEST_VALUE for value in values)
    row = isinstance(noted, Mapping) and noted.get("kind") in ("row", "record")
    return (list(fields), values) if row and short and len(values) > 1 and "text" not in fields else None


def row_answer(question: str, names: Sequence[str], values: Sequence[str]) -> str:
    """Write a row as ``name: column value``, with the columns that the question names, or else all of them."""
    asked, columns = words_of(question), [*zip(names, values, strict=True)][1:]
    columns = [(name, value) for name, value in columns if value]
    chosen = [(name, value) for name, value in columns if words_of(name) & asked] or columns
    said = ", ".join(f"{name} {value}".strip() for name, value in chosen)
    return ": ".join(filter(None, (values[0], said)))


def _cells(row: str) -> list[str]:
    """Return the cells of a row, which begins after its first bar."""
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(row.rstrip().removesuffix("|"))]
