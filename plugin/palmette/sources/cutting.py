"""Documents into passages, as an index was created to cut them: by options, by a splitter, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import Any

from palmette.errors import ConfigError, InputError, PalmetteError, shown
from palmette.sources.kinds import KINDS
from palmette.sources.lines import Lines
from palmette.sources.passages import CountTokens, PassageOptions, above, split
from palmette.store.protocols import StoredDocument
from palmette.types import Document, Passage, table_heads

PassagesLike = PassageOptions | Mapping[str, Any] | Callable[[str], Iterable[Any]] | Any | None
"""How documents are cut: options; a splitter of LangChain or LlamaIndex; a function from a text to slices of it, or to
pairs of their first character and the one after the last; ``None`` for documents that stay one passage."""
AUTO = "auto"
"""Passages as measurements advise; none where a model's documents are not texts to be cut."""
SPLITTER = "splitter"
"""Recorded key of the name of a splitter, which only the program that made the index has."""
FILE_NAME_KEYS = ("source", "file_path", "file_name", "filename")
"""Metadata that name the file of a document, whose suffix says how its blocks are read."""
_COUNTED = 64
"""Characters for each token of the limit; longer documents are cut without counting their tokens."""
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|\|.*\|\s*$)", re.MULTILINE)


class _NoSplitter(InputError):
    """The splitter of an index was not given, so that no document can be cut."""


class Cutter:
    """Cuts documents into passages."""

    def __init__(self, passages: PassagesLike, count_tokens: CountTokens) -> None:
        self.how, self.count_tokens = as_passages(passages), count_tokens

    @property
    def splitter(self) -> Any:
        """The splitter or function that cuts documents, whose name is all that an index records of it."""
        return None if isinstance(self.how, PassageOptions) else self.how

    @property
    def recorded(self) -> dict[str, Any] | None:
        """Return the part that an index stores."""
        if self.how is None or isinstance(self.how, PassageOptions):
            return None if self.how is None else self.how.to_dict()
        return {SPLITTER: getattr(self.how, "__name__", type(self.how).__name__)}

    def cut(self, documents: Sequence[Document]) -> list[StoredDocument]:
        """Cut documents; one whose text is short, or that is never cut, is one passage."""
        if self.how is None:
            return [StoredDocument.whole(document) for document in documents]
        if not isinstance(self.how, PassageOptions):
            return [self._split_by(self.how, document) for document in documents]
        limit = self.how.tokens
        long = [at for at, document in enumerate(documents) if len(document.content) > limit]  # a token has a character
        heads = [documents[at].content[: _COUNTED * limit] for at in long]  # the rest is seldom without tokens
        counts = self.count_tokens(heads)
        too_long = {at for at, count in zip(long, counts, strict=True) if count > limit}
        too_long |= {at for at, head in zip(long, heads, strict=True) if len(head) < len(documents[at].content)}
        return [self._split(document, at in too_long, self.how) for at, document in enumerate(documents)]

    def cut_each(self, documents: Sequence[Document]) -> Iterator[StoredDocument | InputError]:
        """Yield each document cut, or why it cannot be."""
        try:
            yield from self.cut(documents)
        except _NoSplitter:
            raise
        except InputError:
            for document in documents:
                try:
                    yield from self.cut([document])
                except InputError as error:
                    yield error

    def _split(self, document: Document, long: bool, options: PassageOptions) -> StoredDocument:
        if not long:
            return StoredDocument.whole(document)
        try:
            places = split(document.content, kind_of_text(document), options, self.count_tokens)
        except RecursionError as error:
            raise InputError(f"document {shown(document.key)}: it cannot be cut: nested too deeply") from error
        if len(places) < 2:
            return StoredDocument.whole(document, places[0].headings if places else ())
        return StoredDocument(document, tuple(places))

    def _split_by(self, splitter: Any, document: Document) -> StoredDocument:
        """Cut a document with a user's splitter, whose pieces must be slices of the text."""
        content, places, begin = document.content, list[tuple[int, int]](), 0
        try:
            pieces = _pieces(splitter, content)
        except PalmetteError:
            raise
        except Exception as error:
            reason = f"{type(splitter).__name__} raises {type(error).__name__}: {error}"
            raise InputError(f"document {shown(document.key)}: it cannot be cut: {reason}") from error
        for piece in pieces:
            place = piece if isinstance(piece, tuple) else _find(content, piece, begin)
            if place is None or not 0 <= place[0] < place[1] <= len(content):
                raise InputError(
                    f"document {shown(document.key)}: {type(splitter).__name__} gives {shown(piece)}, which is no "
                    "slice of its text: use a splitter that leaves texts as they are, or PassageOptions"
                )
            if content[place[0] : place[1]].strip():
                places.append(place)
                begin = place[0] + 1
        if len(places) < 2:
            return StoredDocument.whole(document)
        lines = Lines(content)
        count = len(places)
        passages = (
            Passage(start, end, (), lines.at(start) + 1, lines.at(end - 1) + 1, number, count)
            for number, (start, end) in enumerate(places)
        )
        return StoredDocument(document, tuple(passages))


def as_passages(passages: PassagesLike) -> Any:
    """Check how documents are to be cut."""
    if passages is None or isinstance(passages, PassageOptions):
        return passages
    if isinstance(passages, Mapping):
        return PassageOptions.from_dict(dict(passages))
    if callable(getattr(passages, "split_text", None)) or callable(getattr(passages, "get_nodes_from_documents", None)):
        return passages
    if callable(passages) and not isinstance(passages, type):
        return passages
    raise ConfigError(
        f"passages must be PassageOptions or a dict of them, a splitter of LangChain or LlamaIndex, a function from a "
        f"text to its slices, or None; got {shown(passages)}"
    )


def new_cutter(model: Any, passages: PassagesLike) -> Cutter:
    """Cutter of a new index."""
    if isinstance(passages, str) and passages == AUTO:
        passages = PassageOptions() if model.cuts_documents else None
    return Cutter(passages, model.encoder.count_tokens)


def opened_cutter(model: Any, backend: Any, passages: PassagesLike) -> Cutter:
    """Cutter of an index that exists: as it is recorded, or the very splitter that it was created with."""
    recorded: Mapping[str, Any] | None = backend.passages
    cutter = Cutter(passages, model.encoder.count_tokens)
    if passages is not None and cutter.recorded != recorded:
        raise ConfigError(
            f"this index cuts documents by {shown(recorded)}, not by {shown(cutter.recorded)}: leave passages out, or "
            "index the documents anew"
        )
    if passages is not None or recorded is None:
        return cutter
    if SPLITTER not in recorded:
        return Cutter(PassageOptions.from_dict(dict(recorded)), model.encoder.count_tokens)
    name = str(recorded[SPLITTER])

    def missing(text: str) -> list[str]:
        raise _NoSplitter(
            f"this index cuts documents by {name}: give it, Index.open(…, passages={name}(…)), before you add any"
        )

    missing.__name__ = name
    return Cutter(missing, model.encoder.count_tokens)


def kind_of_text(document: Document) -> str:
    """Tell how the blocks of a document are read, by the name of its file, else by its first signs of Markdown."""
    for name in FILE_NAME_KEYS:
        value = document.metadata.get(name)
        kind = KINDS.get(PurePath(value).suffix.lower(), "") if isinstance(value, str) else ""
        if kind in ("html", "office", "notebook"):  # converted
            return "markdown"
        if kind and kind != "pdf":
            return kind
    return "markdown" if _MARKDOWN.search(document.content) else "text"


def texts_above(stored: StoredDocument) -> list[str]:
    """Title, headings and head of a table above each passage, which the encoder reads before it.

    A document's only passage has none.
    """
    if len(stored.passages) == 1:
        return [""]
    title = stored.document.metadata.get("title")
    title = title if isinstance(title, str) and title.strip() else None
    headings, heads = [], table_heads(stored.document.content, [place.start for place in stored.passages])
    for part, place, head in zip(stored.parts(), stored.passages, heads, strict=True):
        begins = title is not None and part.text.lstrip("#=~ \t\r\n").startswith(title)
        names = above(None if begins else title, place.headings, part.text)
        headings.append("\n".join(filter(None, (names, head))))
    return headings


def _pieces(splitter: Any, text: str) -> list[Any]:
    """Result of a splitter: texts, or pairs of characters."""
    if callable(getattr(splitter, "split_text", None)):
        pieces = splitter.split_text(text)
    elif callable(getattr(splitter, "get_nodes_from_documents", None)):
        node: Any = import_module("llama_index.core.schema").Document
        pieces = splitter.get_nodes_from_documents([node(text=text)])
    else:
        pieces = splitter(text)
    return [_piece(piece) for piece in pieces]


def _piece(piece: Any) -> Any:
    if isinstance(piece, Passage):
        return piece.start, piece.end
    if isinstance(piece, str) or (isinstance(piece, tuple | list) and len(piece) == 2):
        return piece if isinstance(piece, str) else (int(piece[0]), int(piece[1]))
    return piece.get_content("none") if hasattr(piece, "get_content") else getattr(piece, "page_content", piece)


def _find(text: str, piece: Any, begin: int) -> tuple[int, int] | None:
    """Find a piece in a text at or after a character, else anywhere; where blanks were changed, by its words."""
    if not isinstance(piece, str):
        return None
    if not piece.strip():
        return begin, min(begin + 1, len(text))
    for first in (begin, 0):
        if (start := text.find(piece, first)) >= 0:
            return start, start + len(piece)
    words = re.compile(r"\s+".join(map(re.escape, piece.split())))
    match = words.search(text, begin) or words.search(text)
    return None if match is None else match.span()
