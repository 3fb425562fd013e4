"""Whatever is handed to an index: it works, or raises a PalmetteError."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette import Document, FakeEncoder, Index, SpaceModel, load_data, load_model
from palmette.data import iter_documents
from palmette.errors import PalmetteError
from palmette.store.filters import And, Condition, Ids, Not, Or, matches, parse_filter

NAMES = [
    "a",
    "b",
    "lang",
    "__proto__",
    "$id",
    "$where",
    "",
    "a.b",
    "\x00",
    "\ud800",
    "x" * 5000,
    "naïve",
    "0",
]
IDS = ["a", "b", "c", "__proto__", "\x00", "\udc00", "d" * 5000]
SCALARS = st.one_of(
    st.sampled_from([None, True, 0, 1, -1, 2**63, 0.5, float("nan"), float("inf"), b"a", object()]),
    st.sampled_from([date(2020, 1, 1), Path("x"), 1j, frozenset("ab"), {1}, range(3), ..., int, len, print]),
    st.sampled_from([np.float32(1), np.int64(2), np.array([1.0]), np.zeros((0, 16)), np.str_("a"), np.nan]),
    st.text(max_size=8),
    st.integers(-3, 3),
    st.sampled_from(NAMES),
)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": [value]}
    return value


UNSHOWABLE = {"<huge>": 10**5000, "<deep>": nested(20), "<deeper>": nested(3000)}
"""Values that Hypothesis itself could not show, by what stands for them."""


def real(value: Any) -> Any:
    """Put the values that cannot be shown in their places."""
    if isinstance(value, dict):
        return {key: real(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(real, value))
    return UNSHOWABLE.get(value, value) if isinstance(value, str) else value


VALUES = st.recursive(
    SCALARS | st.sampled_from(list(UNSHOWABLE)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)
OPERATORS = "$eq $ne $gt $gte $lt $lte $in $nin $any $all $exists $contains $icontains $not $and $or $id $where".split()
OPERANDS = st.sampled_from([1, "en", ["en", None], True, None, [], {}]) | VALUES
CONDITIONS = st.dictionaries(st.sampled_from(["lang", "n", *NAMES]), OPERANDS, max_size=2)
CONDITIONS |= st.dictionaries(
    st.sampled_from(["lang", "n", *NAMES]),
    st.dictionaries(st.sampled_from(OPERATORS), OPERANDS, max_size=2),
    max_size=2,
)
NODES = st.sampled_from([Not, And, Or, Ids])
FILTERS = st.recursive(
    CONDITIONS | VALUES,
    lambda inner: st.dictionaries(
        st.sampled_from(["$and", "$or", "$not"]), inner | st.lists(inner, max_size=3)
    ),
    max_leaves=3,
)
GOOD = st.fixed_dictionaries(
    {"id": st.sampled_from(IDS[:4]), "text": st.sampled_from(["red fox", "blue owl. It sings", "x"])},
    optional={
        "metadata": st.sampled_from([{"lang": "en"}, {"n": 1, "__proto__": {"a": 1}}, {"lang": ["de", "en"]}])
    },
)
ODD = st.dictionaries(
    st.sampled_from(["id", "_id", "text", "title", "metadata", "fields", *NAMES]), VALUES, max_size=4
)
DOCUMENTS = st.lists(st.one_of(GOOD, GOOD, GOOD, ODD, VALUES), max_size=4) | VALUES
GIVEN_IDS = st.lists(st.sampled_from(IDS), max_size=3) | VALUES
QUERIES = st.sampled_from(
    ["red fox", "owl", ["red", "owl"], [("red", "fox")], "", [], '"red fox" 42', "x" * 9000]
)
QUERIES |= st.just(np.ones((1, 16), np.float32)) | VALUES
OPTIONS = {
    "k": st.sampled_from([1, 3, 10**9]) | VALUES,
    "filter": FILTERS,
    "threshold": st.sampled_from([0, 0.5]) | VALUES,
    "explain": st.booleans() | VALUES,
    "lexical": st.sampled_from([0, 0.4, 1, "auto"]) | VALUES,
    "sentences": st.booleans() | VALUES,
    "level": VALUES,
}
WRITE = {"batch_size": st.sampled_from([1, 2, 300]) | VALUES, "embeddings": VALUES}


def options(known: dict[str, st.SearchStrategy], *names: str) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional={name: known[name] for name in names or known})


def put(index: Index, how: str, documents: Any, gone: Any, given: dict[str, Any]) -> None:
    if how == "add":
        index.add(documents, progress=False, **given)
    else:
        index.upsert(documents, delete=gone, progress=False, **given)


def search(index: Index, query: Any, given: dict[str, Any]) -> None:
    for hits in index.search(query, **given):
        for hit in hits if isinstance(hits, list) else [hits]:
            assert hit.explain().parts is not None


def node(index: Index, kind: Callable[..., Any], given: list[Any]) -> None:
    made = kind(*given)
    assert index.search("owl", filter=made) is not None
    assert matches(made, {"lang": "en"}) in (True, False)


def within(use: Callable[..., None]) -> Callable[..., None]:
    """Use an index behind a filter."""
    return lambda index, filter, *given: use(index.filtered(filter), *given)


SEARCHES = (QUERIES, options(OPTIONS))
PUTS = (st.sampled_from(["add", "upsert"]), DOCUMENTS, GIVEN_IDS, options(WRITE))
USES: list[tuple[Any, ...]] = [
    (put, *PUTS),
    (within(put), FILTERS, *PUTS),
    (put, st.just("upsert"), st.lists(GOOD, max_size=5), st.just(()), st.just({})),
    (search, *SEARCHES),
    (within(search), FILTERS, *SEARCHES),
    (search, st.just("red owl"), options(OPTIONS, "filter")),
    (lambda index, *given: index.rank(*given), QUERIES, OPTIONS["k"]),
    (lambda index, *given: index.explain(*given), QUERIES, st.sampled_from(IDS) | VALUES),
    (lambda index, ids: index.get(ids), GIVEN_IDS),
    (lambda index, id: id in index, st.sampled_from(IDS) | VALUES),
    (lambda index, ids: index.delete(ids), GIVEN_IDS),
    (lambda index, filter: index.delete(filter=filter), FILTERS),
    (lambda index, filter: list(index.documents(filter)), FILTERS),
    (lambda index, *given: Index.build(given[0], index.model, language=given[1]), DOCUMENTS, VALUES),
    (lambda index, query, documents: index.model.score(query, documents), QUERIES, DOCUMENTS),
    (lambda index, path: Index.open(path), VALUES),
    (lambda index, path: load_model(path, local_files_only=True), VALUES),
    (lambda index: (index.compact(), index.stats()),),
    (node, NODES, st.tuples(VALUES)),
    (node, st.just(Condition), st.tuples(VALUES, st.sampled_from(["in", "gt", "exists"]) | VALUES, VALUES)),
    (node, NODES, st.tuples(st.lists(CONDITIONS, max_size=2).map(tuple))),
    (lambda _, *given: matches(*given), FILTERS, VALUES),
    (lambda _, filter: parse_filter(filter), FILTERS),
    (lambda _, *given: Document(*given).digest, VALUES, VALUES, VALUES),
    (lambda _, data: load_data(data), DOCUMENTS),
    (lambda _, data: list(iter_documents(data)), DOCUMENTS),
]
CALLS = st.one_of([st.tuples(st.just(use), *given) for use, *given in USES])


@pytest.fixture(scope="module")
def model() -> SpaceModel:
    return SpaceModel.untrained(FakeEncoder(16))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without files, so that no name means one."""
    monkeypatch.chdir(tmp_path)


def run(model: SpaceModel, calls: list[tuple[Any, ...]]) -> None:
    with warnings.catch_warnings(), Index.in_memory(model) as index:
        warnings.simplefilter("ignore")
        index.add([{"id": "a", "text": "red fox", "metadata": {"lang": "en", "n": 1}}])
        for use, *given in calls:
            try:
                use(index, *map(real, given))
            except PalmetteError:
                continue
        index.verify()


LIMITS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(LIMITS, max_examples=100)
@given(calls=st.lists(CALLS, min_size=4, max_size=12))
def test_nothing_else_is_raised(model: SpaceModel, calls: list[tuple[Any, ...]]) -> None:
    run(model, calls)


@pytest.mark.exhaustive
@settings(LIMITS, max_examples=2500)
@given(calls=st.lists(CALLS, min_size=4, max_size=12))
def test_nothing_else_is_raised_in_many_calls(model: SpaceModel, calls: list[tuple[Any, ...]]) -> None:
    run(model, calls)
