"""Tables with a heading, comma- or tab-separated, plain or gzipped; every complaint names the file and the line."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palmette.errors import InputError

__all__ = ["is_table", "read_table"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LONGEST = 2**31 - 1
"""Characters of a cell: a whole book fits."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(\.\d+)?")
_TEXTS = ("_id", "id", "title", "text")
"""Columns that stay as they are written, whatever stands in them."""


def is_table(path: Path) -> bool:
    """Whether the name says a table (``.csv`` or ``.tsv``, perhaps ``.gz``)."""
    return Path(path.name.removesuffix(".gz")).suffix.lower() in SEPARATORS


def read_table(path: Path, kept: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str | int | float]]]:
    """The rows by column, each with its place ``file:number``: numbers as numbers, empty cells left out.

    Columns in ``kept`` are there in every row, so that one row tells as much of the table as any other.
    """
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    separator = SEPARATORS[Path(path.name.removesuffix(".gz")).suffix.lower()]
    how: dict[str, Any] = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
    try:
        with gzip.open(path, **how) if path.suffix == ".gz" else path.open(**how) as lines:
            rows = csv.DictReader(lines, delimiter=separator, strict=True)
            names = _known([name.strip() for name in rows.fieldnames or ()])
            _check_heading(path, names)
            rows.fieldnames = names
            for row in rows:
                place = f"{path}:{rows.line_num}"
                if None in row:
                    raise InputError(f"{place}: more cells than the heading has columns ({', '.join(names)})")
                cells = {name: (cell or "").strip() for name, cell in row.items()}
                yield place, {n: _value(n, cell) for n, cell in cells.items() if cell or n in kept}
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as a table ({error}); expected UTF-8 text with a heading"
        ) from error


def _known(names: Sequence[str]) -> list[str]:
    """The heading with ``Text`` or ``ID`` as ``text`` and ``id``, unless such a column is there already."""
    lower = [name.lower() for name in names]
    own = {one for one in _TEXTS if one not in names and lower.count(one) == 1}
    return [low if low in own else name for name, low in zip(names, lower, strict=True)]


def _check_heading(path: Path, names: Sequence[str]) -> None:
    """Raise where columns cannot be told apart."""
    if len(names) == 1 and (found := re.search(r"[,;\t|]", names[0])):
        raise InputError(
            f"{path}: the heading {names[0]!r:.80} is one column: cells seem to be parted by {found[0]!r}; a .csv is "
            "parted by ',', a .tsv by tabs"
        )
    for at, name in enumerate(names):
        if not name:
            raise InputError(f"{path}: column {at + 1} has no name: name it in the heading, or take it away")
        if name in names[:at]:
            raise InputError(f"{path}: two columns are named {name!r}: give them different names")


def _value(name: str, cell: str) -> str | int | float:
    number = None if name in _TEXTS else _NUMBER.fullmatch(cell)
    if number is None:
        return cell
    return float(cell) if number[1] else int(cell)
