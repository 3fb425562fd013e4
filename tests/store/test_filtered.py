"""A filtered backend tells and touches nothing outside its filter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palmette.errors import DuplicateIdError, InputError
from palmette.store.filters import parse_filter
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import Backend
from palmette.store.tenants import FilteredBackend
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
    assert stats.location == str(whole.path)
    assert (whole.stats().documents, whole.stats().reclaimable) == (2, 1)


def test_writes_stay_within(whole: LocalBackend) -> None:
    tenant = filtered(whole, tenant="a")
    outside, taken = doc("x", tenant="b"), doc("b1", tenant="a")
    for document, error in ((outside, InputError), (taken, DuplicateIdError)):
        with pytest.raises(error), tenant.write() as writer:
            writer.put([document], arrays_of([document]))
    with tenant.write() as writer:
        assert writer.delete(["b1", "a1"]) == ["a1"]
    assert [found.key for found in whole.scan()] == ["a2", "b1"]
