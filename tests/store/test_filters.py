"""The filter language: its meaning by example, SQL against the definition, and errors that help."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import FilterError, InputError
from palmette.store.engines import engine_of
from palmette.store.filters import And, Condition, Ids, Not, matches, parse_filter
from palmette.store.local.backend import LocalBackend
from palmette.types import Document
from support.places import places
from support.stores import SPECS, doc, put

ADA = {
    "lang": "en",
    "year": 2021,
    "score": 0.5,
    "draft": False,
    "tags": ["red", "Blue", 3],
    "author": {"name": "Ada", "born": None},
    "parts": [{"n": 1}, {"n": 2}],
    "none": None,
    "empty": [],
}


PASSING = [
    {"lang": "en"}, {"lang": "en", "year": 2021}, {"year": 2021.0}, {"draft": False}, {"draft": 0},
    {"year": {"$gte": 2021, "$lt": 2022}}, {"score": {"$gt": 0, "$lte": 0.5}},
    {"lang": {"$gt": "de", "$lt": "fr"}}, {"tags": "red"}, {"tags": 3}, {"tags": {"$gt": 2}},
    {"tags": {"$any": ["green", "red"]}}, {"tags": {"$all": ["red", "Blue"]}},
    {"tags": {"$all": ["red", "red"]}}, {"tags": {"$contains": "lu"}}, {"tags": {"$icontains": "BLU"}},
    {"lang": {"$in": ["de", "en"]}}, {"lang": {"$nin": ["de"]}}, {"lang": {"$ne": "de"}},
    {"missing": {"$ne": "de"}}, {"missing": {"$nin": ["de"]}}, {"missing": {"$not": {"$gt": 3}}},
    {"missing": None}, {"none": None}, {"empty": None}, {"author.born": None}, {"lang": {"$ne": None}},
    {"missing": {"$in": [None, "x"]}}, {"lang": {"$in": [None, "en"]}}, {"author.name": "Ada"},
    {"author": {"$exists": True}}, {"missing": {"$exists": False}}, {"parts.n": 2},
    {"$or": [{"lang": "de"}, {"year": 2021}]}, {"$and": [{"lang": "en"}, {"$not": {"year": 2020}}]},
    {"$not": {"lang": "de", "year": 2021}}, {"$id": "ada"}, {"$id": ["ada", "bob"]},
    {"$id": {"$nin": ["bob"]}}, {}, None,
]  # fmt: skip


FAILING = [
    {"lang": "de"}, {"lang": "EN"}, {"year": "2021"}, {"lang": {"$gt": 0}}, {"year": {"$gt": "0"}},
    {"year": {"$gt": 2021}}, {"year": {"$contains": "20"}}, {"tags": {"$all": ["red", "green"]}},
    {"tags": {"$any": []}}, {"tags": {"$ne": "red"}}, {"tags": {"$contains": "BLU"}},
    {"missing": {"$gt": 3}}, {"missing": {"$exists": True}}, {"none": {"$exists": True}},
    {"auth": {"$exists": True}},
    {"empty": {"$exists": True}}, {"author": None}, {"author": "Ada"}, {"lang": None},
    {"lang": {"$in": []}}, {"lang": "en", "year": 2020}, {"$or": [{"lang": "de"}, {"year": 2020}]},
    {"$not": {"lang": "en"}}, {"$id": ["bob"]}, {"$id": []}, {"$id": {"$ne": "ada"}},
]  # fmt: skip


@pytest.mark.parametrize(("filter", "passes"), [*((one, True) for one in PASSING), *((one, False) for one in FAILING)])
def test_meaning(filter: dict | None, passes: bool) -> None:
    assert matches(filter, ADA, "ada") is passes


ENGINES = {
    "local": (21, r"^Qdrant has no \$|2⁵³|no document has metadata"),
    "postgres": (6, "no document has metadata"),
}
"""How many of the filters an engine refuses at most, and why: text that is contained or compared, and unknown names."""


@pytest.mark.parametrize("kind", ENGINES)
def test_engines_pass_what_the_definition_passes_or_refuse(kind: str) -> None:
    others: list[dict[str, Any]] = [
        {"lang": "de", "tags": "red"}, {"year": 2021.5, "score": 1}, {'a"b[]': 1, "draft": 1.0}, {},
        {"lang": "a\0b\1", "year": 2**53 + 1, "tags": ["Straße", "\0"]}, {"year": 2.0**53, "score": -0.0},
        {"lang": "%s ? ' \\ \u2028", "year": 1e300, "score": 5e-324}, {"author": {"born": None, "name.": "ﬀ"}},
    ]  # fmt: skip
    given = [Document("ada", "x", ADA), *(Document(f"d{n}", f"y{n}", one) for n, one in enumerate(others))]
    hard: list[Any] = [
        {'a"b[]': 1}, {"draft": True}, {"score": {"$gte": 0.75}}, {"lang": "a\0b\1"}, {"lang": {"$contains": "\1"}},
        {"lang": {"$contains": "\2"}}, {"lang": {"$contains": "' \\"}}, {"lang": {"$gt": "a\0a"}}, {"tags": "\0"},
        {"tags": {"$icontains": "STRASSE"}}, {"year": 2**53}, {"year": {"$gt": 2**53}}, {"year": {"$gte": 1e300}},
        {"score": 0}, {"score": {"$gt": 0}}, {"lang": {"$contains": ""}}, {"$not": {"tags": {"$icontains": "RED"}}},
        {"author": {"$exists": True}}, {"author.name": {"$exists": True}}, {"lang": {"$lt": "\uffff"}},
    ]  # fmt: skip
    refused, (most, why) = list[str](), ENGINES[kind]
    with places(kind) as new:
        url = str(new())
        engine_of(url).create(url, SPECS, fingerprint="model", language="english")
        with closing(engine_of(url).open(url)) as backend:
            put(backend, *given)
            for asked in [*PASSING, *FAILING, *hard]:
                try:
                    found = [one.key for one in backend.scan(parse_filter(asked))]
                except FilterError as error:
                    refused.append(str(error))
                else:
                    assert found == [one.key for one in given if matches(asked, one.metadata, one.key)], asked
            with pytest.raises(FilterError, match="Did you mean 'lang'"):
                list(backend.scan(parse_filter({"langg": "en"})))
    assert [told for told in refused if not re.search(why, told)] == []
    assert len(refused) <= most


MALFORMED = [
    ("lang = en", ["mapping", "str", "lang = en"]),
    ({"year": {"$gtt": 3}}, ["$gtt", "'year'", "'$gt'", "$icontains"]),
    ({"$nor": [{"a": 1}]}, ["$nor", "$or", "$and"]), ({"$or": {"a": 1}}, ["$or", "list", "{'a': 1}"]),
    ({"$and": []}, ["$and", "non-empty"]), ({"$and": ["x"]}, ["$and", "'x'"]),
    ({"$not": [{"a": 1}]}, ["$not", "one filter"]), ({"a": {"$not": 3}}, ["$not", "'a'", "3"]),
    ({"a": ["x", "y"]}, ["'a'", "['x', 'y']", "$in"]), ({"a": {"$in": "x"}}, ["$in", "'a'", "list", "'x'"]),
    ({"a": {"$in": [{"b": 1}]}}, ["$in", "{'b': 1}"]), ({"a": {"$all": []}}, ["$all", "at least one"]),
    ({"a": {"$gt": None}}, ["$gt", "'a'", "None"]),
    ({"a": {"$exists": 1}}, ["$exists", "True or False", "1"]),
    ({"a": {"$contains": 3}}, ["$contains", "text", "3"]), ({"a": {}}, ["'a'", "empty"]),
    ({"a": {"b": 1}}, ["'a.b'", "dots"]), ({"a": float("nan")}, ["'a'", "nan"]),
    ({"a": 2**70}, ["'a'", str(2**70)]), ({"a": "\ud800"}, ["UTF-8"]), ({3: "a"}, ["str", "3"]),
    ({"day": {"$gt": datetime.date(2020, 1, 1)}}, ["isoformat"]), ({"$id": 3}, ["$id", "3"]),
    ({"$id": {"$gt": "a"}}, ["$id", "$gt"]), ({"a": 10**5000}, ["<int whose repr raises ValueError>"]),
    (functools.reduce(lambda part, _: {"$not": part}, range(60), {"a": 1}), ["nested 50 deep"]),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "words"), MALFORMED)
def test_malformed_filters_say_what_is_wrong(bad: object, words: list[str]) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(bad)
    for word in words:
        assert word in str(caught.value)


def test_parsed_filters_are_values() -> None:
    parsed = parse_filter({"lang": "en", "$id": ["a"], "year": {"$ne": 3}})
    expected = (Condition("lang", "in", ("en",)), Ids(frozenset({"a"})), Not(Condition("year", "in", (3,))))
    assert parsed == And(expected)
    assert parse_filter(parsed) is parsed
    assert hash(parsed) == hash(And(expected))
    assert parse_filter({}) is parse_filter(None) is None


def test_metadata_integers_fit_the_database() -> None:
    with pytest.raises(InputError, match="64 bits"):
        matches({"a": 1}, {"a": 2**63})


NAMES = ["a", "b", "c", "c.d", "ä"]
TEXTS = st.text(st.sampled_from("abAB\x00'%_ßSsİ 😀"), max_size=3)
RARE = [0.5, -0.0, 1.0, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1, 1e300]
NUMBERS = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(RARE))
SCALARS = st.one_of(TEXTS, NUMBERS)
VALUES = st.one_of(
    SCALARS,
    st.none(),
    st.lists(st.one_of(SCALARS, st.none()), max_size=3),
    st.dictionaries(st.sampled_from(["d", "e"]), SCALARS, max_size=2),
    st.lists(st.dictionaries(st.just("d"), SCALARS, max_size=1), max_size=2),
)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "c", "ä", "c.d"]), VALUES, max_size=4)


def conditions() -> st.SearchStrategy[dict]:
    lists = st.lists(SCALARS, max_size=3)
    operators = st.one_of(
        st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), SCALARS),
        st.tuples(st.sampled_from(["$eq", "$ne"]), st.one_of(SCALARS, st.none())),
        st.tuples(st.sampled_from(["$in", "$nin", "$any"]), st.lists(st.one_of(SCALARS, st.none()), max_size=3)),
        st.tuples(st.just("$all"), lists.filter(bool)),
        st.tuples(st.sampled_from(["$contains", "$icontains"]), TEXTS),
        st.tuples(st.just("$exists"), st.booleans()),
    )
    field = st.builds(lambda name, op: {name: dict([op])}, st.sampled_from(NAMES), operators)
    negated = st.builds(lambda name, op: {name: {"$not": dict([op])}}, st.sampled_from(NAMES), operators)
    ids = st.lists(st.sampled_from([f"d{i}" for i in range(12)]), max_size=5).map(lambda some: {"$id": some})
    return st.one_of(field, field, negated, ids)


FILTERS = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$and": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$or": some}),
        inner.map(lambda one: {"$not": one}),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("few", [0, 256], ids=["sql", "one by one"])
@settings(max_examples=15)
@given(given_metadata=st.lists(METADATA, min_size=1, max_size=12), filters=st.lists(FILTERS, min_size=4, max_size=8))
def test_selection_is_the_definition(few: int, given_metadata: list[dict], filters: list[dict]) -> None:
    known = dict.fromkeys(NAMES, "every name exists")
    documents = [Document(f"d{i}", "text", metadata) for i, metadata in enumerate([*given_metadata, known])]
    with pytest.MonkeyPatch.context() as patch, LocalBackend.in_memory(SPECS) as backend:
        patch.setattr("palmette.store.local.filters._FEW_TO_READ", few)
        put(backend, *documents)
        for one in filters:
            expected = [document.id for document in documents if matches(one, document.metadata, document.id)]
            assert [document.id for document in backend.scan(parse_filter(one))] == expected


@pytest.fixture(scope="module")
def library() -> Iterator[LocalBackend]:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{i}", lang="en", page=i, author={"name": "Ada"}) for i in range(300)))
        yield backend


@pytest.mark.parametrize("misspelt", [{"lnag": "en"}, {"$not": {"lnag": "en"}}, {"lnag": {"$ne": "en"}}])
def test_unknown_names_are_errors_with_near_matches(library: LocalBackend, misspelt: dict) -> None:
    with pytest.raises(FilterError, match="'lnag'.*Did you mean 'lang'.*author.name, lang, page"):
        list(library.scan(parse_filter(misspelt)))
    with pytest.raises(FilterError, match=r"'author'.*'author\.name'"):
        list(library.scan(parse_filter({"author": "Ada"})))


def test_unknown_names_may_be_tested_for(library: LocalBackend) -> None:
    assert len(list(library.scan(parse_filter({"missing": None})))) == 300
    assert not list(library.scan(parse_filter({"missing": {"$exists": True}})))
    with LocalBackend.in_memory(SPECS) as empty:
        assert not list(empty.scan(parse_filter({"anything": 1})))


def test_long_lists_of_values(library: LocalBackend) -> None:
    wide = {"page": {"$in": list(range(0, 100_000, 2))}, "$id": [f"d{i}" for i in range(40_000)]}
    with library.read(parse_filter(wide)) as view:
        assert len(view) == 150


def test_a_filter_is_judged_anew_after_a_write() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("a", lang="en"))
        english = parse_filter({"lang": "en"})
        assert [one.id for one in backend.scan(english)] == ["a"]
        put(backend, doc("a", lang="de"), doc("b", lang="en"))
        assert [one.id for one in backend.scan(english)] == ["b"]
        put(backend, doc("b"), doc("a"))
        with pytest.raises(FilterError, match="no document has metadata"):
            list(backend.scan(english))


def test_numbers_and_texts_are_not_compared() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("number", a=1), doc("text", a="m"), *(doc(f"other {n}") for n in range(300)))  # asked by SQL
        for condition, found in (({"$lt": "z"}, ["text"]), ({"$gt": 0}, ["number"]), ({"$lt": 5}, ["number"])):
            with backend.read({"a": condition}) as view:
                assert view.ids(view.keys().tolist()) == found
