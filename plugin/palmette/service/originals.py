"""Original files of documents: handed out from followed folders only, by tickets that callers who may read them get."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from palmette.errors import NotFoundError, shown
from palmette.machine.files import open_source
from palmette.service.checks import POLICY, Problem
from palmette.service.schema import Body
from palmette.sources.kinds import RECORDS, kind_of
from palmette.types import Document

TICKET_SECONDS = 600.0
"""Seconds for which a ticket opens its file; a browser asks without a token."""
MOST_TICKETS = 10_000
"""Number of tickets that are valid; the oldest make room."""
SANDBOX = f"{POLICY}; sandbox"
"""Content policy of a file."""
VIEWED = f"{POLICY}; object-src 'self'; style-src 'unsafe-inline'"
"""Content policy of a PDF: browsers open none in a sandbox, and their viewers have one of their own."""
CHUNK = 2**18
"""Bytes of a file that are read at a time."""


class OriginalBody(Body):
    """A document whose file is asked for."""

    id: str
    """Its id."""


@dataclass(frozen=True)
class Ticket:
    """A file that may be read until a time of the monotonic clock."""

    root: Path
    file: Path
    until: float


class Originals:
    """Tickets for files of followed folders."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def grant(self, root: Path | None, document: Document | None, sees_all: bool) -> dict[str, str]:
        """Return the address of a document's file for a caller who may read the document.

        A file of many records is opened only for callers who may read all documents (``sees_all``).
        """
        file = _file_of(root, document) if root is not None and document is not None else None
        if root is None or document is None or file is None or (kind_of(file) == RECORDS and not sees_all):
            raise NotFoundError("this document has no original here: the service follows no folder with its file")
        with _opened(root, file):  # it is there, and no link leads out of the folder
            pass
        key = secrets.token_urlsafe(32)
        self._tickets[key] = Ticket(root, file, time.monotonic() + TICKET_SECONDS)
        while len(self._tickets) > MOST_TICKETS:
            self._tickets.popitem(last=False)
        return {"url": f"original?ticket={key}", "name": file.name}

    def open(self, key: str) -> Response:
        """Return the file of a ticket: PDFs to be looked at, others to be saved."""
        ticket = self._tickets.get(key)
        if ticket is None or ticket.until < time.monotonic():
            self._tickets.pop(key, None)
            raise Problem(HTTPStatus.NOT_FOUND, "this link is no longer valid: open the document again")
        file = _opened(ticket.root, ticket.file)
        size = file.seek(0, 2)
        file.seek(0)
        is_pdf = file.read(5) == b"%PDF-" and ticket.file.suffix.lower() == ".pdf"
        file.seek(0)
        name = quote(ticket.file.name)
        headers = {
            "content-disposition": f"{'inline' if is_pdf else 'attachment'}; filename*=UTF-8''{name}",
            "content-length": str(size),
            "content-security-policy": VIEWED if is_pdf else SANDBOX,
        }
        kind = "application/pdf" if is_pdf else "application/octet-stream"
        return StreamingResponse(_chunks(file), headers=headers, media_type=kind)


def _file_of(root: Path, document: Document) -> Path | None:
    """Return the file in a folder that a document was read from; ``None`` where its id and its source disagree."""
    source = document.metadata.get("source")
    if not isinstance(source, str) or document.key.partition("#")[0] != f"{root.name}/{source}".partition("#")[0]:
        return None
    parts = PurePosixPath(source).parts
    if not parts or PurePosixPath(source).is_absolute() or any(part.startswith(".") or "\\" in part for part in parts):
        return None
    return root.joinpath(*parts)


def _opened(root: Path, file: Path) -> BinaryIO:
    """Open a file inside a folder."""
    try:
        return open_source(file, root)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"the file {shown(file.name)} cannot be opened any more") from error


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
