"""A document as an index stores it: whole, with the places of its passages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from palmette.types import LINE_END, Document, Passage
from palmette.values import written


@dataclass(frozen=True)
class StoredDocument:
    """A document as an index stores it: whole, with the places of its passages."""

    document: Document
    passages: tuple[Passage, ...]
    source: str = ""
    """Name of the source that keeps the document up to date; empty for one that was added by itself."""

    @classmethod
    def whole(cls, document: Document, headings: tuple[str, ...] = (), source: str = "") -> StoredDocument:
        """A document that is one passage."""
        text = document.content
        lines = 1 + sum(match.end() < len(text) for match in LINE_END.finditer(text))
        return cls(document, (Passage(0, len(text), headings, 1, lines),), source)

    def part(self, number: int) -> Document:
        """A passage as a document, its text under the id and metadata of the whole; an only passage is the whole."""
        if len(self.passages) == 1:
            return self.document
        return self._slice(self.document.content, self.passages[number])

    def parts(self) -> list[Document]:
        """All passages as documents, in order."""
        if len(self.passages) == 1:
            return [self.document]
        content = self.document.content
        return [self._slice(content, place) for place in self.passages]

    def _slice(self, content: str, place: Passage) -> Document:
        return replace(self.document, text=content[place.start : place.end])

    def words(self) -> list[str]:
        """Texts in which the words of each passage are looked for; fields are part of the first."""
        if len(self.passages) == 1:
            return [self.document.all_text]
        fields = "\n".join(filter(None, map(written, self.document.fields.values())))
        texts = [part.text for part in self.parts()]
        return [f"{texts[0]}\n{fields}".rstrip("\n"), *texts[1:]]


def as_stored(documents: Iterable[Document | StoredDocument]) -> list[StoredDocument]:
    """Wrap documents without passages as documents of one passage."""
    return [d if isinstance(d, StoredDocument) else StoredDocument.whole(d) for d in documents]
