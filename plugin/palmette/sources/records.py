"""Records of JSON lines and of tables, plain or gzipped, as documents; every error names the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from palmette.config import check_kind, parse_untrusted_json
from palmette.errors import DuplicateIdError, InputError, NotFoundError, shown
from palmette.machine.files import RATIO, SMALL, open_source, reading
from palmette.machine.progress import progress_bar
from palmette.types import Document
from palmette.types.values import written

T = TypeVar("T")
RowOrFault = tuple[str, T | InputError]
"""A row, or what is wrong with it, with its place ``file:number``."""
Cells = dict[str, str | int | float]
TEXT_KEYS = ("text", "title")
SOURCE_KEYS = ("source", "file_path", "page", "page_label")
"""Metadata that name where a document comes from, in messages."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}
LONGEST_LINE = 2**25
"""Characters of a line, and of a table's cell: a whole book fits."""
UNPACKED = 2**30
"""Bytes of a file that is read as a whole."""
BLANK = 2**20
"""Most blank lines of a file."""
MOST_CELLS = 2**18
"""Most cells of a row, counted by its separators."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(\.\d+)?")
_TEXT_COLUMNS = ("_id", "id", "title", "text")
"""Columns whose cells are never read as numbers."""


def is_jsonl(path: Path) -> bool:
    """A name of JSON lines: ``.jsonl`` or ``.ndjson``, perhaps ``.gz``."""
    return path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def separator(path: Path) -> str:
    """Separator of a table, ``.csv`` or ``.tsv``, perhaps ``.gz``; nothing for other names."""
    return SEPARATORS.get(Path(path.name.removesuffix(".gz")).suffix.lower(), "")


def existing(path: Path) -> Path | None:
    """``path``, or its ``.gz``, or nothing."""
    with reading(path, InputError):
        return next((file for file in (path, path.with_name(f"{path.name}.gz")) if file.is_file()), None)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the errors raised inside with a place, such as ``corpus.jsonl:17``."""
    try:
        yield
    except InputError as error:
        kind = DuplicateIdError if isinstance(error, DuplicateIdError) else InputError
        raise kind(f"{where}: {error}") from error


@contextmanager
def _open(path: Path, root: Path | None, encoding: str, newline: str | None = None) -> Iterator[tuple[IO[str], float]]:
    """Open a text, perhaps gzipped; yields it and the most characters that are read of it."""
    with open_source(path, root) as file:
        packed = path.suffix == ".gz"
        most = max(SMALL, RATIO * os.fstat(file.fileno()).st_size) if packed else math.inf
        content: Any = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(content, encoding=encoding, newline=newline) as text:
            yield text, most


def _lines(file: IO[str], path: Path, most: float, sign: str = "") -> Iterator[str]:
    """Yield lines, within the limits of memory; those of a table are parted by ``sign`` into cells."""
    read, blank = 0, 0
    while line := file.readline(LONGEST_LINE + 1):
        read += len(line)
        blank += line.isspace()
        if len(line) > LONGEST_LINE:
            raise InputError(f"{path}: a line is longer than {LONGEST_LINE:,} characters: one document a line")
        if read > most:
            raise InputError(f"{path} unpacks to more than {most:,} characters: unpack it, if you trust it")
        if blank > BLANK:
            raise InputError(f"{path} has more than {BLANK:,} blank lines: take them away")
        if sign and line.count(sign) > MOST_CELLS:
            raise InputError(f"a line has more than {MOST_CELLS:,} times {sign!r}: split its cells")
        yield line


def read_whole(path: Path, root: Path | None = None, most: int = UNPACKED) -> bytes:
    """Content of a file, unpacked."""
    with reading(path, InputError), open_source(path, root) as file:
        size, packed = os.fstat(file.fileno()).st_size, path.suffix == ".gz"
        most = min(most, max(SMALL, RATIO * size)) if packed else most
        if size > most and not packed:
            raise InputError(f"{path} has {size:,} bytes, and may have {most:,}: split it")
        data = gzip.GzipFile(fileobj=file).read(most + 1) if packed else file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path} is larger than {most:,} bytes, or unpacks to more: split it, or unpack it")
    return data


def read_lines(path: Path, root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its place ``file:number``."""
    if not path.is_file():
        raise NotFoundError(f"there is no file {str(path)!r}")
    number, options = 0, {"desc": f"reading {path.name}", "unit": "line", "delay": 2, "leave": False}
    try:
        with _open(path, root, encoding="utf-8") as (lines, most):
            for number, line in enumerate(progress_bar(None, _lines(lines, path, most), **options), 1):
                if (text := line.strip("\ufeff\r\n")) and not text.isspace():
                    yield f"{path}:{number}", text
    except (UnicodeDecodeError, OSError, zlib.error, EOFError) as error:
        raise InputError(f"{path}: cannot be read after line {number} ({error}); expected UTF-8 text") from error


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of a file, each with its place ``file:number``."""
    for place, row in json_rows(path):
        if isinstance(row, InputError):
            raise row
        yield place, row


def json_rows(path: Path, root: Path | None = None) -> Iterator[RowOrFault[dict[str, Any]]]:
    """Objects of a file, or what is wrong with a line, each with its place ``file:number``."""
    for place, line in read_lines(path, root):
        try:
            value = parse_untrusted_json(line)
        except ValueError as error:
            yield place, InputError(f"{place}: not JSON ({error}): {line:.80}")
            continue
        if isinstance(value, dict):
            yield place, value
        else:
            reason = f"expected a JSON object per line, got {type(value).__name__}: {line:.80}"
            yield place, InputError(f"{place}: {reason}")


def table_rows(path: Path, required: Sequence[str] = (), root: Path | None = None) -> Iterator[RowOrFault[Cells]]:
    """Rows by column, or what is wrong with one, each with its place ``file:number``.

    Numbers become numbers, and empty cells are left out. Every row has the ``required`` columns, so that each says as
    much of the table as any other.
    """
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))
    try:
        with _open(path, root, encoding="utf-8-sig", newline="") as (lines, most):
            sign = separator(path)
            rows = csv.DictReader(_lines(lines, path, most, sign), delimiter=sign, strict=True)
            rows.fieldnames = names = _heading(path, [name.strip() for name in rows.fieldnames or ()])
            for row in rows:
                place = f"{path}:{rows.line_num}"
                if None in row:
                    yield place, InputError(f"{place}: more cells than the heading has columns ({', '.join(names)})")
                    continue
                cells = {name: (cell or "").strip() for name, cell in row.items()}
                values: dict[str, str | int | float] = {}
                for name, cell in cells.items():
                    if not cell and name not in required:
                        continue
                    # Cells that are numbers become numbers, but not ids and texts.
                    number = None if name in _TEXT_COLUMNS else _NUMBER.fullmatch(cell)
                    values[name] = cell if number is None else float(cell) if number[1] else int(cell)
                yield place, values
    except (UnicodeDecodeError, OSError, zlib.error, EOFError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table ({error}); expected UTF-8 text with a heading") from error


def _heading(path: Path, names: list[str]) -> list[str]:
    """Column names, ``Text`` or ``ID`` as ``text`` and ``id`` unless such a column exists; ambiguous ones raise."""
    lower = [name.lower() for name in names]
    known = {column for column in _TEXT_COLUMNS if column not in names and lower.count(column) == 1}
    names = [low if low in known else name for name, low in zip(names, lower, strict=True)]
    if len(names) == 1 and (mark := re.search(r"[,;\t|]", names[0])):
        raise InputError(
            f"{path}: the heading {shown(names[0])} is one column: cells seem to be parted by {mark[0]!r}; a .csv is "
            "parted by ',', a .tsv by tabs"
        )
    before = set[str]()
    for at, name in enumerate(names):
        if not name:
            raise InputError(f"{path}: column {at + 1} has no name: name it in the heading, or take it away")
        if name in before:
            raise InputError(f"{path}: two columns are named {name!r}: give them different names")
        before.add(name)
    return names


def make_document(
    identity: str | None, text: Any, metadata: Mapping[str, Any] | None = None, fields: Mapping[str, Any] | None = None
) -> Document:
    """Make a document; one without words raises, named by its id and its source."""
    metadata, fields = dict(metadata or {}), dict(fields or {})
    if isinstance(text, str) and not text.strip() and not fields:
        origin = origin_of(identity, metadata)
        raise InputError(f"document{origin} is empty: give it a text (or fields), or leave it out")
    return Document(identity, text, metadata, fields)


def id_of(value: Any) -> str | None:
    """Id of a framework's document."""
    return getattr(value, "node_id", None) or getattr(value, "id", None) or None


def origin_of(identity: str | None, metadata: Mapping[str, Any]) -> str:
    """Id, source and page of a document, for messages."""
    origin = [f"{key} {metadata[key]!r}" for key in SOURCE_KEYS if key in metadata]
    return (f" {shown(identity)}" if identity else "") + (f" of {', '.join(origin)}" if origin else "")


def from_record(record: Mapping[str, Any], titles: bool = True) -> Document:
    """Document from ``_id`` or ``id``, ``title``, ``text``, ``metadata``, ``fields``.

    As in BEIR the text is title and text, joined by a blank, unless the text starts with the title or ``titles`` is
    off (the title is in metadata and fields anyway). Further keys become fields if they hold objects, else metadata.
    """
    if not any(key in record for key in (*TEXT_KEYS, "fields")):
        raise InputError(f"a document needs 'text' or 'title'; got the keys {', '.join(map(repr, record)) or 'none'}")
    for key in TEXT_KEYS:
        check_kind(shown(key), record.get(key) or "", str, "a str")
    for key in ("metadata", "fields"):
        check_kind(shown(key), record.get(key) or {}, Mapping, "an object")
    title, text = ((record.get(key) or "").strip() for key in ("title", "text"))
    identity = record.get("_id", record.get("id"))
    if isinstance(identity, bool) or not isinstance(identity, str | int | None):
        raise InputError(f"a document id must be a str or an int, got {shown(identity, 60)}")
    metadata, fields = ({"title": title} if title else {} for _ in range(2))
    for key, value in record.items():
        if key not in ("_id", "id", "title", "text", "metadata", "fields"):
            (fields if isinstance(value, Mapping) else metadata)[key] = value
    return make_document(
        None if identity is None else str(identity),
        text if text and (text.startswith(title) or not titles) else f"{title} {text}".strip(),
        metadata | dict(record.get("metadata") or {}),
        fields | dict(record.get("fields") or {}),
    )


def from_row(record: Mapping[str, Any], titles: bool = True) -> Document:
    """Document from a row of a table; all columns are fields where the table has neither text nor title.

    Its text names the column of each cell, since many cells (``45``) say nothing alone.
    """
    named = {key: record[key] for key in ("_id", "id") if key in record}
    columns = {key: value for key, value in record.items() if key not in named}
    if not any(key in record for key in TEXT_KEYS):
        text = "\n".join(f"{name}: {cell}" for name, value in columns.items() if (cell := written(value)))
        return from_record({**named, "text": text, "metadata": columns, "fields": columns})
    if any(record.get(key) for key in TEXT_KEYS):
        return from_record(record, titles)
    return from_record({**record, "text": "\n".join(filter(None, map(written, columns.values())))})
