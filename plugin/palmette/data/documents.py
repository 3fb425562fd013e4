"""Documents from files, folders, mappings, strings and the frameworks' documents; long files cut into passages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from palmette.config import check_path
from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.errors import DuplicateIdError, InputError, MissingExtraError, NotFoundError, shown
from palmette.machine.progress import progress_bar
from palmette.sources.convert import SourceText, read_file, read_parts, record_documents
from palmette.sources.kinds import RECORDS, kind_of
from palmette.sources.passages import PassageOptions, split
from palmette.sources.records import existing, from_record, id_of, located, make_document, origin_of
from palmette.sources.walk import walk
from palmette.store.checks import check_storable
from palmette.types import Document

T = TypeVar("T")
"""Makes documents of a file under a name."""

NAMED_IN_A_WARNING = 3
"""Blank documents, and files that cannot be read, that a warning names."""


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
        return from_record(value)
    if (text := text_of(value)) is not None:
        return make_document(id_of(value), text, getattr(value, "metadata", {}))
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
    for position, value in enumerate(values):
        with located(f"document {position}"):
            document = to_document(value)
        yield document


def drop_blanks(values: Iterable[T], text: Callable[[T], str]) -> list[T]:
    """Values whose text is not blank; one warning counts the others and names the first by position, id and source."""
    documents = list(values)
    blank = [(position, value) for position, value in enumerate(documents) if not text(value).strip()]
    if not blank:
        return documents
    named = [
        f"document {at}{origin_of(id_of(document), getattr(document, 'metadata', {}))}"
        for at, document in blank[:NAMED_IN_A_WARNING]
    ]
    listed = "; ".join([*named, "…"] if len(blank) > NAMED_IN_A_WARNING else named)
    warnings.warn(f"{len(blank)} of {len(documents)} documents are blank and were left out: {listed}", stacklevel=4)
    return [value for value in documents if text(value).strip()]


def iter_documents(data: str | Path | Iterable[Any], *, passages: bool = True) -> Iterator[Document]:
    """Documents to index, one by one.

    Args:
        data: A BEIR folder, a folder of files of any kind that :mod:`palmette.sources` reads (long ones are cut into
            passages), one such file, a JSONL file of documents (``id`` or ``_id``, ``text``, ``title``, ``metadata``,
            ``fields``; plain or .gz), a CSV or TSV file with such columns, in capitals or not (others become metadata,
            or fields where none of these is there), or an iterable of documents of any kind that :func:`to_document`
            knows. A str is a path. Files of a folder that cannot be read are left out, with one warning.
        passages: Cut long files into passages; an index does so itself, and takes whole ones.

    Raises:
        DuplicateIdError: Two different contents under one id.
        InputError: There is no document, or a malformed one (its file and line, or its position, is named).
    """
    if isinstance(data, str | Path):
        documents = _from_path(data, passages)
    elif isinstance(data, Mapping | bytes) or not hasattr(data, "__iter__"):
        raise InputError(f"expected a path or an iterable of documents, got {type(data).__name__} {shown(data)}")
    else:
        documents = to_documents(data)
    corpus = Corpus()
    for document in documents:
        count = len(corpus)
        corpus.add(document)
        if len(corpus) > count:  # the same document given twice counts once
            yield document
    if not corpus:
        where = f" in {str(data)!r}" if isinstance(data, str | Path) else ""
        raise InputError(f"there are no documents{where}; give at least one")


def _from_path(source: str | Path, passages: bool) -> Iterator[Document]:
    """Read documents from a folder of files, a BEIR corpus, a JSONL file, a table or a single file."""
    path = documents_path(source)
    records = records_of(path)
    if records is not None:
        for _, _, record in record_documents(records, titles=True):
            if isinstance(record, InputError):
                raise record
            yield record
    elif path.is_dir():
        yield from _from_folder(path, passages)
    else:
        for document in read_file(path):
            yield from _documents(path.name, document, passages)


def records_of(path: Path) -> Path | None:
    """Return the file of records that a source is: a BEIR folder's corpus, or a table or JSON lines themselves."""
    if path.is_dir():
        return existing(path / "corpus.jsonl")
    return path if kind_of(path) == RECORDS else None


def documents_path(source: str | Path) -> Path:
    """Path of documents; raises where there is nothing, or what was made of documents."""
    path = check_path(source)
    if not path.exists():
        raise NotFoundError(f"there is no file or folder {str(source)!r}")
    if (path / "manifest.json").is_file():
        raise InputError(f"{path} is an index or a checkpoint, not documents: name what it was made from")
    return path


def read_named(path: Path, name: str, root: Path | None = None) -> Iterator[tuple[str, SourceText | InputError]]:
    """Yield the documents of a file with their ids: its ``name``, and for records ``name#`` their own ids or numbers.

    Arguments, errors and unreadable records are as of :func:`~palmette.sources.convert.read_parts`.
    """
    for number, source in enumerate(read_parts(path, root), 1):
        if isinstance(source, InputError):
            yield name, source
        else:
            yield f"{name}#{source.id or number}" if kind_of(path) == RECORDS else name, source


def read_files(
    files: Sequence[tuple[Path, Path]], label: str, progress: bool | None, *, prefix: str = "", confined: bool = True
) -> Iterator[tuple[Path, str, SourceText | InputError | MissingExtraError]]:
    """Read files that are listed with the folder above them: yield the file, the id and the text of each document.

    An id begins with ``prefix`` and the file's name. What cannot be read comes as its error. ``confined`` refuses links
    out of the folder.
    """
    for root, path in progress_bar(progress, files, desc=f"reading {label}", unit="file", delay=2, leave=False):
        name = prefix + path.relative_to(root).as_posix()
        try:
            for id, source in read_named(path, name, root if confined else None):
                yield path, id, source
        except (InputError, MissingExtraError) as error:
            yield path, name, error


def _from_folder(folder: Path, passages: bool) -> Iterator[Document]:
    """Yield the documents of the files below a folder; those that cannot be read are named in one warning."""
    listed = walk(folder)
    files, broken = listed.files, list[str]()
    if not files and listed.skipped:
        skipped = "; ".join(f"{path}: {reason}" for path, reason in listed.skipped[:NAMED_IN_A_WARNING])
        raise InputError(f"there are no documents in {str(folder)!r}: no file can be read ({skipped})")
    for _, id, source in read_files(files, folder.name, None):
        if not isinstance(source, SourceText):
            broken.append(str(source))
            continue
        try:
            for document in _documents(id, source, passages):
                check_storable(document)
                yield document
        except InputError as error:
            broken.append(str(error))
    if broken:
        named = "; ".join(broken[:NAMED_IN_A_WARNING] + ["…"] * (len(broken) > NAMED_IN_A_WARNING))
        warnings.warn(f"{len(broken)} of {len(files)} files in {folder} cannot be read: {named}", stacklevel=4)


def metadata_of(name: str, source: SourceText) -> dict[str, Any]:
    """Metadata of a file: its own, its name and its title."""
    return {**source.metadata, "source": name} | ({"title": source.title} if source.title else {})


def _documents(name: str, source: SourceText, passages: bool) -> Iterator[Document]:
    """Yield a file as one document, or with ``passages`` as ``name#1``, ``name#2``, … where it is long."""
    metadata = metadata_of(name, source)
    if not passages:
        yield Document(name, source.text, metadata, source.fields, source.payload)
        return
    places = split(source.text, source.kind, PassageOptions(), estimate_tokens)
    for number, place in enumerate(places, 1):
        text = source.text if len(places) == 1 else source.text[place.start : place.end]
        yield Document(name if len(places) == 1 else f"{name}#{number}", text, metadata, source.fields)
