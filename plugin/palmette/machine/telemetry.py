"""Telemetry: a log line per write, slow searches, and OpenTelemetry spans.

Spans exist where the application has imported what records them, OpenTelemetry's SDK; elsewhere they cost a look into
``sys.modules``. Its bare interface, which libraries such as ``mcp`` import, records nothing. They hold names and
numbers, and no text of a question or a document.

    palmette.search     the method, the number of hits
      palmette.encode     the encoder's pass over questions, or documents of a write
      palmette.candidates the method's best documents
      palmette.words      those that share words with a question
      palmette.rank       the sum of all evidence
      palmette.read       documents read from the store
    palmette.answer     a reader over passages
    palmette.write      one transaction: numbers of documents added, updated, deleted
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

log = logging.getLogger("palmette")
log.addHandler(logging.NullHandler())  # the application says where lines go

SLOW = 1.0
"""Seconds from which on a search is logged as slow; ``PALMETTE_SLOW_SECONDS`` sets another bound."""
LOGGED_CHARACTERS = 80
"""Characters of a question in the log."""
RECORDERS = frozenset({"opentelemetry.sdk", "ddtrace.opentelemetry"})
"""Modules that record spans."""
_NOTHING: AbstractContextManager[Any] = nullcontext()


def span(name: str, attributes: Mapping[str, Any] = MappingProxyType({})) -> AbstractContextManager[Any]:
    """Open a span around a step; ``None`` in a process that records none."""
    if sys.modules.keys().isdisjoint(RECORDERS):
        return _NOTHING
    from opentelemetry import trace

    return trace.get_tracer("palmette").start_as_current_span(f"palmette.{name}", attributes=attributes)


def public_name(name: str) -> str:
    """Name of an encoder or a model for traces and events: of a local path the last part only."""
    if name.startswith("openai:"):
        return name.partition("@http")[0]
    parts = re.split(r"[\\/]", name.rstrip("\\/"))
    local = len(parts) > 2 or parts[0] in ("", ".", "..", "~") or "\\" in name or Path(name).is_dir()
    return parts[-1] if local else name


@contextmanager
def searching(method: str, place: str, queries: Any) -> Iterator[Callable[[Sequence[Sequence[Any]]], None]]:
    """Span and slow line of a search; the block hands over its hits."""
    begun, results = time.perf_counter(), list[Sequence[Any]]()
    with span("search", {"palmette.method": method}) as open_span:
        yield results.extend
        if open_span is not None:
            open_span.set_attribute("palmette.hits", sum(map(len, results)))
    seconds = time.perf_counter() - begun
    if seconds >= float(os.environ.get("PALMETTE_SLOW_SECONDS") or SLOW):
        texts = [query for query in queries if isinstance(query, str)] if isinstance(queries, list | tuple) else []
        first = f": {' '.join(texts[0].split())[:LOGGED_CHARACTERS]!r}" if texts else ""
        log.warning("%s: a search of %d questions took %.2f s%s", place, len(queries), seconds, first)


@contextmanager
def writing(place: Callable[[], str]) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Span and log line of a write; the block hands over how many documents became what."""
    begun, outcome = time.perf_counter(), dict[str, int]()
    with span("write") as open_span:
        yield outcome.update
        for name, count in outcome.items():
            if open_span is not None:
                open_span.set_attribute(f"palmette.{name}", count)
    if log.isEnabledFor(logging.INFO):
        summary = ", ".join(f"{count} {name}" for name, count in outcome.items())
        log.info("%s: %s in %.2f s", place(), summary, time.perf_counter() - begun)


def encoding(name: str, count: int) -> AbstractContextManager[Any]:
    """Open the span of an encoder's pass over texts, if there are any."""
    if not count or sys.modules.keys().isdisjoint(RECORDERS):
        return _NOTHING
    return span("encode", {"palmette.encoder": public_name(name), "palmette.texts": count})
