"""Fields of a document: where their texts come from, and how many tokens of each are read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Ragged
from palmette.encoder import Backbone
from palmette.errors import ConfigError, InputError
from palmette.machine.progress import progress_bar
from palmette.methods.fields.config import WHOLE, FieldsConfig
from palmette.types import Document
from palmette.types.values import written

TEXT = "text"
"""Source of a document's text, without the title where it starts with that."""
_SAMPLE = 2000  # documents that fields and their lengths are detected on
_RARE = 0.01  # share of documents below which a field is ignored
_BUDGET_SAMPLE = 1000  # documents that token budgets are chosen on
_COVERED = 0.95  # share of documents whose field fits its budget where there is room
_LEAST = 4  # tokens that every field gets


class FieldsWarning(UserWarning):
    """Fields were detected, or a model was made without training."""


@dataclass(frozen=True)
class FieldExtractor:
    """Reads the texts of a document's fields."""

    sources: Mapping[str, str]
    """Field name → source: a key of ``Document.fields``, else of the metadata; ``metadata.brand`` or
    ``fields.specs.size`` to be exact; ``text``; several joined by ``+``.
    """

    @classmethod
    def of(cls, items: Sequence[str]) -> Self:
        """Extractor of items ``name`` or ``name=source``."""
        named = [item.partition("=") for item in items]
        sources = {name.strip(): (source or name).strip() for name, _, source in named}
        if len(sources) != len(items) or not all(sources):
            raise ConfigError(f"fields must have different names that are not empty, got {', '.join(items)}")
        return cls(sources)

    @classmethod
    def detect(cls, documents: Sequence[Document]) -> Self:
        """Fields of ``Document.fields``, a title in the metadata and the text, short to long; a warning names them."""
        sample = documents[:: max(1, len(documents) // _SAMPLE)][:_SAMPLE]
        own = dict.fromkeys(name for document in sample for name in document.fields)
        # "=" and "+" separate names and sources, and "all" is the whole document
        unfit = [name for name in own if not name.strip() or {"=", "+"} & set(name) or name == WHOLE]
        names = [name for name in own if name not in unfit]
        if "title" not in names and any(isinstance(d.metadata.get("title"), str) for d in sample):
            names.append("title")
        if TEXT not in names:
            names.append(TEXT)
        extractor = cls({name: name for name in names})
        words = np.array([[len(text.split()) for text in extractor._texts(d)] for d in sample])  # [n, F]
        lengths = words.sum(axis=0) / np.maximum((words > 0).sum(axis=0), 1)
        known = (words > 0).mean(axis=0) >= _RARE
        order = [names[at] for at in np.argsort(lengths, kind="stable").tolist() if known[at]] or [TEXT]
        metadata = dict.fromkeys(
            f"metadata.{name}"
            for document in sample
            for name, value in document.metadata.items()
            if isinstance(value, str | list | Mapping) and name not in order
        )
        ignored = [*metadata, *(f"fields.{name}" for name in unfit)]
        warnings.warn(
            f"no fields were given: taking {', '.join(order)}, from short to long"
            f"{'; not ' if ignored else ''}{', '.join(ignored)}. Give them in an order, and "
            "where they lie, with fields={'title': 'title', 'brand': 'metadata.brand', 'text': 'text'}",
            FieldsWarning,
            stacklevel=2,
        )
        return cls({name: name for name in order})

    @classmethod
    def for_training(cls, config: FieldsConfig, documents: Sequence[Document]) -> Self:
        """Given or detected fields, checked against the documents, with the field ``all`` where the config adds it."""
        extractor = cls.of(config.fields) if config.fields else cls.detect(documents)
        extractor._check(documents)
        sources = dict(extractor.sources)
        if len(sources) == 1:
            return extractor
        made = "+".join(source for name, source in sources.items() if name != WHOLE)
        if sources.get(WHOLE, made) != made:  # that of an earlier training is as it is made here
            raise ConfigError(
                f"fields: {WHOLE!r} is the field that is made of all others; name yours otherwise, such as "
                f"fields={{'every': {sources[WHOLE]!r}, …}}"
            )
        if config.whole and config.attention != "full":
            sources[WHOLE] = made
        return cls(sources)

    @property
    def reads_metadata(self) -> bool:
        """True if a source may lie in the metadata."""
        parts = {part for source in self.sources.values() for part in source.split("+")}
        return any(part != TEXT and not part.startswith("fields.") for part in parts)

    def read(self, document: Document) -> list[str]:
        """Text of each field, empty where missing; a document with none of them is read as its last field."""
        texts = self._texts(document)
        return texts if any(texts) else [*texts[:-1], document.content.strip()]

    def _texts(self, document: Document) -> list[str]:
        return [
            " ".join(filter(None, (written(_value(document, part)) for part in source.split("+"))))
            for source in self.sources.values()
        ]

    def _check(self, documents: Sequence[Document]) -> None:
        """Raise if no document has a field: its source is misspelt."""
        missing = set(self.sources)
        for document in documents:
            missing -= {name for name, text in zip(self.sources, self._texts(document), strict=True) if text}
            if not missing:
                return
        name = min(missing)
        known = dict.fromkeys(
            key
            for document in documents[:_SAMPLE]
            for key in (*document.fields, *(f"metadata.{key}" for key in document.metadata), TEXT)
        )
        raise InputError(
            f"no document has the field {name!r} (looked for in {self.sources[name]!r}); they have: {', '.join(known)}"
        )


def _value(document: Document, source: str) -> Any:
    if source == TEXT:
        return document.fields[TEXT] if TEXT in document.fields else _body(document)
    for prefix, mapping in (("metadata.", document.metadata), ("fields.", document.fields)):
        if source.startswith(prefix):
            return _at_path(mapping, source.removeprefix(prefix))
    value = _at_path(document.fields, source)
    return _at_path(document.metadata, source) if value is None else value


def _at_path(mapping: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path of keys; keys may contain dots themselves."""
    if path in mapping:
        return mapping[path]
    first, _, rest = path.partition(".")
    inner = mapping.get(first)
    return _at_path(inner, rest) if rest and isinstance(inner, Mapping) else None


def _body(document: Document) -> str:
    """Text after the title, which loaders put before it."""
    title = document.fields.get("title", document.metadata.get("title"))
    text = document.text.strip()
    if isinstance(title, str) and (title := title.strip()) and text.startswith(title):
        rest = text[len(title) :]
        if not rest[:1].isalnum():
            return rest.strip()
    return text


def read_field_tokens(
    backbone: Backbone, texts: Sequence[str], limit: int, label: str, progress: bool | None
) -> Ragged:
    """Token ids of texts, at most ``limit`` of each."""
    rows: list[list[int]] = []
    parts = range(0, len(texts), 512)
    for start in progress_bar(progress, parts, desc=label, unit="batch", delay=2, leave=False):
        part = [text[: 40 * limit] for text in texts[start : start + 512]]  # the rest is cut anyway
        rows += backbone.tokenise(part, limit)
    ids = np.fromiter((id for row in rows for id in row), np.int32)
    return Ragged(ids, np.cumsum([0, *map(len, rows)], dtype=np.int64))


def query_tokens(
    backbone: Backbone, texts: Sequence[str], config: FieldsConfig, *, progress: bool | None = False
) -> Ragged:
    """Tokens of queries, after the encoder's prompt."""
    limit = min(config.query_tokens, backbone.max_length - 2)
    prompt = backbone.prompts.get("query", "")
    return read_field_tokens(backbone, [prompt + text for text in texts], limit, "Reading queries", progress)


def field_tokens(
    backbone: Backbone,
    extractor: FieldExtractor,
    documents: Sequence[Document],
    limits: Sequence[int],
    attended: NDArray[np.bool_],
    *,
    progress: bool | None = False,
) -> list[Ragged]:
    """Tokens of each field of all documents.

    The encoder's prompt precedes every field that attends to no other filled one, by ``attended`` [F, F].
    """
    texts = [extractor.read(document) for document in documents]
    if prompt := backbone.prompts.get("document", ""):
        mutual = attended & attended.T  # with full attention the first field counts as the earlier one
        earlier = (attended & ~mutual) | np.tril(mutual, -1)
        for row in texts:
            filled = np.array([bool(text) for text in row])
            for field in np.flatnonzero(filled & ~(earlier & filled).any(1)).tolist():
                row[field] = prompt + row[field]
    return [
        read_field_tokens(backbone, [row[at] for row in texts], limit, f"Reading {name}", progress)
        for at, (name, limit) in enumerate(zip(extractor.sources, limits, strict=True))
    ]


def token_budgets(
    backbone: Backbone, extractor: FieldExtractor, documents: Sequence[Document], config: FieldsConfig
) -> tuple[int, ...]:
    """Tokens of each field: what nearly all documents need; where there is no room for it, long fields are cut alike.

    The whole document has a budget of its own, that of a text.
    """
    room = min(config.document_tokens or backbone.max_length, backbone.max_length)
    names, attended = list(extractor.sources), config.attended
    if config.reads_whole:
        names, attended = names[:-1], attended[:-1, :-1]
    parts = FieldExtractor({name: extractor.sources[name] for name in names})
    sample = documents[:: max(1, len(documents) // _BUDGET_SAMPLE)][:_BUDGET_SAMPLE]
    tokens = field_tokens(backbone, parts, sample, [room] * len(names), attended)
    needed = np.array([max(_LEAST, int(np.quantile(np.diff(field.starts), _COVERED))) for field in tokens])
    left = room - 1 - 2 * len(names)  # CLS, and a token and a SEP per field
    fitting = (cut for cut in range(room, _LEAST, -1) if np.minimum(needed, cut).sum() <= left)
    limits = tuple(np.minimum(needed, next(fitting, _LEAST)).tolist())
    most = backbone.positions - 2  # CLS stands before all fields, a SEP after the last
    if sum(limits) > most:
        raise ConfigError(
            f"fields: {len(limits)} fields of {sum(limits)} tokens together, but the encoder has room for {most}: "
            "give fewer fields, or join some ('names=brand+title')"
        )
    return (*limits, room - 2) if config.reads_whole else limits
