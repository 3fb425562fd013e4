"""Data files: JSON lines, tables and BEIR folders, plain or gzipped; every error names the file and the line."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from palmette.config import parse_json
from palmette.errors import DuplicateIdError, InputError, NotFoundError, shown
from palmette.files import reading

TEXT_SUFFIXES = (".md", ".markdown", ".txt")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SPLIT_NAMES = {"validation": "dev", "valid": "dev", "val": "dev"}
LONGEST = 2**26
"""Characters of a line, and of a table's cell: a whole book fits."""
UNPACKED = 2**30
"""Bytes of a file that is read as a whole."""
RATIO = 200
"""Times its size that a compressed file may unpack to; texts reach 10."""
SMALL = 2**22
"""What any compressed file may unpack to."""
BLANK = 2**20
"""Blank lines of a file."""
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
        return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the errors raised inside with a place, such as ``corpus.jsonl:17``."""
    try:
        yield
    except InputError as error:
        kind = DuplicateIdError if isinstance(error, DuplicateIdError) else InputError
        raise kind(f"{where}: {error}") from error


def _open(path: Path, encoding: str, newline: str | None = None) -> IO[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else Path.open
    file: IO[str] = opener(path, "rt", encoding=encoding, newline=newline)
    return file


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield lines, within the limits of memory."""
    read, blank, most = 0, 0, max(SMALL, RATIO * path.stat().st_size)
    while line := file.readline(LONGEST + 1):
        read += len(line)
        blank += line.isspace()
        if len(line) > LONGEST:
            raise InputError(f"{path}: a line is longer than {LONGEST:,} characters: one document a line")
        if path.suffix == ".gz" and read > most:
            raise InputError(f"{path} unpacks to more than {most:,} characters: unpack it, if you trust it")
        if blank > BLANK:
            raise InputError(f"{path} has more than {BLANK:,} blank lines: take them away")
        yield line


def read_whole(path: Path) -> bytes:
    """Content of a file, unpacked."""
    with reading(path, InputError):
        packed = path.suffix == ".gz"
        most = min(UNPACKED, max(SMALL, RATIO * path.stat().st_size)) if packed else UNPACKED
        with gzip.open(path) if packed else path.open("rb") as file:
            data: bytes = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path} is larger than {most:,} bytes, or unpacks to more: split it, or unpack it")
    return data


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its place ``file:number``."""
    if not path.is_file():
        raise NotFoundError(f"there is no file {str(path)!r}")
    number, how = 0, {"unit": "line", "delay": 2, "leave": False, "disable": None}
    try:
        with _open(path, encoding="utf-8") as lines:
            for number, line in enumerate(tqdm(_lines(lines, path), f"reading {path.name}", **how), 1):
                if (text := line.strip("\ufeff\r\n")) and not text.isspace():
                    yield f"{path}:{number}", text
    except (UnicodeDecodeError, OSError, zlib.error, EOFError) as error:
        raise InputError(f"{path}: cannot be read after line {number} ({error}); expected UTF-8 text") from error


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of a file, each with its place ``file:number``."""

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is not a JSON value; use null")

    for place, line in read_lines(path):
        try:
            value = parse_json(line, parse_constant=refuse)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error}): {line:.80}") from error
        if not isinstance(value, dict):
            raise InputError(f"{place}: expected a JSON object per line, got {type(value).__name__}: {line:.80}")
        yield place, value


def read_table(path: Path, kept: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str | int | float]]]:
    """Rows by column, each with its place ``file:number``: numbers as numbers, empty cells left out.

    Every row has the columns in ``kept``, so that each says as much of the table as any other.
    """
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    try:
        with _open(path, encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(_lines(lines, path), delimiter=separator(path), strict=True)
            rows.fieldnames = names = _heading(path, [name.strip() for name in rows.fieldnames or ()])
            for row in rows:
                place = f"{path}:{rows.line_num}"
                if None in row:
                    raise InputError(f"{place}: more cells than the heading has columns ({', '.join(names)})")
                cells = {name: (cell or "").strip() for name, cell in row.items()}
                yield place, {n: _value(n, cell) for n, cell in cells.items() if cell or n in kept}
    except (UnicodeDecodeError, OSError, zlib.error, EOFError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table ({error}); expected UTF-8 text with a heading") from error


def _heading(path: Path, names: list[str]) -> list[str]:
    """Column names, ``Text`` or ``ID`` as ``text`` and ``id`` unless such a column exists; ambiguous ones raise."""
    lower = [name.lower() for name in names]
    known = {one for one in _TEXT_COLUMNS if one not in names and lower.count(one) == 1}
    names = [low if low in known else name for name, low in zip(names, lower, strict=True)]
    if len(names) == 1 and (found := re.search(r"[,;\t|]", names[0])):
        raise InputError(
            f"{path}: the heading {shown(names[0])} is one column: cells seem to be parted by {found[0]!r}; a .csv is "
            "parted by ',', a .tsv by tabs"
        )
    for at, name in enumerate(names):
        if not name:
            raise InputError(f"{path}: column {at + 1} has no name: name it in the heading, or take it away")
        if name in names[:at]:
            raise InputError(f"{path}: two columns are named {name!r}: give them different names")
    return names


def _value(name: str, cell: str) -> str | int | float:
    if name in _TEXT_COLUMNS or not (number := _NUMBER.fullmatch(cell)):
        return cell
    return float(cell) if number[1] else int(cell)


def read_text(path: Path) -> str:
    """Content of a text file."""
    try:
        return read_whole(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it, or take it away") from error


def read_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Markdown and text files below ``folder`` by relative path, without hidden ones."""
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() in TEXT_SUFFIXES and path.is_file() and not f"/{name}".count("/."):
            if not path.resolve().is_relative_to(root):
                raise InputError(f"{path} is a link out of {folder}: replace it by the file, or take it away")
            yield name, read_text(path)


def read_qrels(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Judgements by split of a BEIR folder: train, dev, test, then others; queries without any raise."""
    files: dict[str, Path] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        stem = path.name.removesuffix(".gz").removesuffix(".tsv")
        if "." not in stem:
            files.setdefault(SPLIT_NAMES.get(stem, stem), path)
    if not files and (queries := existing(folder / "queries.jsonl")):
        raise InputError(f"{queries} has no judgements: expected {folder / 'qrels'}/train.tsv, dev.tsv or test.tsv")
    files = {split: files[split] for split in ("train", "dev", "test") if split in files} | files
    return {split: read_judgements(path) for split, path in files.items()}


def read_queries(folder: Path) -> dict[str, str]:
    """Query id → text of a BEIR folder."""
    path = existing(folder / "queries.jsonl")
    if path is None:
        raise InputError(f"{folder} has judgements but no queries.jsonl (or queries.jsonl.gz)")
    queries: dict[str, str] = {}
    for place, record in read_jsonl(path):
        key, text = record.get("_id", record.get("id")), record.get("text")
        if key is None or not isinstance(text, str) or not text.strip():
            raise InputError(f"{place}: a query needs '_id' and a 'text' that is not empty, got {shown(record, 120)}")
        if (before := queries.setdefault(str(key), text)) != text:
            raise DuplicateIdError(
                f"{place}: query id {str(key)!r} has two texts: {shown(before, 60)} and {shown(text, 60)}"
            )
    return queries


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Query id → document id → grade, from tab-separated lines with or without a heading."""
    qrels: dict[str, dict[str, int]] = {}
    for number, (place, line) in enumerate(read_lines(path)):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3 or not cells[0] or not cells[1]:
            raise InputError(f"{place}: expected query id, document id and grade between tabs, got {shown(line)}")
        try:
            query, document, grade = cells[0], cells[1], int(cells[2])
        except ValueError as error:
            if number == 0:  # a heading
                continue
            raise InputError(f"{place}: the grade must be a whole number, got {cells[2]!r}") from error
        if (before := qrels.setdefault(query, {}).setdefault(document, grade)) != grade:
            raise InputError(
                f"{place}: query {query!r} and document {document!r} were judged {before}, now {grade}; keep one"
            )
    if not qrels:
        raise InputError(f"{path} holds no judgements; remove the file if there are none")
    return qrels
