"""Whatever is handed to the engine: it works, or raises a PalmetteError."""

from __future__ import annotations

from collections.abc import Callable
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
from palmette.data import from_documents, iter_documents
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.evaluation import evaluate_index
from palmette.hub import open_checkpoint, pull, save_checkpoint
from palmette.reader import Reader, load_reading
from palmette.store.filters import And, Condition, Ids, Not, Or, matches, parse_filter
from support import readers, tiny
from support.odd import (
    CONDITIONS,
    COUNTS,
    DOCUMENTS,
    FILTERS,
    GIVEN_IDS,
    GOOD,
    IDS,
    NAMES,
    OPTIONS,
    QUERIES,
    TEXTS,
    VALUES,
    attempt,
    check,
    many,
    options,
)

NODES = st.sampled_from([Not, And, Or, Ids])
WRITE = {"batch_size": st.sampled_from([1, 2, 300]) | VALUES, "embeddings": VALUES}
METHODS = st.sampled_from(["tree", "taxonomy", "paths", "layers", "space"])
NAMED = st.fixed_dictionaries(
    {}, optional={name: VALUES for name in ("id", "text", "metadata", "fields", "payload")}
)


def put(index: Index, how: str, documents: Any, gone: Any, given: dict[str, Any]) -> None:
    if how == "add":
        index.add(documents, progress=False, **given)
    else:
        index.upsert(documents, delete=gone, progress=False, **given)


def search(index: Index, query: Any, given: dict[str, Any]) -> None:
    for hits in index.search(query, **given):
        for hit in hits if isinstance(hits, list) else [hits]:
            assert hit.explain()._repr_html_()
            assert hit.highlights.to_dict()


def node(index: Index, kind: Callable[..., Any], given: list[Any]) -> None:
    made = kind(*given)
    assert index.search("owl", filter=made) is not None
    assert matches(made, {"lang": "en"}) in (True, False)


def within(use: Callable[..., None]) -> Callable[..., None]:
    """Use an index behind a filter."""
    return lambda index, filter, *given: use(index.filtered(filter), *given)


SEARCHES = (QUERIES, options(OPTIONS))
PUTS = (st.sampled_from(["add", "upsert"]), DOCUMENTS, GIVEN_IDS, options(WRITE))
INDEX_USES: list[tuple[Any, ...]] = [
    (put, *PUTS),
    (within(put), FILTERS, *PUTS),
    (put, st.just("upsert"), st.lists(GOOD, max_size=5), st.just(()), st.just({})),
    (search, *SEARCHES),
    (within(search), FILTERS, *SEARCHES),
    (search, st.just("red owl"), options(OPTIONS, "filter")),
    (lambda index, *given: index.rank(*given), QUERIES, COUNTS),
    (lambda index, *given: index.explain(*given), QUERIES, st.sampled_from(IDS) | VALUES),
    (lambda index, ids: index.get(ids), GIVEN_IDS),
    (lambda index, id: id in index, st.sampled_from(IDS) | VALUES),
    (lambda index, ids: index.delete(ids), GIVEN_IDS),
    (lambda index, filter: index.delete(filter=filter), FILTERS),
    (lambda index, filter: list(index.documents(filter)), FILTERS),
    (lambda index, *given: Index.build(given[0], index.model, language=given[1]), DOCUMENTS, VALUES),
    (lambda index: (index.compact(), index.stats(), index.survey(), len(index), repr(index)),),
    (lambda index, path, model: index.copy_to(path, model=model), VALUES, VALUES),
    (node, NODES, st.tuples(VALUES)),
    (node, st.just(Condition), st.tuples(VALUES, st.sampled_from(["in", "gt", "exists"]) | VALUES, VALUES)),
    (node, NODES, st.tuples(st.lists(CONDITIONS, max_size=2).map(tuple))),
    (lambda index, *given: evaluate_index(index, *given), VALUES, VALUES),
]
LOAD = {name: VALUES for name in ("dev_fraction", "seed", "kinds", "cut", "titles")}
MAKE = {name: VALUES for name in ("language", "sentences", "engine", "lock_timeout")}
OPEN = {name: VALUES for name in ("verify", "engine", "lock_timeout", "device")}
QRELS = (
    st.dictionaries(st.sampled_from(["train", "test", "dev"]), st.dictionaries(st.sampled_from("qr"), VALUES))
    | VALUES
)
SINGLE_USES: list[tuple[Any, ...]] = [
    (lambda path, how: Index.open(path, **how), VALUES, options(OPEN)),
    (lambda path, model, how: Index.create(path, model, **how), VALUES, VALUES, options(MAKE)),
    (lambda path, how: Index.create(path, tiny.space(), **how), VALUES, options(MAKE)),
    (lambda path, how: Index.open_or_create(path, tiny.space(), **how), VALUES, options(MAKE)),
    (lambda path: load_model(path, local_files_only=True), VALUES),
    (lambda path: load_encoder(path, local_files_only=True), VALUES),
    (lambda path: Reader.from_pretrained(path, local_files_only=True), VALUES),
    (lambda path: open_checkpoint(path, local_files_only=True), VALUES),
    (lambda name, path: pull(name, path, local_files_only=True), VALUES, VALUES),
    (lambda name, config: save_checkpoint(name, config, {}, "card"), VALUES, VALUES),
    (
        lambda path, more: tiny.space().save_pretrained(path, **more),
        VALUES,
        options(
            {"license": VALUES, "limits": VALUES, "language": VALUES, "dataset": VALUES, "report": VALUES}
        ),
    ),
    (lambda filter, metadata: matches(filter, metadata), FILTERS, VALUES),
    (lambda filter: parse_filter(filter), FILTERS),
    (lambda given: Document(**given).digest, NAMED),
    (lambda data, how: load_data(data, **how), DOCUMENTS, options(LOAD)),
    (lambda data, how: from_documents(data, **how), DOCUMENTS, options(LOAD, "seed", "kinds", "cut")),
    (lambda data: list(iter_documents(data)), DOCUMENTS),
    (lambda *pairs: load_data(list(pairs)), st.tuples(TEXTS, VALUES), st.tuples(TEXTS, TEXTS, VALUES)),
    (lambda *given: RetrievalData(*given), VALUES, DOCUMENTS, VALUES, QRELS),
    (
        lambda data: load_reading(data),
        DOCUMENTS
        | st.lists(
            st.dictionaries(st.sampled_from(["question", "context", "answers", "split"]), TEXTS | VALUES)
        ),
    ),
    (
        lambda data, how: evaluate(tiny.space(), data, **how),
        DOCUMENTS,
        options({n: VALUES for n in ("split", "baselines", "lexical", "passages", "reader", "level")}),
    ),
    (lambda method, query, how: tiny_index(method).search(query, **how), METHODS, QUERIES, options(OPTIONS)),
    (
        lambda method, given: tiny.METHODS[method]().search_options(given),
        METHODS,
        st.dictionaries(st.sampled_from(["level", "rerank", "fields", "beam", "cut", *NAMES]), VALUES),
    ),
    (
        lambda method, query, documents, how: tiny.METHODS[method]().score(query, documents, **how),
        METHODS,
        QUERIES,
        DOCUMENTS,
        options({"lexical": VALUES, "language": VALUES}),
    ),
    (
        lambda method, name, value: tiny.METHODS[method]().config_class(**{name: value}),
        METHODS,
        st.sampled_from(["depth", "layers", "branches", "dimension", *NAMES]),
        VALUES,
    ),
    (lambda encoder: SpaceModel.untrained(encoder), VALUES),
    (
        lambda how, texts: FakeEncoder(16).encode(texts, **how),
        options({"batch_size": VALUES, "progress": VALUES}),
        VALUES | QUERIES,
    ),
    (lambda texts: FakeEncoder(16).encode_queries(texts), VALUES | QUERIES),
    (lambda root, size: EncodingCache(root, max_gb=size).entries(), VALUES, VALUES),
    (lambda encoder: EncodingCache("cache").clear(encoder), VALUES),
    (lambda root, texts: CachedEncoder(FakeEncoder(16), root).encode(texts), VALUES, VALUES | QUERIES),
    (
        lambda question, passages, bound: readers.sentence_reader().answer(
            question, passages, threshold=bound
        ),
        QUERIES,
        DOCUMENTS,
        VALUES,
    ),
    (
        lambda question, passages: readers.sentence_reader().answer(question, passages).explain(),
        TEXTS,
        st.lists(TEXTS),
    ),
]


def tiny_index(method: str) -> Index:
    if method not in _INDEXES:
        _INDEXES[method] = Index.build(tiny.documents(), tiny.METHODS[method]())
    return _INDEXES[method]


_INDEXES: dict[str, Index] = {}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without files, so that no name means one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def use_index(made: list[tuple[Any, ...]]) -> None:
    with Index.in_memory(SpaceModel.untrained(FakeEncoder(16))) as index:
        index.add([{"id": "a", "text": "red fox", "metadata": {"lang": "en", "n": 1}}])
        for use, *given in made:
            check(attempt(use, index, *given))
        index.verify()


def use_functions(made: list[tuple[Any, ...]]) -> None:
    for use, *given in made:
        check(attempt(use, *given))


RUNS = [
    pytest.param(use_index, INDEX_USES, id="index"),
    pytest.param(use_functions, SINGLE_USES, id="functions"),
]


@pytest.mark.parametrize(("run", "uses"), RUNS)
@pytest.mark.parametrize("examples", [30, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_nothing_else_is_raised(run: Any, uses: list[tuple[Any, ...]], examples: int) -> None:
    many(run, uses, examples)
