"""The values that travel through palmette: documents in, hits and explanations out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from typing import Any

from palmette.errors import InputError, PalmetteError, shown
from palmette.values import json_fault, written

Metadata = Mapping[str, Any]
"""JSON-like values under string keys; nested mappings are reached by a filter as ``"author.name"``."""


LONGEST_ID = 2**14
LONGEST_DOCUMENT = 2**23
"""Largest number of characters of a document's text and fields: ten novels."""
_KINDS: Mapping[str, type] = {"text": str, "metadata": Mapping, "fields": Mapping, "payload": Mapping}


_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode


def content_digest(text: str, *parts: Metadata) -> str:
    """Digest a document's text and its metadata, fields and payload, which must be JSON."""
    content = [text, *(_canonical(dict(part)) if part else "{}" for part in parts)]
    return hashlib.sha256(_canonical(content).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Document:
    """A text with an id, metadata to filter by, and optional named fields.

    Without an id, a stable one is made from the content, so that the same document added twice is one.

    Attributes:
        id: The user's id, or ``None`` for a hash of the content.
        text: What is searched and shown.
        metadata: JSON values to filter by and to hand back.
        fields: Named parts (title, brand, …) for methods that use them.
        payload: JSON kept and handed back untouched, never searched or filtered by.
    """

    id: str | None = None
    text: str = ""
    metadata: Metadata = field(default_factory=dict)
    fields: Metadata = field(default_factory=dict)
    payload: Metadata = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value: object = getattr(self, name)
            if not isinstance(value, kind):
                expected = "str" if kind is str else "mapping"
                raise InputError(
                    f"document {shown(self.id)}: {name} must be a {expected}, got "
                    f"{type(value).__name__}: {shown(value)}"
                )
            for key in value if isinstance(value, Mapping) else ():
                if not isinstance(key, str):
                    raise InputError(
                        f"document {shown(self.id)}: {name} keys must be a str, got {type(key).__name__}: {shown(key)}"
                    )
        if not self.text.strip() and not self.fields:
            raise InputError(f"document {shown(self.id)} is empty: give it a text (or fields)")
        identity: object = self.id
        if identity is None:
            object.__setattr__(self, "id", self.digest[:32])
        elif not isinstance(identity, str) or not 0 < len(identity) <= LONGEST_ID:
            raise InputError(
                f"a document id must be a str of 1 to {LONGEST_ID:,} characters, got {shown(identity)}; "
                "use str(id), or None for a hash"
            )

    @property
    def key(self) -> str:
        """The id, which is never ``None`` once the document exists."""
        assert self.id is not None
        return self.id

    @property
    def digest(self) -> str:
        """SHA-256 of all content: equal digests mean nothing changed."""
        for name in ("metadata", "fields", "payload"):
            if fault := json_fault(dict(getattr(self, name)), ""):
                raise InputError(f"document {shown(self.id)}: {name} must hold JSON values only: {fault}")
        return content_digest(self.text, self.metadata, self.fields, self.payload)

    @property
    def content(self) -> str:
        """The encoder's input: the text, or the fields of a document without text."""
        return self.text if self.text and not self.text.isspace() else self.all_text

    @property
    def all_text(self) -> str:
        """The text and all fields, in which words are looked for: those of a title that the text begins with, twice."""
        return "\n".join(filter(None, (self.text.strip(), *map(written, self.fields.values()))))

    def __hash__(self) -> int:
        return hash((self.id, self.text))


LINE_END = re.compile(r"\r\n|\r|\n")
"""What ends a line: the three of Markdown and of editors, none of Unicode's others."""


@dataclass(frozen=True)
class Passage:
    """A slice of a document: its text is ``document.content[start:end]``.

    Attributes:
        start: First character.
        end: Character after the last.
        headings: Headings above the passage, from the outermost; the innermost is the section that holds all of it.
        first_line: Line of the first character, 1 for the document's first.
        last_line: Line of the last character.
        number: Place among the document's passages, 0 for the first; its neighbours are ``number - 1`` and
            ``number + 1``.
        count: Number of the document's passages.
    """

    start: int
    end: int
    headings: tuple[str, ...] = ()
    first_line: int = 1
    last_line: int = 1
    number: int = 0
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The place as JSON values."""
        return {**asdict(self), "headings": list(self.headings)}


def cite(document: Document, place: Passage | None) -> str:
    """Cite a passage for people: ``guide.md › Pruning › Cherries, lines 40–52``.

    The name is the document's id, or what its metadata have as ``source``. Lines of an only line are left out.
    """
    source = document.metadata.get("source")
    name = source if isinstance(source, str) and source.strip() else document.key
    if place is None:
        return name
    first, last = place.first_line, place.last_line
    lines = f", lines {first}\u2013{last}" if first < last else f", line {first}" if place.count > 1 else ""
    return " \u203a ".join([name, *place.headings]) + lines


@dataclass(frozen=True)
class Pair:
    """A question and a text that answers it, with optional texts that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One summand of a score: what it is, what it adds, and the evidence."""

    name: str
    value: float
    detail: Metadata = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """Why a document scored what it did; ``text`` says it in words.

    A hit's ``score`` is a probability, and its ``parts`` add up to the log-odds of it. ``method`` explains the score
    of the method alone, whose parts add up to that score itself.
    """

    score: float
    parts: Sequence[Part]
    text: str
    detail: Metadata = field(default_factory=dict)
    method: Explanation | None = None
    brief: str = ""
    """What a hit's explanation quotes of a method's."""

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        parts = [
            {"name": p.name, "value": p.value} | ({"detail": dict(p.detail)} if p.detail else {}) for p in self.parts
        ]
        facts = {"score": self.score, "text": self.text, "parts": parts, "detail": dict(self.detail)}
        return facts if self.method is None else {**facts, "method": self.method.to_dict()}

    def _repr_html_(self) -> str:
        """The parts as a table, for notebooks."""
        rows = "".join(f"<tr><td>{escape(p.name)}</td><td>{p.value:.4f}</td></tr>" for p in self.parts)
        return f"<p>{escape(self.text)}</p><table>{rows}<tr><th>score</th><th>{self.score:.4f}</th></tr></table>"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Highlights:
    """Characters of a hit's content: those of its best sentence, and of the query's words."""

    sentence: tuple[int, int] | None
    words: Sequence[tuple[int, int]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The places as JSON values."""
        return {"sentence": self.sentence and list(self.sentence), "words": [list(w) for w in self.words]}


@dataclass(frozen=True)
class Surroundings:
    """A slice of a document around a passage."""

    text: str
    start: int
    end: int
    first_line: int
    last_line: int

    def to_dict(self) -> dict[str, Any]:
        """The slice as JSON values."""
        return asdict(self)


_KEPT = ("document", "score", "evidence", "sentence", "passage", "others", "copies", "around")
"""What a copied or pickled hit keeps."""


@dataclass(frozen=True)
class Hit:
    """A passage found, and the probability that it is relevant."""

    document: Document
    """The passage's text, with the id and the metadata of its document; ``index.get`` reads the whole document."""
    score: float
    """0 … 1, the same for every method; higher is better."""
    explainer: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)
    evidence: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    """What the score is made of: ``own`` (the method's score), ``best`` (cosine of the best sentence), ``share`` (of
    the query's weight in words), and the ``chance`` that this share has with any document."""
    sentence: tuple[int, int] | None = field(default=None, repr=False, compare=False)
    """Characters of the document's content that are its best sentence."""
    finder: Callable[[], Sequence[tuple[int, int]]] | None = field(default=None, repr=False, compare=False)
    passage: Passage | None = field(default=None, repr=False)
    """Where the passage stands in its document; ``None`` of a hit that no index found."""
    others: Sequence[Hit] = field(default=(), repr=False)
    """Further passages of the same document, best first, in a search with ``group_by="document"``."""
    copies: Sequence[str] = field(default=(), repr=False)
    """Citations of passages with the same text, which a search with ``distinct`` shows once."""
    around: Surroundings | None = field(default=None, repr=False)
    """What a search with ``expand`` adds around the passage."""

    @property
    def id(self) -> str:
        """The document's id."""
        return self.document.key

    @property
    def text(self) -> str:
        """The passage, with what ``expand`` adds around it."""
        return self.document.content if self.around is None else self.around.text

    @property
    def citation(self) -> str:
        """Place of the hit for readers: ``guide.md › Pruning › Cherries, lines 40–52``."""
        return cite(self.document, self.passage)

    @property
    def highlights(self) -> Highlights:
        """Places of the best sentence and of the query's words."""
        return Highlights(self.sentence, () if self.finder is None else self.finder())

    def explain(self) -> Explanation:
        """Why this document matched (computed when asked)."""
        if self.explainer is None:
            raise PalmetteError(
                f"hit {shown(self.id)} has lost its index (it was copied or pickled); use index.explain(query, id)"
            )
        return self.explainer()

    def to_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """The hit as JSON values; ``explain`` adds why it matched."""
        document = self.document
        facts = {"id": self.id, "score": self.score, "text": document.content, "metadata": dict(document.metadata)}
        facts |= {"evidence": dict(self.evidence), "highlights": self.highlights.to_dict()}
        if self.passage is not None and (self.passage.count > 1 or self.passage.headings):
            facts["passage"] = self.passage.to_dict()
        facts["citation"] = self.citation
        if self.around is not None:
            facts["around"] = self.around.to_dict()
        if self.others:
            facts["others"] = [other.to_dict(explain=explain) for other in self.others]
        if self.copies:
            facts["copies"] = list(self.copies)
        return facts | ({"explanation": self.explain().to_dict()} if explain else {})

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _KEPT}
        words = self.highlights.words
        return {**state, "explainer": None, "finder": partial(list, words)}
