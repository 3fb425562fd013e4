"""Telemetry: a log line per write, slow searches, and OpenTelemetry spans and metrics.

Spans and metrics exist where the application has imported what records them, OpenTelemetry's SDK; elsewhere they cost
a look into ``sys.modules``. Its bare interface, which libraries such as ``mcp`` import, records nothing.
Attributes have OpenInference's names; its variables ``OPENINFERENCE_HIDE_INPUTS`` and
``OPENINFERENCE_HIDE_OUTPUTS`` keep questions and documents out of them.

    palmette.search   RETRIEVER   questions, and the hits of one: ids, scores, texts
      palmette.encode     EMBEDDING   the encoder's pass over questions, or documents of a write
      palmette.candidates CHAIN       the method's best documents
      palmette.words      CHAIN       those that share words with a question
      palmette.rank       CHAIN       the sum of all evidence
      palmette.read       CHAIN       documents read from the store
    palmette.answer   CHAIN       a reader over passages
    palmette.write    CHAIN       one transaction: numbers of documents added, updated, deleted
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

SpanKind = Literal["CHAIN", "EMBEDDING", "RETRIEVER"]

log = logging.getLogger("palmette")
log.addHandler(logging.NullHandler())  # the application says where lines go

SLOW = 1.0
"""Seconds from which on a search is logged as slow; ``PALMETTE_SLOW_SECONDS`` sets another bound."""
LOGGED_CHARACTERS = 80
"""Characters of a question in the log."""
DOCUMENTS = 100
"""Most hits whose texts a span holds."""
RECORDERS = ("opentelemetry.sdk", "ddtrace.opentelemetry")
"""Modules that record spans and metrics."""
NONE: Mapping[str, Any] = MappingProxyType({})
_instruments: dict[str, Any] = {}
_NOTHING: AbstractContextManager[Any] = nullcontext()


def _is_recorded() -> bool:
    return any(name in sys.modules for name in RECORDERS)


def span(name: str, kind: SpanKind = "CHAIN", attributes: Mapping[str, Any] = NONE) -> AbstractContextManager[Any]:
    """Open a span around a step; ``None`` in a process that records none."""
    if not _is_recorded():
        return _NOTHING
    from opentelemetry import trace

    noted = {**attributes, "openinference.span.kind": kind}
    return trace.get_tracer("palmette").start_as_current_span(f"palmette.{name}", attributes=noted)


def measure(name: str, value: float, unit: str, about: str, **attributes: str) -> None:
    """Record a duration in a histogram, or add to a counter of another unit."""
    if not _is_recorded():
        return
    from opentelemetry import metrics

    if name not in _instruments:
        meter = metrics.get_meter("palmette")
        _instruments[name] = (meter.create_histogram if unit == "s" else meter.create_counter)(name, unit, about)
    instrument = _instruments[name]
    (instrument.record if unit == "s" else instrument.add)(value, attributes)


def public_name(name: str) -> str:
    """Name of an encoder or a model for traces and events: of a local path the last part only."""
    if name.startswith("openai:"):
        return name.partition("@http")[0]
    parts = re.split(r"[\\/]", name.rstrip("\\/"))
    local = len(parts) > 2 or parts[0] in ("", ".", "..", "~") or "\\" in name or Path(name).is_dir()
    return parts[-1] if local else name


@contextmanager
def searching(method: str, place: str, queries: Any) -> Iterator[Callable[[Sequence[Sequence[Any]]], None]]:
    """Span, duration and slow line of a search; the block hands over its hits."""
    begun, texts, results = time.perf_counter(), list[str](), list[Sequence[Any]]()
    for query in queries if isinstance(queries, list | tuple) else ():  # not vectors, nor what the search will refuse
        if isinstance(query, str):
            texts.append(query)
    with span("search", "RETRIEVER", {"palmette.method": method}) as open_span:
        if open_span is not None and texts and not _hides("INPUTS"):
            open_span.set_attribute("input.value", texts[0] if len(texts) == 1 else json.dumps(texts))

        yield results.extend
        if results and open_span is not None and open_span.is_recording():
            for name, value in _hit_attributes(results):
                open_span.set_attribute(name, value)
    seconds = time.perf_counter() - begun
    measure("palmette.search.duration", seconds, "s", "Time of a search", method=method)
    if seconds >= float(os.environ.get("PALMETTE_SLOW_SECONDS") or SLOW):
        first = f": {' '.join(texts[0].split())[:LOGGED_CHARACTERS]!r}" if texts else ""
        log.warning("%s: a search of %d questions took %.2f s%s", place, len(queries), seconds, first)


def _hides(what: str) -> bool:
    return os.environ.get(f"OPENINFERENCE_HIDE_{what}", "").lower() in ("1", "true", "yes")


def _hit_attributes(results: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Attributes of the hits: their number, and of a single question's what they are."""
    yield "palmette.hits", sum(map(len, results))
    if len(results) > 1 or _hides("OUTPUTS"):
        return
    for number, hit in enumerate(results[0][:DOCUMENTS]):
        start = f"retrieval.documents.{number}.document"
        yield f"{start}.id", hit.id
        yield f"{start}.score", hit.score
        yield f"{start}.content", hit.document.content
        yield f"{start}.metadata", json.dumps(dict(hit.document.metadata))


@contextmanager
def writing(place: Callable[[], str]) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Span, counter and log line of a write; the block hands over how many documents became what."""
    begun, outcome = time.perf_counter(), dict[str, int]()
    with span("write") as open_span:
        yield outcome.update
        for name, count in outcome.items():
            if open_span is not None:
                open_span.set_attribute(f"palmette.{name}", count)
    for name, count in outcome.items():
        if count:
            measure("palmette.documents", count, "{document}", "Documents by what a write did to them", change=name)
    if log.isEnabledFor(logging.INFO):
        summary = ", ".join(f"{count} {name}" for name, count in outcome.items())
        log.info("%s: %s in %.2f s", place(), summary, time.perf_counter() - begun)


def encoding(name: str, count: int) -> AbstractContextManager[Any]:
    """Open the span of an encoder's pass over texts, if there are any."""
    if not count or not _is_recorded():
        return _NOTHING
    name = public_name(name)
    measure("palmette.texts", count, "{text}", "Texts that went through an encoder", encoder=name)
    return span("encode", "EMBEDDING", {"embedding.model_name": name, "palmette.texts": count})
