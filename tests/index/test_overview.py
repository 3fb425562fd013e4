"""Overviews: topics with words, counts and typical passages, by every method."""

from collections.abc import Iterator

import pytest

from palmette import Document, Index
from support.tiny import METHODS, documents

SUBJECTS = {
    "stars": "The comet passed the old star while astronomers watched the planet number {}.",
    "bread": "She bakes bread with rye flour and yeast in the oven of bakery number {}.",
    "ships": "The captain sails a ship across the stormy ocean towards harbour number {}.",
}


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    given = [
        Document(f"{name}-{n}", text.format(n), {"subject": name, "date": f"2025-{1 + n % 12:02}-01"})
        for name, text in SUBJECTS.items()
        for n in range(24)
    ]
    with Index.build(given, METHODS["space"]()) as made:
        yield made


def test_topics_are_named_counted_and_shown(index: Index) -> None:
    found = index.overview(topics=3)
    assert (found.documents, found.passages) == (72, 72)
    assert sum(topic.passages for topic in found.topics) == 72
    for topic in found.topics:
        [subject] = {one.id.partition("-")[0] for one in topic.typical}
        words = set(" ".join(topic.words).split())
        assert words <= set(SUBJECTS[subject].lower().replace(".", "").split())
        assert len(words) >= 3
        assert topic.documents == topic.passages
        assert len({one.id for one in topic.typical}) == 3
    assert found == index.overview(topics=3)
    assert str(found).startswith("72 documents, 72 passages")
    assert found.to_dict()["topics"][0]["name"] == found.topics[0].name


def test_a_filter_leaves_only_its_documents(index: Index) -> None:
    found = index.filtered({"subject": "ships"}).overview(topics=2)
    assert found.documents == 24
    assert found == index.overview(topics=2, filter={"subject": "ships"})
    assert {one.id.partition("-")[0] for topic in found.topics for one in topic.typical} == {"ships"}
    assert index.overview(filter={"date": {"$gte": "2025-07-01"}}).documents == 36


def test_passages_and_documents_are_counted_apart() -> None:
    long = "\n\n".join(f"# {name}\n\n" + text.format(9) for name, text in SUBJECTS.items())
    with Index.build([Document("long", long)], METHODS["space"](), passages={"tokens": 20}) as index:
        found = index.overview(topics=3)
        assert found.documents == 1
        assert found.passages == sum(topic.passages for topic in found.topics) > 1
        assert {topic.documents for topic in found.topics} == {1}
        assert found.topics[0].typical[0].last_line > 0


def test_topics_are_illustrated_by_titles_or_whole_sentences() -> None:
    code = "def settle(ledger, rate):\n" + "    ledger.total = ledger.total * rate + ledger.carried_over\n" * 9
    shown = {
        "guide.md": Document("guide.md", "# Pruning\n\n" + "Cut the cherry in summer, never in frost. " * 3),
        "notes": Document("notes", "The comet passed the old star at dawn. Then " + "nobody saw it again " * 20),
        "ledger.py": Document("ledger.py", code),
        "titled": Document("titled", code + "#", {"title": "How ledgers settle"}),
    }
    with Index.build(list(shown.values()), METHODS["space"]()) as index:
        found = {one.id: one.text for topic in index.overview(topics=4).topics for one in topic.typical}
    wanted = ("Pruning", "The comet passed the old star at dawn.", "ledger.py", "How ledgers settle")
    assert found.items() <= dict(zip(shown, wanted, strict=True)).items()
    assert len(found) >= 3


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_topics(method: str) -> None:
    with Index.in_memory(METHODS[method]()) as index:
        assert index.overview().topics == ()
        index.add(documents())
        found = index.overview(topics=4)
        assert sum(topic.passages for topic in found.topics) == 48
        assert 1 <= len(found.topics) <= 4
