"""What a person may give wrongly to an index: the error names the value and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from operator import attrgetter
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
            built.record_search(query, [id])
        yield built


VOTE: dict[str, Any] = {"query": "q", "id": "d1", "useful": True}
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"query": "q", "group_by": "topic"}, "group_by"),
    ("search", {"query": "q", "distinct": "same"}, "distinct must be"),
    ("context", {"question": ["q"]}, "one question"),
    ("context", {"question": "q", "tokens": 0}, "tokens must be"),
    ("overview", {"topics": 0}, "topics must be a whole number"),
    # several texts that are one query
    ("search", {"query": [("a", "b")], "lexical": 0.5}, "lexical=0.5 needs the words of a query"),
    ("search", {"query": [()]}, "has none: give it at least one"),
    ("search", {"query": [("owl", " ")]}, "the query is empty"),
    ("search", {"query": [("owl", 3)]}, "a query must be a str, got int"),
    # votes
    ("feedback", VOTE | {"id": "gone"}, "no document 'gone'"),
    ("feedback", VOTE | {"query": " "}, "must not be empty"),
    ("feedback", VOTE | {"useful": 1}, "True or False"),
    ("feedback", VOTE | {"id": None}, "ids are str, got None"),
    ("feedback", VOTE | {"query": "q" * 9000}, "at most 8,192 characters"),
    ("feedback", VOTE | {"query": "\ud800"}, "surrogate"),
    ("feedback", VOTE | {"person": "p" * 300}, "at most 256"),
    ("record_search", {"query": 5, "ids": ["d1"]}, "must be a str"),
    ("record_search", {"query": "q", "ids": "d1"}, "a list of ids"),
    # votes to delete
    ("feedback_log.delete", {}, "at least one"),
    ("feedback_log.delete", {"before": "2001-01-01"}, "before must be seconds since 1970"),
    ("feedback_log.delete", {"before": timedelta(1)}, "before must be seconds since 1970"),
    ("feedback_log.delete", {"before": float("nan")}, "before must be between"),
    ("feedback_log.delete", {"before": True}, "before must be a number"),
    ("feedback_log.delete", {"person": ""}, "person: its name must not be empty"),
    ("feedback_log.delete", {"document": ""}, "document: its name must not be empty"),
    ("feedback_log.delete", {"document": 5}, "document must be a str"),
]


@pytest.mark.parametrize(("call", "given", "told"), CALLS)
def test_what_is_given_wrongly_is_named(index: Index, call: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises((InputError, ConfigError, NotFoundError), match=told):
        attrgetter(call)(index)(**given)
    assert index.feedback_log.votes() == []
    assert len(index.feedback_log.searches()) == 2, "nothing was deleted, and nothing recorded"


def test_recording_is_turned_on_for_the_whole_index(index: Index) -> None:
    for log, value, told in ((index.feedback_log, "off", "True or False"),
                             (index.filtered({"t": "a"}).feedback_log, True, "the whole index")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            log.recording = value  # type: ignore[assignment]
