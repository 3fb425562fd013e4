"""Searches and writes through either framework are those of the index."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from palmette import Document, Index, recency
from palmette.errors import ConfigError, FilterError, InputError, NotFoundError
from support import tiny
from support.frameworks import Given

QUESTION = "The green owl lives in house 10 and sings at night."


@pytest.fixture
def retriever(framework: Any) -> Any:
    return framework.build("TreeRetriever", tiny.documents(), tiny.tree(), k=4)


def test_results_are_the_indexs_and_share_nothing(framework: Any, retriever: Any) -> None:
    how: dict[str, Any] = {"k": 5, "filter": {"animal": "owl"}, "level": 2}
    expected = retriever.index.search(QUESTION, **how, threshold=0.1)
    found = framework.ask(retriever, QUESTION, **how, score_threshold=0.1)
    assert [(one.id, one.score) for one in found] == [(hit.id, hit.score) for hit in expected]
    assert found[0].id == "green-owl"
    given = {document.id: document for document in tiny.documents()}
    for one in framework.ask(retriever, QUESTION):
        assert type(one.score) is float
        assert (one.text, one.metadata.pop("citation"), one.metadata.pop("place")["file"]) == (
            given[one.id].text,
            one.id,
            one.id,
        )
        assert one.metadata == given[one.id].metadata
        one.metadata["tags"].append("mine")
    assert [len(one.metadata["tags"]) for one in framework.ask(retriever, QUESTION)] == [2] * 4
    assert len(framework.ask(retriever, QUESTION, k=1000)) == 48
    border = (found[0].score + found[1].score) / 2
    strict = framework.over("TreeRetriever", retriever.index, **how, score_threshold=border)
    assert len(framework.ask(strict, QUESTION)) == 1
    assert len(framework.ask(strict, QUESTION, score_threshold=0.0)) == 5


def test_a_filter_of_a_query_narrows_and_never_widens(framework: Any, retriever: Any) -> None:
    red = framework.over("TreeRetriever", retriever.index, filter={"colour": "red"}, k=48)
    assert len(framework.ask(red, QUESTION)) == 8
    assert [one.id for one in framework.ask(red, QUESTION, filter={"animal": "owl"})] == ["red-owl"]
    for wider in ({"colour": "green"}, {"$or": [{"colour": "green"}, {"animal": "owl"}]}, {}, None):
        found = framework.ask(red, QUESTION, filter=wider)
        assert {one.metadata["colour"] for one in found} <= {"red"}


def test_explanations_are_json_and_add_up(framework: Any, retriever: Any) -> None:
    for one in framework.ask(retriever, QUESTION, explain=True, level=3):
        logit = sum(part["value"] for part in one.why["parts"])
        assert 1 / (1 + math.exp(-logit)) == pytest.approx(one.score, abs=1e-5)
        assert len(one.why["method"]["detail"]["path"]) == 3
    always = framework.over("TreeRetriever", retriever.index, explain=True, k=1)
    assert framework.ask(always, QUESTION)[0].why is not None
    assert framework.ask(always, QUESTION, explain=False)[0].why is None


def test_boosts_of_the_retriever_and_of_a_query(framework: Any) -> None:
    documents = [Document(kind, "a green owl", metadata={"kind": kind}) for kind in ("a", "b", "c")]
    boost = {"kind": {"c": 1}, "date": recency("90d")}
    retriever = framework.build("TreeRetriever", documents, tiny.tree(), boost=boost, k=1)
    [first] = framework.ask(retriever, "owl", explain=True)
    assert first.id == "c"
    assert "boost 'kind'" in [part["name"] for part in first.why["parts"]]
    assert framework.ask(retriever, "owl", boost={"kind": {"b": 1}})[0].id == "b"
    assert retriever.boost == {"kind": {"c": 1.0}, "date": {"half_life": "90d", "weight": 1.0}}
    with pytest.raises(ConfigError, match="must be log-odds"):
        framework.ask(retriever, "owl", boost={"kind": {"b": "much"}})


def test_what_cannot_be_asked_is_named(framework: Any, retriever: Any, tmp_path: Path) -> None:
    for query, wrong, error, told in (
        (QUESTION, {"k": 0}, InputError, "k must be .*at least 1"),
        (QUESTION, {"filter": {"color": "red"}}, FilterError, "color"),
        (QUESTION, {"filter": {"colour": {"$lik": "r"}}}, FilterError, r"\$lik.*Operators"),
        (QUESTION, {"leevl": 2}, ConfigError, "leevl.*level"),
        ("  \n", {}, InputError, "empty"),
        (7, {}, InputError, "query"),
    ):
        with pytest.raises(error, match=told):
            framework.ask(retriever, query, **wrong)
    with pytest.raises(ValueError, match="levle"):
        framework.build("TreeRetriever", [], tiny.tree(), index_path=tmp_path / "index", levle=3)
    assert not (tmp_path / "index").exists(), "typos are found before any work"
    assert framework.ask(framework.build("TreeRetriever", [], tiny.tree()), QUESTION) == []


def test_tenants_are_apart(framework: Any) -> None:
    whole = Index.in_memory(tiny.tree())
    a, b = (framework.over("TreeRetriever", whole.filtered({"tenant": name}), k=9) for name in "ab")
    mine = Document("1", "a green owl", metadata={"tenant": "a"})
    framework.write(a, [mine])
    framework.write(b, [Document("2", "a green owl too", metadata={"tenant": "b"})])
    assert [one.id for one in framework.ask(a, "green owl")] == ["1"]
    assert framework.ask(a, "green owl", filter={"tenant": "b"}) == []
    assert framework.held(a, ["1", "2"]) == ["1"]
    assert framework.delete(a, ["2"]) == []
    for id, metadata in (("3", {"tenant": "b"}), ("2", mine.metadata)):
        smuggled = Document(id, "x", metadata=metadata)
        with pytest.raises(InputError, match=f"'{smuggled.id}'"):
            framework.write(a, [smuggled])
    with pytest.raises(NotFoundError, match="'2'"):
        a.index.explain("green owl", "2")
    assert framework.held(b, ["1", "2", "3"]) == ["2"]
    assert framework.delete(a, ["1", "1", "x"]) == ["1"]


def test_common_values_of_metadata_become_json(framework: Any) -> None:
    values: dict[str, tuple[Any, Any]] = {
        "day": (date(2026, 1, 2), "2026-01-02"),
        "moment": (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        "uuid": (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        "path": ([PurePosixPath("/a/b.pdf")], ["/a/b.pdf"]),
        "count": (np.int64(3), 3),
        "share": (np.float32(0.5), 0.5),
        "yes": (np.bool_(True), True),
        "time": (np.datetime64("2026-01-02", "ns"), "2026-01-02T00:00:00.000000000"),
        "nested": ({"list": [np.int8(1), (date(2026, 1, 2),)]}, {"list": [1, ["2026-01-02"]]}),
    }
    given = {name: value for name, (value, _) in values.items()}
    retriever = framework.build("TreeRetriever", [Document("a", "owl", metadata=given)], tiny.tree())
    [found] = framework.ask(retriever, "owl", filter={"day": {"$gte": "2026-01-01"}, "count": 3})
    cited = {name: found.metadata.pop(name) for name in ("citation", "place")}
    assert (cited["citation"], cited["place"]["file"]) == ("a", "a")
    assert found.metadata == {name: json for name, (_, json) in values.items()}
    assert type(found.metadata["count"]) is int


def test_a_documents_own_place_and_citation_stay(framework: Any) -> None:
    own = {"place": "Berlin", "citation": "my own"}
    retriever = framework.build("TreeRetriever", [Document("a", "owl", metadata=own)], tiny.tree())
    assert framework.ask(retriever, "owl")[0].metadata == own


@pytest.mark.parametrize(
    ("value", "fix"),
    [({1, 2}, "a sorted list"), (np.ones(2), "its item"), (b"x", "text, numbers"), (math.nan, "text, numbers")],
    ids=repr,
)
def test_metadata_that_are_not_json_are_named_with_the_fix(framework: Any, value: Any, fix: str) -> None:
    retriever = framework.build("TreeRetriever", [], tiny.tree())
    bad = Document("bad", "text", metadata={"fine": 1, "seen": {"when": [value]}})
    with pytest.raises(InputError, match=rf"'bad'.*'seen\.when\.0' is .*; write {fix}"):
        framework.write(retriever, [Document("good", "fine"), bad])
    assert len(retriever.index) == 0


def test_blank_documents_are_left_out_with_one_warning(framework: Any) -> None:
    retriever = framework.build("TreeRetriever", [], tiny.tree())
    texts = ("an owl", "\n", "a fox", " ", "\t", "")
    pages = [Given(f"p{n}", text, {"source": "a.pdf", "page": n}) for n, text in enumerate(texts)]
    told = r"^4 of 6 documents are blank and were left out: document 1 'p1' of source 'a\.pdf', page 1; .*; …$"
    with pytest.warns(UserWarning, match=told) as caught:
        framework.write(retriever, pages)
    assert len(caught) == 1
    assert [document.key for document in retriever.index.documents()] == ["p0", "p2"]
