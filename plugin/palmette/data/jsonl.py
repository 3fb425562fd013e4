"""JSON lines, plain or gzipped; every complaint names the file and the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from palmette.errors import DuplicateIdError, InputError, NotFoundError

__all__ = ["existing", "is_jsonl", "located", "read_jsonl", "read_lines"]

SUFFIXES = (".jsonl", ".ndjson")


def is_jsonl(path: Path) -> bool:
    """Whether the name says JSON lines (``.jsonl`` or ``.ndjson``, perhaps ``.gz``)."""
    return path.name.removesuffix(".gz").endswith(SUFFIXES)


def existing(path: Path) -> Path | None:
    """``path``, or its ``.gz``, or nothing."""
    return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the errors raised inside with a place, such as ``corpus.jsonl:17``."""
    try:
        yield
    except DuplicateIdError as error:
        raise DuplicateIdError(f"{where}: {error}") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its place ``file:number``."""
    if not path.is_file():
        raise NotFoundError(f"there is no file {str(path)!r}")
    number = 0
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as lines
        ):
            bar = tqdm(lines, desc=f"reading {path.name}", unit="line", delay=2, leave=False, disable=None)
            for number, line in enumerate(bar, 1):
                if text := line.strip("\ufeff\r\n"):
                    yield f"{path}:{number}", text
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise InputError(
            f"{path}: cannot be read after line {number} ({error}); expected UTF-8 text"
        ) from error


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a JSON value; use null")


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place ``file:number``."""
    for place, line in read_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error}): {line:.80}") from error
        if not isinstance(value, dict):
            raise InputError(
                f"{place}: expected a JSON object per line, got {type(value).__name__}: {line:.80}"
            )
        yield place, value
