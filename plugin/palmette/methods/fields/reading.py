"""From a user's documents to texts by field: where each field lies, in which order, and how values are written."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from palmette.errors import ConfigError, InputError
from palmette.types import Document, written

__all__ = ["TEXT", "WHOLE", "FieldsWarning", "Reader", "as_items"]

TEXT = "text"
"""The field that every document has: its text, without the title where it starts with that."""
WHOLE = "all"
"""The field that is made of all others."""
_SAMPLE = 2000
"""Documents looked at to find fields and their lengths."""
_RARE = 0.01
"""A field that fewer documents have is no field of the collection."""


class FieldsWarning(UserWarning):
    """Fields were chosen for the user."""


def as_items(given: Mapping[Any, Any] | Iterable[Any] | None, joint: str = "+") -> tuple[str, ...]:
    """A mapping or list of an option as items ``name`` or ``name=value``, which configs and shells can hold."""
    if given is None:
        return ()
    if isinstance(given, set | frozenset):
        raise ConfigError(f"give a list, not a set, which has no order: {sorted(map(str, given))}")
    if isinstance(given, str):
        return tuple(item.strip() for item in given.split(",") if item.strip())
    if not isinstance(given, Mapping):
        if strange := [item for item in given if not isinstance(item, str)]:
            raise ConfigError(f"names must be str, got {strange[0]!r}")
        return tuple(given)
    if strange := [key for key in given if not isinstance(key, str) or "=" in key]:
        raise ConfigError(f"{strange[0]!r} cannot be a name here: give a str without '='")
    if empty := [key for key, value in given.items() if value is None]:
        raise ConfigError(f"{empty[0]!r} is given None: say where it lies, or leave it out")
    values = {
        key: joint.join(value) if isinstance(value, list | tuple) else str(value)
        for key, value in given.items()
    }
    return tuple(key if key == value else f"{key}={value}" for key, value in values.items())


@dataclass(frozen=True)
class Reader:
    """Where each field of a document lies.

    Attributes:
        sources: Field name → where: a key of ``Document.fields`` or else of the metadata, ``metadata.brand`` or
            ``fields.specs.size`` to be exact, ``text`` for the text; several with ``+`` between them.
    """

    sources: Mapping[str, str]

    @classmethod
    def of(cls, items: Sequence[str]) -> Self:
        """From items ``name`` or ``name=source``."""
        named = [item.partition("=") for item in items]
        sources = {name.strip(): (source or name).strip() for name, _, source in named}
        if len(sources) != len(items) or not all(sources):
            raise ConfigError(f"fields must have different names that are not empty, got {', '.join(items)}")
        return cls(sources)

    @classmethod
    def found(cls, documents: Sequence[Document]) -> Self:
        """The fields that documents have, from short to long; says so in a warning.

        Those of ``Document.fields``, a title in the metadata, and the text.
        """
        step = max(1, len(documents) // _SAMPLE)
        sample = documents[::step][:_SAMPLE]
        names = dict.fromkeys(name for document in sample for name in document.fields)
        for name in [name for name in names if _unfit(name)]:
            del names[name]
        if any(isinstance(document.metadata.get("title"), str) for document in sample):
            names.setdefault("title")
        names[TEXT] = None
        reader = cls({name: name for name in names})
        rows = np.array(
            [[len(text.split()) for text in reader._found(document)] for document in sample]
        )  # [n, F]
        there = (rows > 0).mean(axis=0)
        lengths = rows.sum(axis=0) / np.maximum((rows > 0).sum(axis=0), 1)
        kept = [at for at in np.argsort(lengths, kind="stable").tolist() if there[at] >= _RARE]
        order = [list(names)[at] for at in kept] or [TEXT]
        others = dict.fromkeys(
            f"metadata.{name}"
            for document in sample
            for name, value in document.metadata.items()
            if isinstance(value, str | list | Mapping) and name not in order
        )
        unfit = dict.fromkeys(f"fields.{name}" for d in sample for name in d.fields if _unfit(name))
        beside = f"; not {', '.join([*others, *unfit])}" if others or unfit else ""
        warnings.warn(
            f"no fields were given: taking {', '.join(order)}, from short to long{beside}. Give them in an order, and "
            "where they lie, with fields={'title': 'title', 'brand': 'metadata.brand', 'text': 'text'}",
            FieldsWarning,
            stacklevel=2,
        )
        return cls({name: name for name in order})

    @property
    def names(self) -> list[str]:
        """The fields in their order."""
        return list(self.sources)

    @property
    def items(self) -> tuple[str, ...]:
        """As :meth:`of` takes them."""
        return as_items(self.sources)

    def with_whole(self, name: str) -> Self:
        """And one more, of all of them on end."""
        if name in self.sources or len(self.sources) == 1:
            return self
        return type(self)({**self.sources, name: "+".join(self.sources.values())})

    def read(self, document: Document) -> list[str]:
        """The text of each field; empty where the document has none.

        What has none of the fields at all, but a text, is read as its last field, which is the longest.
        """
        texts = self._found(document)
        return texts if any(texts) else [*texts[:-1], document.content.strip()]

    def _found(self, document: Document) -> list[str]:
        return [
            " ".join(filter(None, (written(_value(document, one)) for one in source.split("+"))))
            for source in self.sources.values()
        ]

    def check(self, documents: Sequence[Document]) -> None:
        """Raise when a field is in none of many documents: its source is surely misspelt."""
        missing = set(self.names)
        for document in documents:
            missing -= {name for name, text in zip(self.names, self._found(document), strict=True) if text}
            if not missing:
                return
        name = sorted(missing)[0]
        has = dict.fromkeys(
            key
            for document in documents[:_SAMPLE]
            for key in (*document.fields, *(f"metadata.{key}" for key in document.metadata), TEXT)
        )
        raise InputError(
            f"no document has the field {name!r} (looked for in {self.sources[name]!r}); they have: {', '.join(has)}"
        )


def _unfit(name: str) -> bool:
    """Whether a key cannot name a field: ``=`` and ``+`` part names and sources, ``all`` is the whole document."""
    return not name.strip() or bool({"=", "+"} & set(name)) or name == WHOLE


def _value(document: Document, source: str) -> Any:
    if source == TEXT:
        return document.fields[TEXT] if TEXT in document.fields else _body(document)
    for prefix, mapping in (("metadata.", document.metadata), ("fields.", document.fields)):
        if source.startswith(prefix):
            return _within(mapping, source.removeprefix(prefix))
    found = _within(document.fields, source)
    return _within(document.metadata, source) if found is None else found


def _within(mapping: Mapping[str, Any], path: str) -> Any:
    """What lies at a path of keys; a key with dots in it is taken as it is."""
    if path in mapping:
        return mapping[path]
    first, _, rest = path.partition(".")
    inner = mapping.get(first)
    return _within(inner, rest) if rest and isinstance(inner, Mapping) else None


def _body(document: Document) -> str:
    """The text after its title, which loaders put before it and which is a field of its own."""
    title = document.fields.get("title", document.metadata.get("title"))
    text = document.text.strip()
    if isinstance(title, str) and (title := title.strip()) and text.startswith(title):
        rest = text[len(title) :]
        if not rest[:1].isalnum():
            return rest.strip()
    return text
