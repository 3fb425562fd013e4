"""Documents from whatever holds them: files, folders, mappings, strings, the frameworks' documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from palmette.data.jsonl import existing, is_jsonl, located, read_jsonl
from palmette.data.pieces import pieces
from palmette.data.tables import is_table, read_table
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.types import Document, written

__all__ = ["Corpus", "iter_documents", "read_documents", "to_document"]

TEXT_SUFFIXES = (".md", ".markdown", ".txt")
TEXT_KEYS = ("text", "title")


class Corpus:
    """Documents by id, each once: the same content again is welcome, other content under one id is not."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}

    def add(self, document: Document) -> str:
        """Take a document in, and give its id."""
        known = self.documents.setdefault(document.key, document)
        if known is not document and known != document:
            raise DuplicateIdError(
                f"document id {document.key!r} has two contents: {known.text!r:.60} and "
                f"{document.text!r:.60}; give them different ids"
            )
        return document.key


def _named(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"{key!r} must be an object, got {type(value).__name__}")
    return dict(value)


def _from_record(record: Mapping[str, Any], titles: bool = True) -> Document:
    """From ``_id`` or ``id``, ``title``, ``text``, ``metadata``, ``fields``; further keys become metadata.

    As in BEIR the searched text is title and text, joined by a blank, unless the text starts with the title or
    there are to be no ``titles`` (in the text: they stay in metadata and fields).
    Further keys that hold objects become fields.
    """
    if not any(key in record for key in (*TEXT_KEYS, "fields")):
        raise InputError(
            f"a document needs 'text' or 'title'; got the keys {', '.join(map(repr, record)) or 'none'}"
        )
    for key in TEXT_KEYS:
        if not isinstance(record.get(key) or "", str):
            raise InputError(f"{key!r} must be a str, got {type(record[key]).__name__}")
    title, text = ((record.get(key) or "").strip() for key in ("title", "text"))
    identity = record.get("_id", record.get("id"))
    if isinstance(identity, bool) or not isinstance(identity, str | int | None):
        raise InputError(f"a document id must be a str or an int, got {identity!r:.60}")
    extra = {k: v for k, v in record.items() if k not in ("_id", "id", "title", "text", "metadata", "fields")}
    named = {"title": title} if title else {}
    return Document(
        None if identity is None else str(identity),
        text if text and (text.startswith(title) or not titles) else f"{title} {text}".strip(),
        named | {k: v for k, v in extra.items() if not isinstance(v, Mapping)} | _named(record, "metadata"),
        named | {k: v for k, v in extra.items() if isinstance(v, Mapping)} | _named(record, "fields"),
    )


def _from_attributes(value: Any) -> Document:
    """From a LangChain document or a LlamaIndex node, known by their attributes."""
    if hasattr(value, "page_content"):
        text, identity = value.page_content, getattr(value, "id", None)
    else:
        text, identity = value.get_content(), getattr(value, "node_id", None)
    return Document(identity or None, text, dict(getattr(value, "metadata", None) or {}))


def to_document(value: Any) -> Document:
    """A document from a :class:`Document`, a str, a mapping, a LangChain document or a LlamaIndex node."""
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(text=value)
    if isinstance(value, Mapping):
        return _from_record(value)
    if hasattr(value, "page_content") or hasattr(value, "get_content"):
        return _from_attributes(value)
    raise InputError(
        f"cannot make a document of {type(value).__name__} {value!r:.80}; "
        "give a Document, a str, a dict with 'text', a LangChain document or a LlamaIndex node"
    )


def _from_row(record: Mapping[str, Any]) -> Document:
    """From a row of a table: as any record, or all columns as fields where the table has neither text nor title."""
    named = {key: record[key] for key in ("_id", "id") if key in record}
    columns = {key: value for key, value in record.items() if key not in named}
    if any(key in record for key in TEXT_KEYS):
        blank = not any(record.get(key) for key in TEXT_KEYS)
        said = {"text": "\n".join(filter(None, map(written, columns.values())))} if blank else {}
        return _from_record({**record, **said})
    return _from_record({**named, "metadata": columns, "fields": columns})


def read_documents(path: Path, titles: bool = True) -> Iterator[Document]:
    """The documents of a JSONL file; a malformed one is named by its line."""
    for place, record in read_jsonl(path):
        with located(place):
            document = _from_record(record, titles)
        yield document


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it, or take it away") from error


def _text_files(folder: Path) -> Iterator[Document]:
    """Markdown and text files below ``folder``, by relative path; hidden and empty ones are passed over."""
    for path in sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in TEXT_SUFFIXES and path.is_file()
    ):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in name.split("/")):
            continue
        yield from _of_file(name, _read_text(path))


def _of_file(name: str, text: str) -> Iterator[Document]:
    """A short file is one document; a long one several, ``name#1``, ``name#2``, …; an empty one none."""
    parts = [part for part in pieces(text) if part.strip()]
    for number, part in enumerate(parts, 1):
        yield Document(name if len(parts) == 1 else f"{name}#{number}", part, {"source": name})


def _from_path(given: str | Path, titles: bool) -> Iterator[Document]:
    if not str(given).strip():
        raise InputError("the path of the documents is empty: name a file or a folder ('.' for this one)")
    path = Path(given).expanduser()
    if (path / "manifest.json").is_file():
        raise InputError(f"{path} is an index or a checkpoint, not documents: name what it was made from")
    if path.is_dir():
        corpus = existing(path / "corpus.jsonl")
        yield from read_documents(corpus, titles) if corpus else _text_files(path)
    elif not path.exists():
        raise NotFoundError(f"there is no file or folder {str(path)!r}")
    elif is_jsonl(path):
        yield from read_documents(path, titles)
    elif is_table(path):
        for place, row in read_table(path, kept=TEXT_KEYS):
            with located(place):
                document = _from_row(row)
            yield document
    elif path.suffix.lower() in TEXT_SUFFIXES:
        yield from _of_file(path.name, _read_text(path))
    else:
        raise InputError(
            f"cannot read {str(path)!r}: expected a folder, .jsonl, .csv or .tsv (perhaps .gz), "
            f"{', '.join(TEXT_SUFFIXES)}"
        )


def iter_documents(data: str | Path | Iterable[Any], *, titles: bool = True) -> Iterator[Document]:
    """Documents to index, one by one.

    Args:
        data: A BEIR folder, a folder of Markdown or text files (long ones are cut at their headings, see
            :mod:`palmette.data.pieces`), one such file, a JSONL file of documents
            (``id`` or ``_id``, ``text``, ``title``, ``metadata``, ``fields``; plain or .gz), a CSV or TSV file
            with such columns, in capitals or not (others become metadata, or fields where none of these is there),
            or an iterable of documents of any kind that :func:`to_document` knows. A str is a path.
        titles: Put titles that files give apart from the text before it, as BEIR does.

    Raises:
        DuplicateIdError: Two different contents under one id.
        InputError: There is no document, or a malformed one (its file and line, or its position, is named).
    """
    corpus = Corpus()
    found = _from_path(data, titles) if isinstance(data, str | Path) else _from_iterable(data)
    for document in found:
        count = len(corpus.documents)
        corpus.add(document)
        if len(corpus.documents) > count:
            yield document
    if not corpus.documents:
        where = f" in {str(data)!r}" if isinstance(data, str | Path) else ""
        raise InputError(f"there are no documents{where}; give at least one")


def _from_iterable(values: object) -> Iterator[Document]:
    if not isinstance(values, Iterable) or isinstance(values, Mapping | bytes):
        raise InputError(
            f"expected a path or an iterable of documents, got {type(values).__name__} {values!r:.80}"
        )
    for position, value in enumerate(values):
        with located(f"document {position}"):
            document = to_document(value)
        yield document
