"""The documents that a source holds now, under ids of its own: a folder, a file, a loader, an iterable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from palmette.config import check_path
from palmette.data.documents import (
    documents_path,
    metadata_of,
    read_files,
    read_named,
    records_of,
    text_of,
    to_document,
)
from palmette.errors import InputError, MissingExtraError, PalmetteError, shown
from palmette.sources.convert import SourceText, record_documents
from palmette.sources.walk import walk
from palmette.types import Document
from palmette.types.values import json_value

ORIGINS = ("source", "file_path", "file_name", "url")
"""Metadata by which loaders say where a document comes from."""
PAGES = ("page_label", "page")
SAMPLED_FILES, SAMPLED_RECORDS, SAMPLED_BYTES = 40, 100, 2**18
"""Files of a source, and records and bytes of a file, that :func:`sample_source` reads at most."""
_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass
class Listing:
    """Current contents of a source."""

    documents: dict[str, Document] = field(default_factory=dict)
    """By id."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Paths, or places of documents, that were not read, and why."""
    unread: set[str] = field(default_factory=set)
    """Beginnings of the ids of documents that could not be read this time: what is known of them stays."""
    partial: bool = False
    """Whether documents of unknown ids could not be read."""

    def keeps(self, id: str) -> bool:
        """Return True if a missing document may still exist in an unread part of the source."""
        return self.partial or any(id == name or id.startswith((f"{name}#", f"{name}/")) for name in self.unread)

    def take(self, document: Document, place: str) -> None:
        """Take a document in; another one of the same id is skipped."""
        known = self.documents.setdefault(document.key, document)
        if known is not document and known != document:
            self.skipped.append((place, f"another document has the id {shown(document.key)}"))


def source_name(data: Any) -> str | None:
    """Name of a source that is given none: that of its folder or file."""
    if not isinstance(data, str | Path):
        return None
    return check_path(data).absolute().name or None


def list_source(
    data: Any,
    source: str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Listing:
    """Read all documents of a source; what cannot be read is named, and stops nothing."""
    listing = Listing()
    if isinstance(data, str | Path):
        path = documents_path(data)
        if records := records_of(path):
            _list_records(listing, records)
        else:
            _list_files(listing, path, source, include, exclude, progress)
    else:
        for place, read in _given(data, source):
            if isinstance(read, PalmetteError):
                listing.skipped.append((place, str(read)))
            else:
                listing.take(read, place)
    if metadata:
        for id, document in listing.documents.items():
            listing.documents[id] = replace(document, metadata={**document.metadata, **metadata})
    return listing


def sample_source(data: str | Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
    """Read some texts of a source, spread evenly over its small files; what cannot be read is left out."""
    path, texts = documents_path(data), list[str]()
    if records := records_of(path):
        sampled = islice(record_documents(records, titles=True), SAMPLED_RECORDS)
        return [document.content for _, _, document in sampled if not isinstance(document, InputError)]
    files = walk(path, include=include, exclude=exclude).files
    small = [file for _, file in files if file.stat().st_size <= SAMPLED_BYTES] or [file for _, file in files[:1]]
    for file in small[:: max(1, -(-len(small) // SAMPLED_FILES))]:
        with suppress(InputError, MissingExtraError, OSError):
            parts = islice(read_named(file, file.name), SAMPLED_RECORDS)
            texts += [text.text for _, text in parts if not isinstance(text, InputError)]
    return texts


def _list_records(listing: Listing, file: Path) -> None:
    """Read the documents of a table or of JSON lines, under ids of their own; unreadable ones are noted."""
    for _, _, document in record_documents(file, titles=True):
        if not isinstance(document, InputError):
            listing.take(document, document.key)
            continue
        listing.skipped.append((str(file), without_path(document, file)))
        listing.partial = True
    if not listing.documents:
        reason = listing.skipped[0][1] if listing.skipped else "give at least one"
        raise InputError(f"there are no documents in {str(file)!r}: {reason}")


def without_path(error: Exception, file: Path) -> str:
    """Return the message of an error about a file without its path, which is named beside; lines as ``line 17: …``."""
    message = str(error).removeprefix(f"{file}: ").removeprefix(f"{file} ")
    return re.sub(r"^(\d+): ", r"line \1: ", message.removeprefix(f"{file}:"))


def _list_files(
    listing: Listing, path: Path, source: str, include: Sequence[str], exclude: Sequence[str], progress: bool | None
) -> None:
    """Read the files under a path into a listing; files that cannot be read are noted with the reason."""
    walked = walk(path, include=include, exclude=exclude)
    is_folder = path.is_dir()  # of a file that is named itself, a link may lead anywhere
    root = path if is_folder else path.parent
    listing.unread |= {f"{source}/{path.relative_to(root).as_posix()}" for path in walked.unreadable}
    for file, id, text in read_files(walked.files, path.name, progress, prefix=f"{source}/", confined=is_folder):
        if isinstance(text, SourceText):
            metadata = metadata_of(file.relative_to(root).as_posix(), text)
            listing.take(Document(id, text.text, metadata, text.fields, text.payload), str(file))
        else:
            listing.skipped.append((str(file), without_path(text, file)))
            listing.unread.add(id)  # what is known of its documents stays
    listing.skipped += [(str(path), reason) for path, reason in walked.skipped]  # after the files that failed


def _given(data: Any, source: str) -> Iterator[tuple[str, Document | PalmetteError]]:
    """Documents of a loader, a reader or an iterable, each with its place; or what is wrong with one."""
    load = getattr(data, "lazy_load", None) or getattr(data, "load_data", None)
    values = load() if callable(load) else data
    if isinstance(values, Mapping | bytes) or not isinstance(values, Iterable):
        raise InputError(f"a source is a path, a loader or an iterable of documents, got {shown(data)}")
    uses = Counter[str]()
    for position, value in enumerate(values):
        place = f"document {position}"
        try:
            yield place, _document(value, source, uses, loaded=callable(load))
        except InputError as error:
            yield place, error


def _document(value: Any, source: str, uses: Counter[str], *, loaded: bool) -> Document:
    """Make a document with an id that is the same the next time."""
    text = None if isinstance(value, str | Document | Mapping) else text_of(value)
    if text is None:
        return to_document(value)
    metadata = json_value(getattr(value, "metadata", None) or {})
    id = getattr(value, "node_id", None) or getattr(value, "id", None)
    if id is None or loaded or _RANDOM.fullmatch(str(id)):  # LlamaIndex gives a new id at each reading
        id = None
        if origin := next((str(metadata[name]) for name in ORIGINS if metadata.get(name)), None):
            page = next((str(metadata[name]) for name in PAGES if metadata.get(name) is not None), "")
            name = f"{origin}#{page}" if page else origin
            uses[name] += 1
            id = f"{source}/{name}" if uses[name] == 1 else f"{source}/{name}#{uses[name]}"
    return Document(id, text, metadata)
