"""Whatever is handed to the engine: it works, or raises a PalmetteError."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from palmette import (
    Document,
    FakeEncoder,
    Index,
    RetrievalData,
    SpaceModel,
    evaluate,
    load_data,
    load_encoder,
    load_model,
)
from palmette.data import iter_documents
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.errors import PalmetteError
from palmette.evaluation import evaluate_index
from palmette.hub import open_checkpoint, pull, save_checkpoint
from palmette.reader import Reader, load_reading
from palmette.store.filters import matches, parse_filter
from support import odd, readers, tiny
from support.odd import ARGUMENTS, FILTERS, OPTIONS, QUERIES, TEXTS, VALUES, attempt, calls, many, options, some

METHODS = st.sampled_from(["tree", "taxonomy", "paths", "layers", "space"])
NAMED = some("id text metadata fields payload")


def search(index: Index, query: Any, given: dict[str, Any]) -> None:
    for hits in index.search(query, **given):
        for hit in hits if isinstance(hits, list) else [hits]:
            assert hit.explain()._repr_html_()
            assert hit.highlights.to_dict()


def within(use: Callable[..., None]) -> Callable[..., None]:
    """Use an index behind a filter."""
    return lambda index, filter, *given: use(index.filtered(filter), *given)


SEARCHES = (QUERIES, options(OPTIONS))
WRITES = calls(Index, "add upsert", ARGUMENTS)
INDEX_USES: list[tuple[Any, ...]] = [
    *WRITES,
    *[(within(use), FILTERS, *how) for use, *how in WRITES],
    (lambda index, documents: index.upsert(documents, progress=False), st.lists(odd.GOOD, max_size=5)),
    (search, *SEARCHES),
    (within(search), FILTERS, *SEARCHES),
    (search, st.just("red owl"), options(OPTIONS, "filter")),
    *calls(Index, "rank explain get vectors delete documents copy_to", ARGUMENTS, more={"level": VALUES}),
    (lambda index, id: id in index, ARGUMENTS["id"]),
    (lambda index, *given: Index.build(given[0], index.model, language=given[1]), odd.DOCUMENTS, VALUES),
    (lambda index: (index.compact(), index.stats(), len(index), repr(index)),),
    (lambda index, *given: evaluate_index(index, *given), VALUES, VALUES),
]
SPLITS = st.dictionaries(st.sampled_from("qr"), VALUES)
QRELS = st.dictionaries(st.sampled_from(["train", "test", "dev"]), SPLITS) | VALUES
READING = st.dictionaries(st.sampled_from(["question", "context", "answers", "split"]), TEXTS | VALUES)
MAKE = some("language sentences engine lock_timeout")
SEARCH = st.dictionaries(st.sampled_from(["level", "rerank", "fields", "beam", "cut", *odd.NAMES]), VALUES)
CONFIG = st.sampled_from(["depth", "layers", "branches", "dimension", *odd.NAMES])


def keyed(use: Callable[..., Any]) -> Callable[..., None]:
    """Call with the last value as keywords."""
    return lambda *given: use(*given[:-1], **given[-1])


def of(name: str) -> Callable[..., Any]:
    """A method of a method's model."""
    return lambda method, *given, **how: getattr(tiny.METHODS[method](), name)(*given, **how)


def answer(question: Any, passages: Any, threshold: Any) -> None:
    readers.sentence_reader().answer(question, passages, threshold=threshold)


SINGLE_USES: list[tuple[Any, ...]] = [
    (keyed(Index.open), VALUES, some("verify engine lock_timeout device")),
    (keyed(Index.create), VALUES, VALUES, MAKE),
    (lambda path, how: Index.create(path, tiny.space(), **how), VALUES, MAKE),
    (lambda path, how: Index.build([], tiny.space(), path, **how), VALUES, some("language sentences engine")),
    (lambda path: load_model(path, local_files_only=True), VALUES),
    (lambda path: load_encoder(path, local_files_only=True), VALUES),
    (lambda path: Reader.from_pretrained(path, local_files_only=True), VALUES),
    (lambda path: open_checkpoint(path, local_files_only=True), VALUES),
    (lambda name, path: pull(name, path, local_files_only=True), VALUES, VALUES),
    (lambda name, config: save_checkpoint(name, config, {}, "card"), VALUES, VALUES),
    (keyed(of("save_pretrained")), st.just("space"), VALUES, some("license limits language dataset report")),
    (matches, FILTERS, VALUES),
    (parse_filter, FILTERS),
    (lambda given: Document(**given).digest, NAMED),
    (keyed(load_data), odd.DOCUMENTS, some("dev_fraction seed")),
    (lambda data: list(iter_documents(data)), odd.DOCUMENTS),
    (lambda *pairs: load_data(list(pairs)), st.tuples(TEXTS, VALUES), st.tuples(TEXTS, TEXTS, VALUES)),
    (RetrievalData, VALUES, odd.DOCUMENTS, VALUES, QRELS),
    (load_reading, odd.DOCUMENTS | st.lists(READING)),
    (
        lambda data, how: evaluate(tiny.space(), data, **how),
        odd.DOCUMENTS,
        some("split baselines lexical passages reader level"),
    ),
    (lambda method, query, how: tiny_index(method).search(query, **how), METHODS, QUERIES, options(OPTIONS)),
    (of("search_options"), METHODS, SEARCH),
    (keyed(of("score")), METHODS, QUERIES, odd.DOCUMENTS, some("lexical language")),
    (lambda method, name, value: of("config_class")(method, **{name: value}), METHODS, CONFIG, VALUES),
    (SpaceModel.untrained, VALUES),
    (keyed(FakeEncoder(16).encode), VALUES | QUERIES, some("batch_size progress")),
    (FakeEncoder(16).encode_queries, VALUES | QUERIES),
    (lambda root, size: EncodingCache(root, max_gb=size).entries(), VALUES, VALUES),
    (lambda encoder: EncodingCache("cache").clear(encoder), VALUES),
    (lambda root, texts: CachedEncoder(FakeEncoder(16), root).encode(texts), VALUES, VALUES | QUERIES),
    (answer, QUERIES, odd.DOCUMENTS, VALUES),
    (lambda *given: readers.sentence_reader().answer(*given).explain(), TEXTS, st.lists(TEXTS)),
]


@cache
def tiny_index(method: str) -> Index:
    return Index.build(tiny.documents(), tiny.METHODS[method]())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without files, so that no name means one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def use_index(made: list[tuple[Any, ...]], also: type[Exception] = PalmetteError) -> None:
    with Index.in_memory(SpaceModel.untrained(FakeEncoder(16))) as index:
        index.add([{"id": "a", "text": "red fox", "metadata": {"lang": "en", "n": 1}}])
        for use, *given in made:
            attempt(use, index, *given, also=also)
        index.verify()


def use_functions(made: list[tuple[Any, ...]]) -> None:
    for call in made:
        attempt(*call)


RUNS = [pytest.param(use_index, INDEX_USES, id="index"), pytest.param(use_functions, SINGLE_USES, id="functions")]


@pytest.mark.parametrize(("run", "uses"), RUNS)
@pytest.mark.parametrize("examples", [30, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_nothing_else_is_raised(run: Any, uses: list[tuple[Any, ...]], examples: int) -> None:
    many(run, uses, examples)
