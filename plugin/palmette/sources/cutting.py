"""Documents into passages, as an index was created to cut them: by options, or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from palmette.errors import ConfigError, shown
from palmette.sources.kinds import KINDS
from palmette.sources.passages import CountTokens, PassageOptions, above, split
from palmette.store.protocols import StoredDocument
from palmette.types import Document, Passage, table_heads

PassagesLike = PassageOptions | Mapping[str, Any] | str | None
"""How documents are cut: options, ``"auto"``, or ``None`` for documents that stay one passage."""
AUTO = "auto"
"""Passages as measurements advise; none where a model's documents are not texts to be cut."""
FILE_NAME_KEYS = ("source", "file_path", "file_name", "filename")
"""Metadata that name the file of a document, whose suffix says how its blocks are read."""
_COUNTED = 64
"""Characters for each token of the limit; longer documents are cut without counting their tokens."""
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|\|.*\|\s*$)", re.MULTILINE)


class Cutter:
    """Cuts documents into passages."""

    def __init__(self, options: PassageOptions | None, count_tokens: CountTokens) -> None:
        self.options, self.count_tokens = options, count_tokens

    @property
    def recorded(self) -> dict[str, Any] | None:
        """Return what an index stores of it."""
        return None if self.options is None else self.options.to_dict()

    def cut(self, documents: Sequence[Document]) -> list[StoredDocument]:
        """Cut documents; one whose text is short, or that is never cut, is one passage."""
        if self.options is None:
            return [StoredDocument.whole(document) for document in documents]
        # 1. Those that may be too long, by their characters and by the tokens at their beginning.
        limit = self.options.tokens
        long = [at for at, document in enumerate(documents) if len(document.content) > limit]  # a token has a character
        heads = [documents[at].content[: _COUNTED * limit] for at in long]  # the rest is seldom without tokens
        counts = self.count_tokens(heads)
        too_long = {at for at, count in zip(long, counts, strict=True) if count > limit}
        too_long |= {at for at, head in zip(long, heads, strict=True) if len(head) < len(documents[at].content)}
        # 2. Each as its passages.
        stored = []
        for at, document in enumerate(documents):
            places = list[Passage]()
            if at in too_long:
                places = split(document.content, kind_of_text(document), self.options, self.count_tokens)
            if len(places) < 2:
                stored.append(StoredDocument.whole(document, places[0].headings if places else ()))
            else:
                stored.append(StoredDocument(document, tuple(places)))
        return stored


def new_cutter(model: Any, passages: PassagesLike) -> Cutter:
    """Cutter of a new index."""
    options: Any = passages
    if passages == AUTO:
        options = PassageOptions() if model.cuts_documents else None
    elif isinstance(passages, Mapping):
        options = PassageOptions.from_dict(dict(passages))
    elif passages is not None and not isinstance(passages, PassageOptions):
        raise ConfigError(
            f"passages must be PassageOptions or a dict of them, 'auto' or None, got {shown(passages)}: to cut by a "
            "splitter of your own, index the pieces that it gives"
        )
    return Cutter(options, model.encoder.count_tokens)


def opened_cutter(model: Any, recorded: Mapping[str, Any] | None) -> Cutter:
    """Cutter of an index that exists.

    What is added to an index that was cut by a splitter, or with overlaps, is cut by today's options.
    """
    known = {name: value for name, value in (recorded or {}).items() if name == "tokens"}
    return Cutter(None if recorded is None else PassageOptions.from_dict(known), model.encoder.count_tokens)


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
