"""Boosts by date and by value."""

from datetime import UTC, datetime, timedelta

import pytest

from palmette import Document, Index, recency
from palmette.errors import ConfigError
from palmette.ranking.boost import boost_to_dict, parse_boost
from support.tiny import METHODS

NOW = "2025-06-01"
DATES = [
    ("2025-06-01", 1.0), ("2025-03-03", 0.5), ("2024-12-03T00:00:00+00:00", 0.25), ("2025-06-01T01:00:00+01:00", 1.0),
    (datetime(2025, 3, 3, tzinfo=UTC).timestamp(), 0.5), ("2030-01-01", 1.0), (["2025-03-03", "2025-06-01"], 1.0),
    *((odd, 0.0) for odd in ("yesterday", "", "2025-02-30", 2024, True, None, 1e300, [], {"day": 1})),
]  # fmt: skip


@pytest.mark.parametrize(("date", "expected"), DATES)
def test_recency_halves_with_age(date: object, expected: float) -> None:
    boosts = parse_boost({"date": recency("90d", now=NOW)})
    assert boosts.total({"date": date}) == pytest.approx(expected, abs=1e-6)
    assert boosts.total({}) == 0
    assert bool(boosts.parts({"date": date})) == bool(expected)


def test_ages_are_counted_to_the_time_of_the_search() -> None:
    rule = recency("1d")
    yesterday = {"date": (datetime.now(UTC) - timedelta(days=1)).isoformat()}
    assert parse_boost({"date": rule}).total(yesterday) == pytest.approx(0.5, abs=1e-3)
    fixed = parse_boost({"date": rule})
    assert fixed.total(yesterday) == fixed.total(yesterday)
    assert parse_boost(fixed) is fixed


def test_values_add_up_and_names_reach_inside() -> None:
    boosts = parse_boost({"kind": {"guide": 0.5, "old": -1}, "author.team": {"docs": 2}, "stars": {5: 1}})
    assert boosts.total({"kind": ["guide", "old"], "author": {"team": "docs"}, "stars": 5}) == pytest.approx(2.5)
    assert [part.name for part in boosts.parts({"kind": "guide", "stars": 4})] == ["boost 'kind'"]


def test_boosts_are_json_that_reads_back() -> None:
    given = {"date": recency("36h", weight=2), "kind": {"guide": 0.5}, "half_life": {"half_life": 1}}
    written = boost_to_dict(given)
    assert written == {
        "date": {"half_life": "1.5d", "weight": 2.0},
        "kind": {"guide": 0.5},
        "half_life": {"half_life": 1},
    }
    assert boost_to_dict(written) == written
    assert boost_to_dict(None) is None
    assert parse_boost({"date": recency("90d", now=NOW)}) == parse_boost(
        boost_to_dict({"date": recency("90d", now=NOW)})
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("date", "boost must map"),
        ({3: {"guide": 1}}, "boost must map"),
        ({"date": "90d"}, "must be recency"),
        ({"date": {}}, "must be recency"),
        ({"kind": {"guide": "much"}}, "must be log-odds"),
        ({"kind": {"guide": float("nan")}}, "must be log-odds"),
        ({"kind": {"guide": 21}}, "must be log-odds"),
        ({"kind": {"guide": True}}, "must be log-odds"),
        ({"date": {"half_life": "90 parsecs"}}, "half_life must be a time"),
        ({"date": {"half_life": "90d", "halflife": 1}}, "no option 'halflife'"),
        ({"date": {"half_life": "90d", "now": "soon"}}, "now must be a date"),
        ({"date": {"half_life": "90d", "weight": "x"}}, "weight must be log-odds"),
    ],
)
def test_wrong_boosts_are_named(given: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_boost(given)


@pytest.mark.parametrize("half_life", ["0d", "", "-1d", "1e3d", timedelta(1), 90, "9" * 400 + "y"])
def test_wrong_half_lives_are_named(half_life: object) -> None:
    with pytest.raises(ConfigError, match="half_life"):
        recency(half_life)  # type: ignore[arg-type]


def test_a_boost_decides_between_equal_documents() -> None:
    texts = {"old": "2015-01-01", "new": "2025-05-30", "none": None, "odd": "last spring"}
    documents = [Document(id, "How to prune a cherry tree.", {"date": date}) for id, date in texts.items()]
    with Index.build(documents, METHODS["space"]()) as index:
        plain = {hit.id: hit.score for hit in index.search("prune a cherry", k=4)}
        hits = index.search("prune a cherry", k=4, boost={"date": recency("90d", now=NOW)}, explain=True)
        assert hits[0].id == "new"
        assert hits[0].evidence["boost"] == pytest.approx(1, abs=0.02)
        assert "boost by date (2025-05-30)" in hits[0].explain().text
        scores = {hit.id: hit.score for hit in hits}
        assert scores["none"] == scores["odd"] == pytest.approx(plain["none"], abs=1e-6)
        method = index.search("prune a cherry", k=4, boost={"date": recency(now=NOW)}, lexical=0, sentences=False)
        assert method[0].id == "new"
        assert index.rank(["prune a cherry"], k=4, boost={"date": recency("90d", now=NOW)}).ids[0][0] == "new"
