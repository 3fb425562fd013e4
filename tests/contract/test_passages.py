"""Documents of several passages, whatever the method and the storage."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palmette import Document, Index, Model
from support.tiny import documents


@pytest.fixture(scope="module")
def long(model: Model, place: Callable[[], str | Path]) -> Iterator[tuple[Index, list[Document]]]:
    """An index of documents of eight sentences each, in which a sentence is a passage; and one short document."""
    given = documents()
    made = []
    for start in range(0, len(given), 8):
        some = given[start : start + 8]
        text, metadata = "\n\n".join(one.text for one in some), dict(some[0].metadata)
        made.append(Document(f"all-{metadata['colour']}", text, metadata, {"name": f"{metadata['colour']} ones"}))
    made.append(given[0])
    with Index.create(place(), model, passages={"tokens": 20}) as index:
        index.add(made)
        yield index, made


def test_hits_are_passages_and_explained(long: tuple[Index, list[Document]]) -> None:
    index, given = long
    whole = {document.id: document for document in given}
    assert (len(index), index.stats().passages) == (7, 49)
    hits = index.search("where does the blue owl live?", k=60)
    assert len({(hit.id, hit.passage.number) for hit in hits}) == len(hits)
    for hit in hits:
        document = whole[hit.id]
        assert hit.passage.count == (8 if document is not given[-1] else 1)
        assert hit.document.text == document.text[hit.passage.start : hit.passage.end]
        assert hit.document.metadata == document.metadata
    for hit in hits[:2]:
        told = hit.explain()
        assert told.score == pytest.approx(hit.score, abs=1e-6)
    best = max((hit for hit in hits if hit.id == "all-blue"), key=lambda hit: hit.score, default=None)
    if best is not None:
        assert index.explain("where does the blue owl live?", "all-blue").score >= best.score - 1e-6
    assert index.get([one.id for one in given]) == given
    assert list(index.documents()) == given


def test_filters_and_ranks_count_documents(long: tuple[Index, list[Document]]) -> None:
    index, _ = long
    hits = index.search("sings", k=60, filter={"colour": "blue"})
    assert {hit.id for hit in hits} <= {"all-blue"}
    [ids] = index.rank(["where does the blue owl live?"], k=3).ids
    assert len(set(ids)) == len(ids)
    behind = index.filtered({"colour": "red"})
    assert (len(behind), behind.stats().passages) == (2, 9)
    assert [one.id for one in behind.documents()] == ["all-red", "red-cat"]
    index.verify()


def test_changes_are_of_whole_documents(model: Model, place: Callable[[], str | Path]) -> None:
    given = documents()
    long = Document("long", "\n\n".join(one.text for one in given[:6]), {"n": 1})
    with Index.create(place(), model, passages={"tokens": 20}) as index:
        index.add([long, *given[8:12]])
        shorter = Document("long", "\n\n".join(one.text for one in given[:2]), {"n": 2})
        changes = index.upsert([shorter, given[8]])
        assert (changes.updated, changes.unchanged) == (["long"], [given[8].id])
        assert index.stats().passages == 6
        assert len(index.search("sings at night", k=50, filter={"$id": "long"}, lexical=0)) <= 2
        with index.copy_to(place()) as copy:
            assert copy.stats().passages == 6
            assert copy.search("red cat", k=9) == index.search("red cat", k=9)
        assert index.delete(["long"]) == ["long"]
        index.compact()
        assert (len(index), index.stats().passages) == (4, 4)
        index.verify()
