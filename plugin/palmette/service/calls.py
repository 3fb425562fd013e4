"""The calls of a service: functions from a request's body and an open index to JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from palmette.encoder.base import Encoder
from palmette.errors import ConfigError, InputError
from palmette.index import Index
from palmette.index.context import Context
from palmette.ranking.second_stage import noting
from palmette.reader import Reader
from palmette.service import facets, render
from palmette.service.schema import (
    AddBody,
    AnswerBody,
    Body,
    CallSchema,
    ContextBody,
    DeleteBody,
    ExplainBody,
    FeedbackBody,
    GetBody,
    ListBody,
    NameBody,
    OverviewBody,
    SearchBody,
    SyncBody,
    UpsertBody,
    document_facts,
    to_json,
)
from palmette.store.filters import flatten
from palmette.store.protocols import StoredDocument, View
from palmette.types import Hit

C = TypeVar("C", bound=Callable[..., Any])
SCANNED = 5000
"""Number of documents whose metadata values are counted."""
MOST_DOCUMENT_BYTES = 2**26
"""Bytes of all documents of a reply."""
QUESTION = "when is the harvest?"
QUINCE = {"id": "quince", "text": "Quinces are picked in October.", "metadata": {"topic": "fruit"}}
ENDPOINTS: list[CallSchema] = []
"""Every call of the service."""


def _endpoint(
    path: str, body: type[Body], summary: str, example: Mapping[str, Any], *, write: bool = False
) -> Callable[[C], C]:
    """Return a decorator that makes a function a call of the service."""

    def add(call: C) -> C:
        ENDPOINTS.append(CallSchema(path, body, call, summary, example, write))
        return call

    return add


def index_facts(index: Index, reader: Reader) -> dict[str, Any]:
    """Describe an index."""
    reranker = index.reranker and {"model": index.reranker.name, "weight": index.reranker.weight}
    return asdict(index.stats()) | {"encoder": index.model.encoder.name, "reranker": reranker}


def listed(query: str | Sequence[str]) -> list[str]:
    """Return the questions of a request."""
    return [query] if isinstance(query, str) else list(query)


def results_facts(
    queries: Sequence[str],
    results: Sequence[Sequence[Hit]],
    notes: Mapping[str, str],
    explain: bool = False,
    html: bool = False,
) -> list[dict[str, Any]]:
    """Describe the hits of every question, and its note; ``html`` adds what the page shows of each."""
    facts, size = list[dict[str, Any]](), 0
    for query, hits in zip(queries, results, strict=True):
        described = []
        for hit in hits:
            fact = hit.to_dict(explain=explain)
            if html:
                marked = hit.highlights
                marks = render.Marks(marked.sentence, marked.words, marked.around)
                fact["html"] = render.snippet(hit.document, marks, hit.passage.first_line if hit.passage else 1)
            described.append(fact)
            size += len(to_json(fact))
            if size > MOST_DOCUMENT_BYTES:
                raise InputError(f"these hits have more than {MOST_DOCUMENT_BYTES:,} bytes: ask for fewer")
        facts.append({"query": query, "hits": described} | _note_of(query, notes))
    return facts


def _note_of(question: str, notes: Mapping[str, str]) -> dict[str, str]:
    """Say why a reply is from the first stage's hits, where the reranker failed or was late."""
    return {"note": notes[question]} if question in notes else {}


@_endpoint(
    "/v1/search",
    SearchBody,
    "Find documents",
    {"query": QUESTION, "k": 3, "filter": {"topic": "fruit"}, "explain": True},
)
def _search(body: SearchBody, index: Index, reader: Reader) -> dict[str, Any]:
    """Answer ``/v1/search``, and record each search, where that is turned on."""
    queries, options = listed(body.query), body.search()
    names = ("threshold", "explain", "group_by", "distinct")
    with noting() as notes:
        results = index.search(queries, body.k, **{name: getattr(body, name) for name in names}, **options)
    facts = results_facts(queries, results, notes, body.explain, body.html)
    for query, hits in zip(queries, results, strict=True):
        index.record_search(query, [hit.id for hit in hits])
    return {"results": facts}


@_endpoint(
    "/v1/feedback",
    FeedbackBody,
    "Say whether a document was useful",
    {"query": QUESTION, "id": "apples", "useful": True},
)
def _feedback(body: FeedbackBody, index: Index, reader: Reader) -> dict[str, Any]:
    index.feedback(body.query, body.id, useful=body.useful, person=body.person)
    return {"kept": True}


@_endpoint(
    "/v1/context",
    ContextBody,
    "Gather the best sentences for a question, each with its place, for a language model",
    {"question": QUESTION, "tokens": 300},
)
def _context(body: ContextBody, index: Index, reader: Reader) -> dict[str, Any]:
    options = body.search()
    if not options.pop("sentences"):
        raise ConfigError("a context is made of sentences: leave sentences=false out")
    return index.context(body.question, body.tokens, k=body.k, threshold=body.threshold, **options).to_dict()


def find_passages(body: AnswerBody, index: Index, reader: Reader) -> tuple[list[list[Hit]], dict[str, str], Reader]:
    """Search the passages that an answer is read from; also notes by question."""
    questions = listed(body.question)
    with noting() as notes:
        results = index.search(questions, body.k, **body.search())
    for question, hits in zip(questions, results, strict=True):
        index.record_search(question, [hit.id for hit in hits])
    return results, notes, reader


def find_context(asked: str) -> Callable[[AnswerBody, Index, Reader], tuple[Context, tuple[Encoder, str | None]]]:
    """Return the call that gathers what a language model is given, and what its answer is checked with."""

    def find(body: AnswerBody, index: Index, reader: Reader) -> tuple[Context, tuple[Encoder, str | None]]:
        options = body.search()
        del options["sentences"]
        k = body.k if "k" in body.model_fields_set else ContextBody.model_fields["k"].default
        context = index.context(asked, body.tokens, k=k, **options)
        index.record_search(asked, list(dict.fromkeys(excerpt.document.key for excerpt in context.excerpts)))
        return context, (index.model.encoder, index.backend.language)

    return find


def reply_of_answer(
    body: AnswerBody, results: Sequence[Sequence[Hit]], notes: Mapping[str, str], reader: Reader
) -> list[dict[str, Any]]:
    """Answer questions from their passages."""
    questions = listed(body.question)
    answers = reader.answer(questions, results, threshold=body.threshold)
    described = [one.to_dict() | _note_of(question, notes) for question, one in zip(questions, answers, strict=True)]
    if body.html:
        for answer, facts in zip(answers, described, strict=True):
            for support, fact in zip(answer.supports, facts["supports"], strict=True):
                at = support.sentence.find(support.text)  # the answer is marked in its sentence
                marks = render.Marks(None if at < 0 else (at, at + len(support.text)))
                fact["html"] = render.quoted(support.document, support.sentence, marks)
    return described


@_endpoint(
    "/v1/answer",
    AnswerBody,
    "Answer in the documents' own words. With `Accept: text/event-stream` the passages come first, as the event "
    "`hits`, then the event `answer`. With `llm: true` the service's language model writes the answer; as events "
    "`asked`, `excerpts`, pieces of `text`, and `answer`, or `problem`",
    {"question": QUESTION, "k": 5},
)
def _answer(body: AnswerBody, index: Index, reader: Reader) -> dict[str, Any]:
    return {"answers": reply_of_answer(body, *find_passages(body, index, reader))}


@_endpoint("/v1/explain", ExplainBody, "Say why a document has its score", {"query": QUESTION, "id": "apples"})
def _explain(body: ExplainBody, index: Index, reader: Reader) -> dict[str, Any]:
    with noting() as notes:
        explanation = index.explain(body.query, body.id, filter=body.filter, rerank=body.rerank, **body.options)
    return explanation.to_dict() | _note_of(body.query, notes)


@_endpoint("/v1/get", GetBody, "Return documents by id", {"ids": ["quince"]})
def _get(body: GetBody, index: Index, reader: Reader) -> dict[str, Any]:
    with index.backend.read() as view:
        keys = {id: passages[0] for id, passages in view.keys_of(body.ids).items()}
        stored = _read_bounded(view, [keys[id] for id in body.ids if id in keys])
    documents: list[dict[str, Any] | None] = []
    for id in body.ids:
        if id not in keys:
            documents.append(None)
            continue
        places = [place.to_dict() for place in stored[keys[id]].passages]
        passages = {"passages": places} if len(places) > 1 else {}  # of a short document it is the document itself
        document = stored[keys[id]].document
        facts = document_facts(document) | passages
        if body.html:
            facts["html"] = render.whole(document, render.Marks(body.mark, body.words))
        documents.append(facts)
    return {"documents": documents}


def _read_bounded(view: View, keys: Sequence[int]) -> dict[int, StoredDocument]:
    """Read documents by the keys of their first passages, one at a time; raises if a reply of all is too large."""
    stored, sizes = dict[int, StoredDocument](), dict[int, int]()
    for key, document, _ in view.scan(list(dict.fromkeys(keys))):
        stored[key], sizes[key] = document, len(to_json(document_facts(document.document)))
        if sum(sizes.values()) > MOST_DOCUMENT_BYTES:
            break
    if len(sizes) < len(set(keys)) or sum(sizes[key] for key in keys) > MOST_DOCUMENT_BYTES:
        raise InputError(f"these {len(keys)} documents have more than {MOST_DOCUMENT_BYTES:,} bytes: ask for fewer")
    return stored


@_endpoint("/v1/list", ListBody, "List documents", {"limit": 20})
def _list(body: ListBody, index: Index, reader: Reader) -> dict[str, Any]:
    with index.backend.read(body.filter) as view:
        keys = np.unique(view.document_keys(view.keys()))[body.offset :][: body.limit].tolist()
        stored = _read_bounded(view, keys)
    documents = [document_facts(stored[key].document) for key in keys]
    if body.html:
        for key, facts in zip(keys, documents, strict=True):
            facts["html"] = render.snippet(stored[key].document, render.Marks())
    return {"documents": documents}


@_endpoint("/v1/fields", NameBody, "Frequent metadata", {})
def _fields(body: Body, index: Index, reader: Reader) -> dict[str, Any]:
    """Count the metadata values of the first documents, without values that are unique to a document; also facets."""
    counts, folders = dict[str, Counter[Any]](), facets.Facets()
    for document in islice(index.documents(), SCANNED):
        folders.count(document)
        for name, values in flatten(document.metadata).items():
            counts.setdefault(name, Counter()).update(value for value in values if len(str(value)) <= 80)
    useful = {name: values for name, values in counts.items() if values and values.most_common(1)[0][1] > 1}
    fields = {name: [list(pair) for pair in values.most_common(20)] for name, values in useful.items()}
    return {"fields": fields, "facets": [*folders.found(), *facets.of_fields(fields)]}


@_endpoint("/v1/overview", OverviewBody, "What an index holds", {"topics": 12})
def _overview(body: OverviewBody, index: Index, reader: Reader) -> dict[str, Any]:
    """Describe an index: facts, frequent metadata, and topics."""
    facts = index_facts(index, reader)
    del facts["location"]  # a path of this machine
    return {
        **facts,
        "fields": _fields(body, index, reader)["fields"],
        **index.overview(filter=body.filter, topics=body.topics).to_dict(),
    }


@_endpoint("/v1/upsert", UpsertBody, "Add or replace", {"documents": [QUINCE]}, write=True)
def _upsert(body: UpsertBody, index: Index) -> dict[str, Any]:
    return asdict(index.upsert(body.read(), delete=body.delete, progress=False))


@_endpoint("/v1/sync", SyncBody, "Bring a source up to date", {"source": "orchard", "documents": [QUINCE]}, write=True)
def _sync(body: SyncBody, index: Index) -> dict[str, Any]:
    return index.sync(body.read(), body.source, progress=False).to_dict()


@_endpoint("/v1/add", AddBody, "Add documents", {"documents": [QUINCE]}, write=True)
def _add(body: AddBody, index: Index) -> dict[str, Any]:
    return {"ids": index.add(body.read(), progress=False)}


@_endpoint("/v1/delete", DeleteBody, "Delete", {"ids": ["quince"]}, write=True)
def _delete(body: DeleteBody, index: Index) -> dict[str, Any]:
    return {"deleted": index.delete(body.ids, filter=body.filter)}
