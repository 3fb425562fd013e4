"""Score scales depend on the documents and on the variant of the options, not on what was searched before."""

from __future__ import annotations

from palmette import FakeEncoder, Index, TreeModel
from support.tiny import documents, settings

QUERY = "where does the red owl live?"
LEVEL = {"level": 2, "lexical": 0}


def tree() -> TreeModel:
    """A tree without coefficients of its own: units of every level are measured on an index."""
    model = TreeModel.fit(documents(), encoder=FakeEncoder(48), **settings(depth=4))
    model.calibrations = {}
    return model


def scores(index: Index) -> list[float]:
    return [hit.score for hit in index.search(QUERY, 48, **LEVEL)]


def test_a_filtered_search_that_comes_first_changes_no_score() -> None:
    model = tree()
    expected = scores(Index.build(documents(), model))
    index = Index.build(documents(), model)
    assert index.search(QUERY, 3, filter={"house": {"$lt": 2}}, **LEVEL)
    assert scores(index) == expected


def test_a_search_of_few_documents_that_comes_first_changes_no_score() -> None:
    model = tree()
    expected = scores(Index.build(documents(), model))
    index = Index.in_memory(model)
    assert index.search(QUERY, **LEVEL) == []
    index.add(documents()[:1])
    assert len(index.search(QUERY, **LEVEL)) == 1
    index.add(documents()[1:])
    assert scores(index) == expected


def test_scales_of_earlier_numbers_of_documents_are_forgotten() -> None:
    with Index.in_memory(tree()) as index:
        for count in (4, 40, 8, 48, 12):
            index.sync(documents()[:count], "some", progress=False)
            scores(index)
        assert len(index._measured) == 1
