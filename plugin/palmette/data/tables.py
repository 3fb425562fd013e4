"""Tables with a heading, comma- or tab-separated, plain or gzipped; every complaint names the file and the line."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palmette.errors import InputError

__all__ = ["is_table", "read_table"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(\.\d+)?")
_TEXTS = ("_id", "id", "title", "text")
"""Columns that stay as they are written, whatever stands in them."""


def is_table(path: Path) -> bool:
    """Whether the name says a table (``.csv`` or ``.tsv``, perhaps ``.gz``)."""
    return Path(path.name.removesuffix(".gz")).suffix.lower() in SEPARATORS


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str | int | float]]]:
    """The rows by column, each with its place ``file:number``: numbers as numbers, empty cells left out."""
    separator = SEPARATORS[Path(path.name.removesuffix(".gz")).suffix.lower()]
    how: dict[str, Any] = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
    try:
        with gzip.open(path, **how) if path.suffix == ".gz" else path.open(**how) as lines:
            rows = csv.DictReader(lines, delimiter=separator, restkey="", strict=True)
            for row in rows:
                place = f"{path}:{rows.line_num}"
                if "" in row or not all(isinstance(name, str) for name in row):
                    raise InputError(
                        f"{place}: more cells than the heading has columns ({', '.join(rows.fieldnames or ())})"
                    )
                cells = {name.strip(): (cell or "").strip() for name, cell in row.items()}
                yield place, {name: _value(name, cell) for name, cell in cells.items() if cell}
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as a table ({error}); expected UTF-8 text with a heading"
        ) from error


def _value(name: str, cell: str) -> str | int | float:
    number = None if name in _TEXTS else _NUMBER.fullmatch(cell)
    if number is None:
        return cell
    return float(cell) if number[1] else int(cell)
