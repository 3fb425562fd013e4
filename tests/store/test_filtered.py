"""A filtered backend tells and touches nothing outside its filter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palmette.errors import DuplicateIdError, FilterError, InputError
from palmette.store.backend import Backend, FilteredBackend
from palmette.store.filters import parse_filter
from palmette.store.local import LocalBackend
from support.stores import SPECS, arrays_of, delete, doc, put


@pytest.fixture
def whole() -> Iterator[LocalBackend]:
    with LocalBackend.in_memory(SPECS) as made:
        put(made, doc("a1", tenant="a", colour="red"), doc("a2", tenant="a", colour="blue"))
        put(made, doc("b1", tenant="b", colours_of_b="green", secret=1))
        yield made


def filtered(backend: Backend, **condition: str) -> FilteredBackend:
    within = parse_filter(condition)
    assert within is not None
    return FilteredBackend(backend, within)


def test_stats_count_what_it_shows(whole: LocalBackend) -> None:
    delete(whole, "a2")
    stats = filtered(whole, tenant="a").stats()
    assert (stats.documents, stats.bytes, stats.segments, stats.reclaimable) == (1, 0, 0, 0)
    assert (stats.location, stats.engine) == (str(whole.path), "exact")
    assert (whole.stats().documents, whole.stats().reclaimable) == (2, 1)


@pytest.mark.parametrize("name", ["colours", "secret", "sekret"])
def test_a_refused_name_tells_of_no_other(whole: LocalBackend, name: str) -> None:
    with pytest.raises(FilterError) as told, filtered(whole, tenant="a").read(parse_filter({name: 1})):
        pass
    assert "Names: colour, tenant." in str(told.value)
    assert "colours_of_b" not in str(told.value)
    assert str(told.value).count("secret") == 2 * (name == "secret")


def test_a_view_whose_own_name_is_unknown_lists_none(whole: LocalBackend) -> None:
    with pytest.raises(FilterError, match="'tenants'") as told:
        filtered(whole, tenants="a").stats()
    assert not any(name in str(told.value) for name in ("colour", "secret", "Names"))


def test_an_empty_view_refuses_no_name(whole: LocalBackend) -> None:
    assert list(filtered(whole, tenant="c").scan(parse_filter({"secret": 1}))) == []


def test_views_of_views_keep_both_filters(whole: LocalBackend) -> None:
    put(whole, doc("b2", tenant="b", colour="red"))
    red = filtered(filtered(whole, tenant="a"), colour="red")
    assert [found.key for found in red.scan()] == ["a1"]
    assert [found.key for found in red.scan(parse_filter({"tenant": "a"}))] == ["a1"]
    assert red.get(["a1", "a2", "b1", "b2"])[1:] == [None, None, None]


def test_writes_stay_within(whole: LocalBackend) -> None:
    tenant = filtered(whole, tenant="a")
    outside, taken = doc("x", tenant="b"), doc("b1", tenant="a")
    for document, error in ((outside, InputError), (taken, DuplicateIdError)):
        with pytest.raises(error), tenant.write() as writer:
            writer.put([document], arrays_of([document]))
    with tenant.write() as writer:
        assert writer.delete(["b1", "a1"]) == ["a1"]
    assert [found.key for found in whole.scan()] == ["a2", "b1"]


def test_compact_and_verify_reach_the_files(whole: LocalBackend) -> None:
    delete(whole, "b1")
    tenant = filtered(whole, tenant="a")
    tenant.compact()
    tenant.verify()
    assert whole.stats().reclaimable == 0
    assert len(list(tenant.scan())) == 2
