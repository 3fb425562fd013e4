"""Spans and log lines: what they hold, and that they cost nothing where nobody reads them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from palmette import Document, Index, Reader
from palmette.errors import DuplicateIdError
from palmette.machine import telemetry
from support.tiny import documents, tree

QUESTION = "where does the red owl live?"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def names(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_search_is_a_tree_of_spans(spans: InMemorySpanExporter) -> None:
    many = [Document(f"{one.id} {n}", f"{one.text} {n}", one.metadata) for one in documents() for n in range(9)]
    index = Index.build(many, tree())
    spans.clear()
    hits = index.search(QUESTION, 3)
    told = names(spans)
    steps = ("encode", "candidates", "words", "rank", "read")
    assert set(told) == {"palmette.search", *(f"palmette.{step}" for step in steps)}
    search = told["palmette.search"]
    assert search.parent is None
    for step in steps:
        assert told[f"palmette.{step}"].parent.span_id == search.context.span_id
    assert dict(search.attributes) == {"palmette.method": "tree", "palmette.hits": 3}
    assert dict(told["palmette.encode"].attributes) == {"palmette.encoder": "fake:48:3", "palmette.texts": 1}
    index.search([QUESTION, "bees"], 3)
    assert spans.get_finished_spans()[-1].attributes["palmette.hits"] == 6
    spans.clear()
    Reader.untrained(index.model.encoder.plain).answer(QUESTION, hits)
    assert set(names(spans)) == {"palmette.answer"}


def test_the_bare_interface_which_libraries_import_records_nothing() -> None:
    script = (
        "import sys; import opentelemetry.trace; from palmette.machine import telemetry\n"
        "with telemetry.span('a') as span, telemetry.encoding('e', 1) as other: assert span is other is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_write_is_a_span_and_a_line(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "palmette")
    index = Index.build(documents(), tree(), tmp_path / "index")
    index.upsert([Document("red-owl", "The red owl has left."), Document("new", "new")], delete=["red-cat"])
    with pytest.raises(DuplicateIdError):
        index.add([Document("new", "other")])
    index.delete(["new", "nobody"])
    index.search(QUESTION)
    lines = [line.partition(" in ") for line in caplog.messages]
    place = tmp_path / "index"
    assert [line[0] for line in lines] == [
        f"{place}: 48 added, 0 updated, 0 unchanged, 0 deleted",
        f"{place}: 1 added, 1 updated, 0 unchanged, 1 deleted",
        f"{place}: 1 deleted",
    ]
    ended = [span for span in spans.get_finished_spans() if span.name == "palmette.write"]
    assert [dict(span.attributes).get("palmette.added") for span in ended] == [48, 1, None, None]
    assert [span.status.is_ok for span in ended] == [True, True, False, True], "the refused one is an error"


def test_slow_searches_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    index = Index.build(documents(), tree())
    index.search(QUESTION)
    monkeypatch.setenv("PALMETTE_SLOW_SECONDS", "1000")
    caplog.clear()
    index.search(QUESTION)
    assert caplog.messages == []
    monkeypatch.setenv("PALMETTE_SLOW_SECONDS", "0")
    index.search([QUESTION, "a\nb " * 100])
    [line] = caplog.messages
    assert line.startswith("an index in memory: a search of 2 questions took 0.")
    assert line.endswith(f"s: {QUESTION!r}")


def test_local_paths_stay_out_of_traces(spans: InMemorySpanExporter) -> None:
    with telemetry.encoding("/home/someone/models/minilm", 3):
        pass
    assert names(spans)["palmette.encode"].attributes["palmette.encoder"] == "minilm"


def test_without_the_package_nothing_is_done() -> None:
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "sys.modules['opentelemetry.trace'] = None\n"  # importing it would fail
        "from palmette import Index\nfrom palmette.machine import telemetry\n"
        "from support.tiny import documents, tree\n"
        "index = Index.build(documents(), tree())\n"
        "assert index.search('red owl')[0].id and index.delete(['red-owl']) == ['red-owl']\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "assert telemetry.span('a') is telemetry.span('b')\n"
        "import timeit\n"
        "print(timeit.timeit(lambda: telemetry.span('a'), number=100_000) / 100_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5e-6
    assert done.stderr == ""
