"""What a person may give wrongly to an index: the error names the value and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import ConfigError, InputError, NotFoundError


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    texts = [Document(f"d{n}", f"text number {n}", {"t": "ab"[n % 2]}) for n in range(10)]
    with Index.build(texts, SpaceModel.untrained(FakeEncoder(32)), progress=False) as built:
        built.feedback_log.recording = True
        for query, id in (("one", "d1"), ("two", "d2")):
            built.record_search(query, [id], run="r")
        yield built


def search(**how: Any) -> Callable[[Index], object]:
    return lambda index: index.search("number", **how)


def overview(query: Any = None, **how: Any) -> Callable[[Index], object]:
    return lambda index: index.overview(query, **how)


def context(*given: Any) -> Callable[[Index], object]:
    return lambda index: index.context(*given)


def vote(**how: Any) -> Callable[[Index], object]:
    return lambda index: index.feedback(**{"query": "q", "id": "d1", "useful": True} | how)


def forget(**how: Any) -> Callable[[Index], object]:
    return lambda index: index.feedback_log.delete(**how)


CALLS: list[tuple[Callable[[Index], object], str]] = [
    (search(group_by="topic"), "group_by"),
    (search(distinct="same"), "distinct must be"),
    (search(expand="page"), "expand"),
    (search(expand_tokens=0), "expand_tokens must be"),
    (context(["number"]), "one question"),
    (context("number", 0), "tokens must be"),
    (overview(topics=0), "topics must be a whole number"),
    (overview(since="soon"), "since must be a date"),
    (overview(["a", "b"]), "one question"),
    (overview(" "), "query is empty"),
    # several texts that are one query
    (lambda index: index.search([("a", "b")], lexical=0.5), "lexical=0.5 needs the words of a query"),
    (lambda index: index.search([()]), "has none: give it at least one"),
    (lambda index: index.search([("owl", " ")]), "the query is empty"),
    (lambda index: index.search([("owl", 3)]), "a query must be a str, got int"),
    # votes
    (vote(id="gone"), "no document 'gone'"),
    (vote(query=" "), "must not be empty"),
    (vote(useful=1), "True or False"),
    (vote(id=None), "give them"),
    (vote(query="q" * 9000), "at most 8,192 characters"),
    (vote(query="\ud800"), "surrogate"),
    (vote(person="p" * 300), "at most 256"),
    (lambda index: index.feedback(run="r", useful=True), "several queries"),
    (lambda index: index.feedback(run="r2", useful=True), "no search of run 'r2'"),
    (lambda index: index.record_search(5, ["d1"]), "must be a str"),  # type: ignore[arg-type]
    (lambda index: index.record_search("q", "d1"), "a list of ids"),
    (lambda index: setattr(index.feedback_log, "recording", "off"), "recording must be True or False"),
    (lambda index: setattr(index.filtered({"t": "a"}).feedback_log, "recording", True), "the whole index"),
    # votes to delete
    (forget(), "at least one"),
    (forget(before="2001-01-01"), "before must be seconds since 1970"),
    (forget(before=timedelta(1)), "before must be seconds since 1970"),
    (forget(before=float("nan")), "before must be between"),
    (forget(before=True), "before must be a number"),
    (forget(person=""), "person: its name must not be empty"),
    (forget(document=""), "document: its name must not be empty"),
    (forget(document=5), "document must be a str"),
]


@pytest.mark.parametrize(("call", "told"), CALLS, ids=[told for _, told in CALLS])
def test_what_is_given_wrongly_is_named(index: Index, call: Callable[[Index], object], told: str) -> None:
    with pytest.raises((InputError, ConfigError, NotFoundError), match=told):
        call(index)
    assert index.feedback_log.votes() == []
    assert len(index.feedback_log.searches()) == 2, "nothing was deleted, and nothing recorded"
