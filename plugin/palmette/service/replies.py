"""Replies of the service and its OpenAPI description: models that describe replies, which are sent without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model

from palmette import __version__
from palmette.index import Changes
from palmette.index.overview import TypicalPassage
from palmette.index.sync import SyncReport
from palmette.index.written import WrittenSentence
from palmette.machine.llm import ChatUsage
from palmette.service.schema import CallSchema
from palmette.types import Highlights, Part, Passage
from palmette.types.citations import PlaceKind


class Reply(BaseModel):
    """Reply to a request, or a part of one; a field with a default is left out where there is nothing to say."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class NotedReply(Reply):
    """A reply that a reranker may have part in."""

    note: str | None = None
    """Why it is of the first stage's hits, where the reranker failed or was late."""


class ExplanationReply(NotedReply):
    """Why a document has its score."""

    score: float
    """Of a hit a probability, whose log-odds the parts add up to; of its method the sum of the parts."""
    text: str
    parts: list[Part]
    detail: dict[str, Any]
    method: ExplanationReply | None = None
    """The score of the method alone."""


class PlaceReply(Reply):
    """Parts of a citation."""

    file: str
    headings: list[str]
    kind: PlaceKind
    """What ``first`` and ``last`` number, from 1."""
    name: str
    """Name of the sheet that rows are of."""
    first: int
    last: int
    start: int
    """First character in the whole document."""
    end: int
    """Character after the last."""


class HitReply(Reply):
    """A passage found."""

    id: str
    """Id of its document."""
    score: float
    """Probability that it is relevant."""
    text: str
    metadata: dict[str, Any]
    evidence: dict[str, float]
    """What the score is made of."""
    highlights: Highlights
    citation: str
    """Place for readers: ``guide.md › Pruning, lines 40–52``."""
    place: PlaceReply
    passage: Passage | None = None
    """Place in the document, if that has several passages or headings."""
    others: list[HitReply] = []
    """Further passages of the document, with ``group_by``."""
    copies: list[str] = []
    """Citations of passages with the same text, with ``distinct``."""
    explanation: ExplanationReply | None = None
    """Why it matched, with ``explain``."""
    html: str = ""
    """The part around the best sentence, with ``html``."""


class ResultReply(NotedReply):
    """Hits of a question."""

    query: str
    hits: list[HitReply]


class SupportReply(Reply):
    """A passage that gives an answer."""

    id: str
    citation: str
    place: PlaceReply
    passage: int
    """Its position among the hits."""
    text: str
    """The answer in its words."""
    start: int
    """First character of the answer in the passage."""
    end: int
    """Character after its last."""
    share: float
    """Share of the answer's confidence."""
    sentence: str
    html: str = ""
    """The sentence, with ``html``."""


class OneAnswerReply(NotedReply):
    """An answer in the documents' own words; empty where they have none."""

    question: str
    answer: str
    confidence: float
    supports: list[SupportReply]
    alternatives: dict[str, float]
    """Next best answers, each with its confidence."""
    no_answer: float
    """Probability that the passages have no answer."""


class ExcerptReply(Reply):
    """Consecutive sentences of a document."""

    id: str
    text: str
    citation: str
    place: PlaceReply
    score: float
    start: int
    end: int
    headings: list[str]
    first_line: int
    last_line: int
    metadata: dict[str, Any]


class NumberedExcerpt(ExcerptReply):
    """An excerpt that a written answer may cite."""

    number: int
    """Number by which the answer cites it, from 1."""


class WrittenAnswerReply(NotedReply):
    """An answer that a language model wrote; empty where nothing fits the question, which costs no call.

    As server-sent events it comes in parts: ``asked`` with ``{"asked": text}``, ``excerpts`` with ``{"excerpts":
    [NumberedExcerpt]}``, ``text`` with ``{"text": piece}`` as often as the model writes, then ``answer`` with
    ``{"answers": [WrittenAnswerReply]}``; or, at any point, ``problem`` with a ProblemReply as the last.
    """

    question: str
    asked: str
    """The question, made whole from the conversation."""
    answer: str
    supported: bool
    """Whether every sentence is."""
    sentences: list[WrittenSentence]
    excerpts: list[NumberedExcerpt]
    reason: str
    """Why there is no answer."""
    model: str
    usage: ChatUsage


class ContextReply(NotedReply):
    """Excerpts for a question, and all of them as one text."""

    question: str
    text: str
    tokens: int
    excerpts: list[ExcerptReply]


class DocumentReply(Reply):
    """A document as ``add`` takes it; the places of its passages where it has several."""

    id: str
    text: str
    metadata: dict[str, Any]
    fields: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    passages: list[Passage] = []
    html: str = ""
    """The document, or in a list its beginning, with ``html``."""


class FieldsReply(Reply):
    """Frequent values of metadata, with their numbers of documents."""

    fields: dict[str, list[tuple[Any, int]]]


class FacetValue(Reply):
    """Documents of one folder, kind, time or value."""

    value: str
    documents: int
    filter: dict[str, Any]
    """Filter that finds them."""


class Facet(Reply):
    """A property by which documents can be narrowed down."""

    name: str
    values: list[FacetValue]


class FacetsReply(FieldsReply):
    """Frequent values of metadata, and what the page filters by."""

    facets: list[Facet]


class TopicReply(Reply):
    """A cluster of passages with similar vectors."""

    name: str
    words: list[str]
    """The most distinctive first."""
    passages: int
    documents: int
    typical: list[TypicalPassage]


class RerankerReply(Reply):
    """A reranker that an index is served with."""

    model: str
    weight: float
    """Log-odds of a score one standard deviation above the mean."""


class IndexFacts(Reply):
    """Contents and size of an index that is open."""

    documents: int
    passages: int
    bytes: int
    segments: int
    reclaimable: int
    """Passages deleted or replaced whose space compacting would give back."""
    log: int
    """Bytes that the log of recent writes takes."""
    method: str
    model: str
    """Fingerprint of the model."""
    tenant: str | None
    encoder: str
    reranker: RerankerReply | None
    """Second stage of its searches."""


class OverviewReply(IndexFacts, FieldsReply):
    """Contents of an index."""

    topics: list[TopicReply]


class Indexing(Reply):
    """Documents found so far, and all that there are, while a followed folder is indexed for the first time."""

    done: int
    total: int | None
    """``null`` until they are counted."""


class Follows(Reply):
    """Progress of indexing a followed folder, for callers who may read all documents."""

    folder: str
    done: int = 0
    total: int | None = None
    error: str = ""


class IndexState(Reply):
    """An index of the service, and whether it can be searched."""

    name: str
    write: bool
    """Whether the caller may change documents."""
    ready: bool
    follows: Follows | None = None
    error: str = ""
    """Why it cannot be read."""
    warning: str = ""
    """What keeps it from being up to date."""


class OpenIndexState(IndexState, IndexFacts):
    """An index that is open."""

    location: str


class IndexesReply(Reply):
    """Indexes that the caller may use."""

    indexes: list[OpenIndexState | IndexState]
    llm: str | None
    """Name of the language model that writes answers."""


class HealthReply(Reply):
    """The process lives."""

    status: Literal["ok"]
    version: str


class ReadyReply(Reply):
    """State of all indexes: ready if each can be searched."""

    ready: bool
    reasons: list[str] = []


class ProblemReply(Reply):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    error: str
    """Name of the exception."""
    detail: str
    """What is wrong, and what helps."""


def _of_one_field(name: str, about: str, **field: Any) -> type[Any]:
    """Return the model of a reply that has one field."""
    [(key, kind)] = field.items()
    required: Any = {key: (kind, ...)}
    return create_model(name, __base__=Reply, __doc__=about, **required)


REPLIES: dict[str, type[Any]] = {
    "/v1/search": _of_one_field("SearchReply", "Hits of every question, in their order.", results=list[ResultReply]),
    "/v1/answer": _of_one_field(
        "AnswerReply", "Answers of every question, in their order.", answers=list[OneAnswerReply | WrittenAnswerReply]
    ),
    "/v1/context": ContextReply,
    "/v1/explain": ExplanationReply,
    "/v1/feedback": _of_one_field("FeedbackReply", "A judgement that was kept.", kept=Literal[True]),
    "/v1/get": _of_one_field(
        "GetReply",
        "Documents in the order of their ids; null where there is none.",
        documents=list[DocumentReply | None],
    ),
    "/v1/list": _of_one_field("ListReply", "Documents in the order they were added.", documents=list[DocumentReply]),
    "/v1/fields": FacetsReply,
    "/v1/overview": OverviewReply,
    "/v1/add": _of_one_field("AddReply", "Ids of the documents given.", ids=list[str]),
    "/v1/upsert": Changes,
    "/v1/sync": SyncReport,
    "/v1/delete": _of_one_field("DeleteReply", "Ids of the documents that existed.", deleted=list[str]),
}
"""Model of each call's reply."""


def openapi(endpoints: Sequence[CallSchema]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the service."""
    gets = {
        "/v1/indexes": (IndexesReply, "Indexes that the caller may use"),
        "/health": (HealthReply, "The process lives"),
        "/ready": (ReadyReply, "Every index can be searched"),
    }
    # 1. schemas of all bodies and replies, each under the name of its class
    replies = [*REPLIES.values(), *(reply for reply, _ in gets.values()), ProblemReply, Indexing]
    kinds: list[tuple[Any, Any]] = [(endpoint.body, "validation") for endpoint in endpoints]
    kinds += [(reply, "serialization") for reply in replies]
    adapters = [(kind, mode, TypeAdapter(kind)) for kind, mode in kinds]
    references, schemas = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")

    def content(kind: type[Any], mode: Any = "serialization", media: str = "json", **example: Any) -> dict[str, Any]:
        return {"content": {f"application/{media}": {"schema": references[kind, mode], **example}}}

    # 2. what every reading call adds while a folder is indexed
    for read in (REPLIES[endpoint.path] for endpoint in endpoints if not endpoint.write):
        name = references[read, "serialization"]["$ref"].rpartition("/")[2]
        schemas["$defs"][name]["properties"]["indexing"] = references[Indexing, "serialization"]

    # 3. the paths
    paths: dict[str, Any] = {}
    problem = {"description": "A problem"} | content(ProblemReply, media="problem+json")
    for endpoint in endpoints:
        body = content(endpoint.body, "validation", example=endpoint.example)
        reply = content(REPLIES[endpoint.path])
        paths[endpoint.path] = {
            "post": {
                "summary": endpoint.summary.partition(". ")[0],
                "description": f"{endpoint.summary}.",
                "operationId": endpoint.path.rpartition("/")[2],
                "requestBody": {"required": True} | body,
                "responses": {"200": {"description": "Done"} | reply, "default": problem},
            }
        }
    for path, (kind, summary) in gets.items():
        responses = {"200": {"description": "Done"} | content(kind), "default": problem}
        paths[path] = {"get": {"summary": summary, "operationId": path.rpartition("/")[2], "responses": responses}}
    paths["/ready"]["get"]["responses"]["503"] = {"description": "Some are not yet"} | content(ReadyReply)
    return {
        "openapi": "3.1.0",
        "info": {"title": "palmette", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }
