"""Documents, their passages, and pairs of a question and its answer."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from palmette.errors import InputError, shown
from palmette.types.values import json_fault, written

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


MAX_TABLE_HEAD = 1000
"""Characters at most of a table's columns that its passages are read with: a "table" may be one line of a megabyte."""


def table_heads(content: str, starts: Sequence[int]) -> list[str]:
    """Return, for each passage, the columns of the table that it goes on with: cells say little without them."""
    if not any(content.startswith("|", start) for start in starts):
        return [""] * len(starts)
    lines = [0, *(end.end() for end in LINE_END.finditer(content))]
    heads = list[str]()
    tables = dict[int, int]()  # the first line of the table that a line is in, so that no row is met twice
    for start in starts:
        line = at = bisect_right(lines, start) - 1
        if not (content.startswith("|", start) and content.startswith("|", lines[line])):
            heads.append("")
            continue
        while at not in tables and at > 0 and content.startswith("|", lines[at - 1]):
            at -= 1
        tables[line] = at = tables.get(at, at)
        head = content[lines[at] : lines[at] + MAX_TABLE_HEAD] if lines[at] < start else ""
        heads.append(LINE_END.split(head, maxsplit=1)[0].strip("| "))
    return heads


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


@dataclass(frozen=True)
class Pair:
    """A question and a text that answers it, with optional texts that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
