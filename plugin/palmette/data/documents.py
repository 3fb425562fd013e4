"""Documents from files, folders, mappings, strings and the frameworks' documents; long texts cut into passages."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from palmette.config import check_kind, check_path
from palmette.data import files
from palmette.data.files import TEXT_SUFFIXES, located
from palmette.errors import DuplicateIdError, InputError, NotFoundError, shown
from palmette.types import Document, written

T = TypeVar("T")

TEXT_KEYS = ("text", "title")
SOURCE_KEYS = ("source", "file_path", "page", "page_label")
"""Metadata that name where a document comes from, in messages."""
NAMED = 3
"""Blank documents that a warning names."""
WORDS = 180
"""Words of a passage at most: the 256 tokens that small encoders read."""
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^(#{1,6})[ \t]+(.+?)[ \t#]*$")
_FINER = (
    (re.compile(r"\n[ \t]*\n\s*"), "\n\n"),
    (re.compile(r"(?<=[.!?…。！？])\s+|\n"), " "),
    (re.compile(r"\s+"), " "),
)
"""Where paragraphs, sentences and words end, and what joins them."""


class Corpus(dict[str, Document]):
    """Documents by id, each once: the same content again is welcome, other content under one id is not."""

    def add(self, document: Document) -> str:
        """Take a document in and return its id."""
        known = self.setdefault(document.key, document)
        if known is not document and known != document:
            raise DuplicateIdError(
                f"document id {document.key!r} has two contents: {shown(known.text, 60)} and "
                f"{shown(document.text, 60)}; give them different ids"
            )
        return document.key


def to_document(value: Any) -> Document:
    """A document from a :class:`Document`, a str, a mapping, a LangChain document or a LlamaIndex node."""
    if isinstance(value, Document):
        return value
    if isinstance(value, Mapping):
        return _from_record(value)
    if (text := text_of(value)) is not None:
        return _document(_id(value), text, getattr(value, "metadata", {}))
    raise InputError(
        f"cannot make a document of {type(value).__name__} {shown(value)}; "
        "give a Document, a str, a dict with 'text', a LangChain document or a LlamaIndex node"
    )


def text_of(value: Any) -> Any:
    """Text of a str, a LangChain document or a LlamaIndex node; ``None`` of anything else."""
    if isinstance(value, str):
        return value
    return value.get_content() if hasattr(value, "get_content") else getattr(value, "page_content", None)


def to_documents(values: Iterable[Any]) -> Iterator[Document]:
    """Documents from values of any kind that :func:`to_document` knows; errors name the position."""
    return _located(((f"document {position}", value) for position, value in enumerate(values)), to_document)


def drop_blanks(values: Iterable[T], text: Callable[[T], str]) -> list[T]:
    """Values whose text is not blank; one warning counts the others and names the first by position, id and source."""
    given = list(values)
    blank = [(position, value) for position, value in enumerate(given) if not text(value).strip()]
    if not blank:
        return given
    named = [f"document {at}{_origin(_id(one), getattr(one, 'metadata', {}))}" for at, one in blank[:NAMED]]
    listed = "; ".join([*named, "…"] if len(blank) > NAMED else named)
    warnings.warn(f"{len(blank)} of {len(given)} documents are blank and were left out: {listed}", stacklevel=4)
    return [value for value in given if text(value).strip()]


def _located(values: Iterable[tuple[str, Any]], convert: Callable[[Any], Document]) -> Iterator[Document]:
    for place, value in values:
        with located(place):
            document = convert(value)
        yield document


def iter_documents(data: str | Path | Iterable[Any], *, titles: bool = True) -> Iterator[Document]:
    """Documents to index, one by one.

    Args:
        data: A BEIR folder, a folder of Markdown or text files (long ones are cut at their headings), one such file, a
            JSONL file of documents (``id`` or ``_id``, ``text``, ``title``, ``metadata``, ``fields``; plain or .gz), a
            CSV or TSV file with such columns, in capitals or not (others become metadata, or fields where none of
            these is there), or an iterable of documents of any kind that :func:`to_document` knows. A str is a path.
        titles: Put titles that files give apart from the text before it, as BEIR does.

    Raises:
        DuplicateIdError: Two different contents under one id.
        InputError: There is no document, or a malformed one (its file and line, or its position, is named).
    """
    if isinstance(data, str | Path):
        found = _from_path(data, titles)
    elif isinstance(data, Mapping | bytes) or not hasattr(data, "__iter__"):
        raise InputError(f"expected a path or an iterable of documents, got {type(data).__name__} {shown(data)}")
    else:
        found = to_documents(data)
    corpus = Corpus()
    for document in found:
        count = len(corpus)
        corpus.add(document)
        if len(corpus) > count:
            yield document
    if not corpus:
        where = f" in {str(data)!r}" if isinstance(data, str | Path) else ""
        raise InputError(f"there are no documents{where}; give at least one")


def _document(
    identity: str | None, text: Any, metadata: Mapping[str, Any] | None = None, fields: Mapping[str, Any] | None = None
) -> Document:
    metadata, fields = dict(metadata or {}), dict(fields or {})
    if isinstance(text, str) and not text.strip() and not fields:
        origin = _origin(identity, metadata)
        raise InputError(f"document{origin} is empty: give it a text (or fields), or leave it out")
    return Document(identity, text, metadata, fields)


def _id(value: Any) -> str | None:
    """Id of a framework's document."""
    return getattr(value, "node_id", None) or getattr(value, "id", None) or None


def _origin(identity: str | None, metadata: Mapping[str, Any]) -> str:
    """Id, source and page of a document, for messages."""
    origin = [f"{key} {metadata[key]!r}" for key in SOURCE_KEYS if key in metadata]
    return (f" {shown(identity)}" if identity else "") + (f" of {', '.join(origin)}" if origin else "")


def _from_record(record: Mapping[str, Any], titles: bool = True) -> Document:
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
    return _document(
        None if identity is None else str(identity),
        text if text and (text.startswith(title) or not titles) else f"{title} {text}".strip(),
        metadata | dict(record.get("metadata") or {}),
        fields | dict(record.get("fields") or {}),
    )


def _from_row(record: Mapping[str, Any]) -> Document:
    """Document from a row of a table; all columns are fields where the table has neither text nor title."""
    named = {key: record[key] for key in ("_id", "id") if key in record}
    columns = {key: value for key, value in record.items() if key not in named}
    if not any(key in record for key in TEXT_KEYS):
        return _from_record({**named, "metadata": columns, "fields": columns})
    if any(record.get(key) for key in TEXT_KEYS):
        return _from_record(record)
    return _from_record({**record, "text": "\n".join(filter(None, map(written, columns.values())))})


def _from_path(given: str | Path, titles: bool) -> Iterator[Document]:
    path = check_path(given)
    if (path / "manifest.json").is_file():
        raise InputError(f"{path} is an index or a checkpoint, not documents: name what it was made from")
    corpus = files.existing(path / "corpus.jsonl") if path.is_dir() else path
    if corpus is None:
        for name, text in files.read_texts(path):
            yield from _from_text(name, text)
    elif not corpus.exists():
        raise NotFoundError(f"there is no file or folder {str(path)!r}")
    elif files.is_jsonl(corpus):
        yield from _located(files.read_jsonl(corpus), partial(_from_record, titles=titles))
    elif files.separator(path):
        yield from _located(files.read_table(path, kept=TEXT_KEYS), _from_row)
    elif path.suffix.lower() in TEXT_SUFFIXES:
        yield from _from_text(path.name, files.read_text(path))
    else:
        raise InputError(
            f"cannot read {str(path)!r}: expected a folder, .jsonl, .csv or .tsv (perhaps .gz), "
            f"{', '.join(TEXT_SUFFIXES)}"
        )


def _from_text(name: str, text: str) -> Iterator[Document]:
    """Documents of a text file: ``name``, or ``name#1``, ``name#2``, … of a long one; none of an empty one."""
    parts = [part for part in passages(text) if part.strip()]
    for number, part in enumerate(parts, 1):
        yield Document(name if len(parts) == 1 else f"{name}#{number}", part, {"source": name})


def passages(text: str) -> list[str]:
    """Passages of a Markdown or text file, cut where its author did: encoders read the first few hundred words.

    Neighbouring sections stay together while they are short; a section that is too long is cut between paragraphs, a
    paragraph between sentences. Headings of later sections begin with the file's title.
    """
    if len(text.split()) <= WORDS:
        return [text]
    sections = _sections(text)
    first = _HEADING.match(sections[0].partition("\n")[0])
    parts: list[str] = []
    for number, section in enumerate(sections):
        line, _, body = section.partition("\n")
        heading = _HEADING.match(line)
        if first and heading and number:
            line = f"{heading[1]} {first[2]}: {heading[2]}"
            section = f"{line}\n{body}"
        if len(section.split()) <= WORDS:
            parts.append(section)
            continue
        fine = _short_parts((body if heading else section).strip())
        start = f"{line}\n\n" if heading else ""
        parts += [f"{start}{part}".strip() for part in fine or [""]]  # of a long heading, itself
    return _joined(parts, "\n\n")


def _sections(text: str) -> list[str]:
    """Parts from heading to heading; a hash in a code block is no heading."""
    sections: list[list[str]] = [[]]
    coded = False
    for line in text.splitlines():
        coded ^= bool(_FENCE.match(line))
        if _HEADING.match(line) and not coded and any(map(str.strip, sections[-1])):
            sections.append([])
        sections[-1].append(line)
    return ["\n".join(lines).strip() for lines in sections]


def _short_parts(text: str, cuts: Sequence[tuple[re.Pattern[str], str]] = _FINER) -> list[str]:
    """Runs of a text's paragraphs; a long paragraph is cut between sentences, a long sentence between words."""
    (place, joint), *finer = cuts
    parts = ([piece] if len(piece.split()) <= WORDS else _short_parts(piece, finer) for piece in place.split(text))
    return _joined(chain.from_iterable(parts), joint)


def _joined(parts: Iterable[str], joint: str) -> list[str]:
    """Neighbours joined while they are short enough."""
    joined: list[str] = []
    words = 0
    for part in filter(str.strip, parts):
        more = len(part.split())
        if joined and words + more <= WORDS:
            joined[-1] += joint + part
            words += more
        else:
            joined.append(part)
            words = more
    return joined
