"""Read one file as text: its characters, its title, and the kind that says how it is cut."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palmette.config import parse_untrusted_json
from palmette.errors import InputError, MissingExtraError, PalmetteError
from palmette.machine.files import open_source
from palmette.sources.blocks import blocks_of, front_matter
from palmette.sources.decode import decode as decode
from palmette.sources.kinds import RECORDS as RECORDS
from palmette.sources.kinds import kind_of as kind_of
from palmette.sources.pages import html_to_markdown as html_to_markdown
from palmette.sources.records import (
    TEXT_KEYS,
    RowOrFault,
    from_record,
    from_row,
    json_rows,
    located,
    read_whole,
    separator,
    table_rows,
)
from palmette.sources.strangers import check_installed, reason_of
from palmette.sources.worker import WORKER
from palmette.types import LONGEST_DOCUMENT, PLACES, Document, join_numbered, numbered
from palmette.types.citations import PlaceKind
from palmette.types.values import json_fault, json_value, storable

MOST_FAULTS = 100
"""Records of a file that are named as unreadable; after more, the rest of the file is not read."""
_MOST_TAGS_HERE = 10_000
"""Tags of a page that is read in this process, in 1 s and 15 MB at most; larger ones go to the worker."""
_MOST_BYTES = 4 * LONGEST_DOCUMENT
"""Bytes of a text's file, whose characters are counted once it is read."""
_LONGEST_FRONT_MATTER = 2**16
_MOST_SIGNS = 1000  # of one kind in front matter: parsers take time to the square of lists in lists and dots in names
_ALONE = re.compile(r"(?:^|(?<=[\r\n]))\f+|\f+(?=[\r\n]|$)")
"""Form feeds at the begin or the end of a line."""
_HEAD = 4096  # characters among which the first heading is the title


@dataclass(frozen=True)
class SourceText:
    """A document of a file, as text.

    Attributes:
        text: What is cut and searched.
        kind: How it is cut: ``markdown``, ``rst``, ``text``, ``code:python`` ….
        title: What the file says that it is called.
        metadata: Further facts that the file states, as JSON values.
        id: The document's own id, where the file gives one to each of its records.
        fields: Named parts of a record.
        payload: Which page, slide, cell or row each line is of, for citations.
    """

    text: str
    kind: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


def read_file(path: Path) -> Iterable[SourceText]:
    """Yield the documents of a file: one, or one for each record of a table or of JSON lines.

    Texts and metadata are mended where no index could store them (:func:`palmette.types.values.storable`).

    Raises:
        InputError: The file cannot be read; it, the line of a record, and the reason are named.
        MissingExtraError: The file needs a converter that is not installed.
    """
    for part in read_parts(path):
        if isinstance(part, InputError):
            raise part
        yield part


def read_parts(path: Path, root: Path | None = None) -> Iterator[SourceText | InputError]:
    """Yield the documents of a file as :func:`read_file` does, and in place of a record what is wrong with it.

    A file that was listed below a ``root`` is read only if it is still there
    (:func:`palmette.machine.files.open_source`).
    """
    kind, faults = kind_of(path), 0
    try:
        if kind is None:
            raise InputError(f"there is no text in {path.suffix.lower()} files")
        if kind != RECORDS:
            yield _mended(_READERS.get(kind, _plain)(path, kind, root))
            return
        for source in _records(path, root):
            faults += isinstance(source, InputError)
            if faults > MOST_FAULTS:
                raise InputError(f"more than {MOST_FAULTS} of its records cannot be read, and the rest was left")
            yield source
    except MissingExtraError:
        raise
    except PalmetteError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise InputError(named) from error
    except Exception as error:  # a converter's own, or the disk's
        raise InputError(f"{path}: cannot be read ({reason_of(error)})") from error


def _mended(source: SourceText) -> SourceText:
    """Refuse a text that is too long; mend what an index could not store, and drop form feeds, which show as boxes."""
    if len(source.text) > LONGEST_DOCUMENT:
        raise InputError(f"it has {len(source.text):,} characters, and may have {LONGEST_DOCUMENT:,}: split it")
    text = storable(source.text)
    if "\f" in text:  # lines stay lines
        text = _ALONE.sub("", text).replace("\f", " ")
    return replace(source, text=text, title=storable(source.title), metadata=storable(source.metadata))


def _text(path: Path, root: Path | None) -> str:
    text = decode(read_whole(path, root, _MOST_BYTES))
    if text.isspace() or not text:
        raise InputError("it is blank")
    return text


def _plain(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return a text as it is; reStructuredText and AsciiDoc have headings that it may take its title from."""
    text = _text(path, root)
    return SourceText(text, kind, _first_heading(text, kind) if kind in ("rst", "text:asciidoc") else None)


def _markdown(path: Path, kind: str, root: Path | None) -> SourceText:
    text = _text(path, root)
    head = front_matter(text)
    facts = _facts(head)
    title = facts.pop("title", None)
    if not isinstance(title, str) or not title.strip():
        title = _first_heading(text[len(head) :])
    return SourceText(text, kind, title, facts)


def _first_heading(text: str, kind: str = "markdown") -> str | None:
    """Return the first heading of the highest level near the head of a text."""
    blocks = blocks_of(text[:_HEAD], kind)
    return next((block.name for block in blocks if block.kind == "heading" and block.level == 1), None)


def _facts(head: str) -> dict[str, Any]:
    """Return the metadata of front matter as JSON values; none where it is not what it seems."""
    if not head or len(head) > _LONGEST_FRONT_MATTER:
        return {}
    inside = "\n".join(head.strip("\ufeff").strip().splitlines()[1:-1])
    if max(map(inside.count, "[{")) > _MOST_SIGNS or any(line.count(".") > _MOST_SIGNS for line in inside.splitlines()):
        return {}
    with suppress(Exception):  # a file with broken metadata is still worth reading
        if head.lstrip("\ufeff").startswith("+++"):
            import tomllib

            values: Any = tomllib.loads(inside)
        else:
            values = _yaml(inside)
        if isinstance(values, Mapping):
            facts = {str(key): storable(json_value(value)) for key, value in values.items() if value is not None}
            return {key: value for key, value in facts.items() if json_fault(value, key) is None}
    return {}


def _yaml(text: str) -> Any:
    import yaml

    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
        raise InputError("aliases unfold without limit")
    return yaml.safe_load(text)


def _html(path: Path, kind: str, root: Path | None) -> SourceText:
    source = _text(path, root)
    if source.count("<") > _MOST_TAGS_HERE:
        text, title, *_ = WORKER.convert(len(source), page=source)
    else:
        text, title = html_to_markdown(source)
    if not text.strip():
        raise InputError("the page has no text")
    return SourceText(text, "markdown", title)


def _notebook(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return the cells of a notebook: text as it is, code in fences; results are left out."""
    book = parse_untrusted_json(_text(path, root))
    if not isinstance(book, Mapping):
        raise InputError("it is no notebook: expected a JSON object")
    facts = book.get("metadata") or {}
    language = str((facts.get("language_info") or facts.get("kernelspec") or {}).get("name") or "python")
    language = "python" if language.startswith("python") else language
    cells = [_cell(cell, language) for cell in book.get("cells") or ()]
    text, places = join_numbered(enumerate(cells, 1), "cell")
    if not text:
        raise InputError("the notebook has no cells with text")
    facts, payload = {"language": language}, {PLACES: places}
    return SourceText(text + "\n", "markdown", _first_heading(text), facts, payload=payload)


def _cell(cell: Mapping[str, Any], language: str) -> str:
    """Convert a notebook's cell to Markdown."""
    lines = cell.get("source", "")
    text = ("".join(lines) if isinstance(lines, list) else str(lines)).strip("\n")
    if not text.strip():
        return ""
    if cell.get("cell_type") != "code":
        return text
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))  # longer than any in it
    return f"{fence}{language}\n{text}\n{fence}"


def _records(path: Path, root: Path | None) -> Iterator[SourceText | InputError]:
    """Yield the rows of a table or a JSONL file as texts, each with its own id and metadata, or what is wrong."""
    kind: PlaceKind = "row" if separator(path) else "record"
    for number, row, document in record_documents(path, root, titles=False):
        if isinstance(document, InputError):
            yield document
            continue
        title = document.metadata.get("title")
        own = document.key if any(key in row for key in ("_id", "id")) else None
        facts, payload = document.metadata, numbered(kind, number)
        yield SourceText(document.content, "text", title, facts, own, document.fields, payload)


def record_documents(
    path: Path, root: Path | None = None, *, titles: bool
) -> Iterator[tuple[int, Mapping[str, Any], Document | InputError]]:
    """Yield the rows of a table or a JSONL file, each with its number and its document, or what is wrong with it.

    Rows are numbered as a spreadsheet does, the heading being 1; records by their lines.
    """
    rows: Iterable[RowOrFault[Any]] = table_rows(path, TEXT_KEYS, root) if separator(path) else json_rows(path, root)
    convert = from_row if separator(path) else from_record
    for number, (place, row) in enumerate(rows, 2):
        if not separator(path):
            number = int(place.rpartition(":")[2])
        if isinstance(row, InputError):
            yield number, {}, row
            continue
        try:
            with located(place):
                document = convert(storable(row), titles=titles)
                if len(document.content) > LONGEST_DOCUMENT:
                    size = len(document.content)
                    raise InputError(f"it has {size:,} characters, and may have {LONGEST_DOCUMENT:,}: split it")
            yield number, row, document
        except InputError as error:
            yield number, row, error


def _office(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return what a converter makes of a PDF, a document of an office program, or a book, in a process of its own."""
    suffix = path.suffix.lower()
    check_installed(suffix)
    with open_source(path, root) as file:  # whether it is there
        size = os.fstat(file.fileno()).st_size
    where = {"path": str(path.absolute()), "root": None if root is None else str(root.absolute())}
    text, title, facts, places = WORKER.convert(size, suffix=suffix, **where)
    if not text.strip():
        raise InputError("no text was found in it")
    kind = "text" if suffix == ".pdf" else "markdown"
    title = title or (_first_heading(text) if kind == "markdown" else None)
    title = title or re.sub(r"[-_\s]+", " ", path.stem)  # what is in a workbook, its file's name alone may say
    return SourceText(text, kind, title, facts, payload={PLACES: places} if places else {})


_READERS: Mapping[str, Callable[[Path, str, Path | None], SourceText]] = {
    "markdown": _markdown,
    "mdx": _markdown,
    "html": _html,
    "notebook": _notebook,
    "office": _office,
    "pdf": _office,
}
