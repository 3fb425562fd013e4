"""Schemas of the service: request bodies, hits and documents as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import Config, check_keys, parse_untrusted_json
from palmette.errors import ConfigError, InputError
from palmette.service.local import MOST_HITS, MOST_QUERIES
from palmette.types import Document

DOCUMENT = ("id", "text", "metadata", "fields", "payload")
"""What a document has; the first three are never left out of a reply."""
DOCUMENTS_PER_PAGE = 100
"""Largest number of documents in a list."""


NO_METHOD_OPTIONS = frozenset(("self", "k", "query", "question", "id", "threshold", "explain"))
"""Parameters of a search and an explanation that are not options of a method."""
MOST_TOGETHER = 10_000
"""Largest number of hits of all queries of a request."""
MOST_MARKS = 1000
"""Largest number of words that are bold in a document."""
MOST_TURNS = 20
"""Largest number of earlier questions and answers."""
MOST_DOCUMENTS = 2**40
"""Largest offset of a list."""


class Body(Config):
    """Body of a request."""

    index: str | None = None
    """Name of the index; may be left out where the service has one."""


class Ask(Body):
    """Fields shared by requests for a search and for an answer."""

    k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 10
    """Number of documents."""
    filter: dict[str, Any] | None = None
    """Conditions on metadata, applied before ranking."""
    lexical: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """Weight of words beside meaning."""
    sentences: bool = True
    """Whether the best sentence counts."""
    boost: dict[str, Any] | None = None
    """Log-odds by metadata: ``{"date": {"half_life": "90d"}, "kind": {"guide": 0.5}}``."""
    rerank: bool | None = None
    """Whether the service's reranker judges hits whose order is open; by default where it has one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the index's method, such as ``level`` of a tree."""

    def search(self) -> dict[str, Any]:
        """Keywords of :meth:`palmette.Index.search`."""
        fields = {name: getattr(self, name) for name in ("filter", "lexical", "sentences", "boost", "rerank")}
        return {**_method_options(self.options, type(self).model_fields), **fields}

    def check_hits(self, queries: str | tuple[str, ...]) -> int:
        """Return the number of hits that the request may have; raises if they are too many."""
        hits = self.k * (1 if isinstance(queries, str) else len(queries))
        if hits > MOST_TOGETHER:
            raise ConfigError(f"k × queries may be {MOST_TOGETHER:,}, got {hits:,}: send fewer queries at a time")
        return hits


class SearchBody(Ask):
    """A search."""

    query: str | Annotated[tuple[str, ...], Field(max_length=MOST_QUERIES)]
    """A question, or several, which share one pass of the encoder."""
    threshold: float | None = None
    """Least probability of a hit."""
    explain: bool = False
    """Say why each document matched."""
    group_by: Literal["document"] | None = None
    """``document`` for the best documents, each by its best passage."""
    distinct: bool | Literal["near"] = False
    """Show passages of the same text once; ``near`` for nearly the same."""
    html: bool = False
    """Whether passages come as safe HTML too, as the page shows them."""

    def check(self) -> None:
        """Check the size of the reply."""
        self.check_hits(self.query)


class ContextBody(Ask):
    """A question whose context is gathered."""

    question: str
    """The question."""
    k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 20
    """Number of passages whose sentences are read."""
    tokens: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Tokens of all excerpts together."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Least probability of a passage."""


def _method_options(options: dict[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return options of a method; raise if one has the name of a parameter."""
    if clash := sorted(options.keys() & {*others, *NO_METHOD_OPTIONS}):
        raise ConfigError(f"{clash[0]!r} is no option of a method: give it beside options")
    return options


class AnswerBody(Ask):
    """A question to be answered in the documents' own words, or by the service's language model."""

    question: str | Annotated[tuple[str, ...], Field(max_length=MOST_QUERIES)]
    """A question, or several."""
    k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 5
    """Number of documents that are read."""
    threshold: float | None = None
    """Least probability of there being an answer, or of the best passage for a language model; 0 answers always."""
    html: bool = False
    """Whether passages and answers come as safe HTML too, as the page shows them."""
    llm: bool = False
    """Let the service's language model write the answer."""
    history: Annotated[tuple[tuple[str, str], ...], Field(max_length=MOST_TURNS)] = ()
    """Questions and answers before this one, which the model makes whole."""
    tokens: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Tokens of all excerpts that the model is given."""

    def check(self) -> None:
        """Check the size of the reply, and what goes with a language model only."""
        self.check_hits(self.question)
        if not self.llm and self.model_fields_set & {"history", "tokens"}:
            raise ConfigError('history and tokens are for a language model: give them with "llm": true')
        if self.llm and not isinstance(self.question, str):
            raise ConfigError("a language model answers one question at a time: give a text, not a list")
        if self.llm and not self.sentences:
            raise ConfigError("a context is made of sentences: leave sentences=false out")
        if self.llm and self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is a probability, 0 to 1, with a language model; got {self.threshold!r}")


class ExplainBody(Body):
    """A document whose score is explained, whether or not a search would find it."""

    query: str
    """The question."""
    id: str
    """Id of the document."""
    filter: dict[str, Any] | None = None
    """Filter of the search: a reranker judges the hits that pass it."""
    rerank: bool | None = None
    """Whether the service's reranker counts; by default where it has one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the index's method."""

    def check(self) -> None:
        """Check the names of the options."""
        _method_options(self.options)


class GetBody(Body):
    """Documents by id."""

    ids: Annotated[tuple[str, ...], Field(max_length=MOST_QUERIES)]
    """Their ids."""
    html: bool = False
    """Whether each comes as safe HTML too."""
    mark: tuple[int, int] | None = None
    """Characters that are marked in it."""
    words: Annotated[tuple[tuple[int, int], ...], Field(max_length=MOST_MARKS)] = ()
    """Characters that are bold in it."""


class ListBody(Body):
    """Documents that pass a filter, in the order they were added."""

    filter: dict[str, Any] | None = None
    """Conditions on metadata."""
    offset: Annotated[int, Field(ge=0, le=MOST_DOCUMENTS)] = 0
    """Documents that are passed over."""
    limit: Annotated[int, Field(ge=1, le=DOCUMENTS_PER_PAGE)] = 20
    """Number of documents."""
    html: bool = False
    """Whether the beginning of each comes as safe HTML too."""


class AddBody(Body):
    """Documents to add; one whose id holds another text is refused."""

    documents: tuple[dict[str, Any], ...]
    """The documents: each has a text or fields, and may have an id, metadata and a payload."""

    def read(self) -> list[Document]:
        """Convert the documents; errors name the position."""
        documents = []
        for position, body in enumerate(self.documents):
            try:
                check_keys("a document", body, DOCUMENT)
                documents.append(Document(**body))
            except (ConfigError, InputError) as error:
                raise InputError(f"document {position}: {error}") from error
        return documents


class SyncBody(AddBody):
    """All documents of one source: those that it had before and that are not among these are deleted."""

    source: str
    """Name of the source; documents of others are never touched."""


class UpsertBody(AddBody):
    """Documents to add, or to put in the place of those of the same id."""

    delete: tuple[str, ...] = ()
    """Ids of documents to delete in the same transaction."""


class DeleteBody(Body):
    """Documents to delete, by id or by filter."""

    ids: tuple[str, ...] | None = None
    """Their ids."""
    filter: dict[str, Any] | None = None
    """Conditions on their metadata."""


class FeedbackBody(Body):
    """A judgement of a document as useful or not for a query."""

    useful: bool
    """Whether it was."""
    query: str
    """The question."""
    id: str
    """Id of the document."""
    person: str | None = None
    """Who says so; kept as a keyed hash."""


class NameBody(Body):
    """An index."""


class OverviewBody(Body):
    """A survey of an index."""

    filter: dict[str, Any] | None = None
    """Conditions on metadata."""
    topics: Annotated[int, Field(ge=1, le=MOST_HITS)] = 12
    """Number of topics at most."""


def read_body(kind: type[Body], text: bytes) -> Body:
    """Parse the JSON of a request; unknown fields and NaN raise."""
    try:
        value = parse_untrusted_json(text)
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"the body is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"the body must be a JSON object, got {type(value).__name__}")
    return kind(**{str(name): item for name, item in value.items()})


def document_facts(document: Document) -> dict[str, Any]:
    """Return a document as JSON values, as ``add`` takes it."""
    return {name: value for name in DOCUMENT if (value := getattr(document, name)) or name in DOCUMENT[:3]}


def to_json(value: Any) -> bytes:
    """Encode JSON as UTF-8; lone surrogates, which UTF-8 cannot encode, are escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode()


@dataclass(frozen=True)
class CallSchema:
    """A call of the service."""

    path: str
    body: type[Body]
    call: Callable[..., Any]
    """Function of the body, the index and (of a reading call) the reader."""
    summary: str
    example: Mapping[str, Any]
    """Example of the request's body."""
    write: bool = False
