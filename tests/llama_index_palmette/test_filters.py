"""Every FilterOperator against sets worked out by hand."""

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index.retrievers.palmette import PalmetteQuery, TreeRetriever, palmette_filter
from palmette.errors import FilterError, NotFoundError

NODES = {
    "a": {"lang": "en", "year": 2020, "score": 0.5, "tags": ["red", "blue"], "title": "The Old Owl"},
    "b": {"lang": "de", "year": 2021, "score": 1.5, "tags": ["blue"], "title": "the fox"},
    "c": {"lang": "fr", "year": 2022, "score": -1.0, "tags": [], "title": "A fox and an owl"},
    "d": {"year": 2023, "tags": None, "title": "bat"},
}


@pytest.fixture(scope="module")
def retriever(model):
    nodes = [TextNode(id_=name, text=f"text {name}", metadata=metadata) for name, metadata in NODES.items()]
    return TreeRetriever.from_documents(nodes, model, similarity_top_k=100)


def found(retriever, filters):
    results = retriever.retrieve(PalmetteQuery("text", filters=filters))
    return "".join(sorted(result.node_id for result in results))


def one(key, operator, value):
    return MetadataFilter(key=key, operator=operator, value=value)


OPERATORS = [
    ("lang", FilterOperator.EQ, "en", "a"),
    ("lang", FilterOperator.NE, "en", "bcd"),
    ("year", FilterOperator.GT, 2021, "cd"),
    ("year", FilterOperator.GTE, 2021, "bcd"),
    ("year", FilterOperator.LT, 2021, "a"),
    ("score", FilterOperator.LTE, 0.5, "ac"),
    ("lang", FilterOperator.IN, ["en", "fr"], "ac"),
    ("lang", FilterOperator.IN, [], ""),
    ("lang", FilterOperator.NIN, ["en", "fr"], "bd"),
    ("tags", FilterOperator.ANY, ["red", "green"], "a"),
    ("tags", FilterOperator.ALL, ["red", "blue"], "a"),
    ("title", FilterOperator.TEXT_MATCH, "owl", "c"),
    ("title", FilterOperator.TEXT_MATCH_INSENSITIVE, "OWL", "ac"),
    ("tags", FilterOperator.CONTAINS, "blue", "ab"),
    ("tags", FilterOperator.CONTAINS, "blu", ""),
    ("tags", FilterOperator.IS_EMPTY, None, "cd"),
    ("lang", FilterOperator.IS_EMPTY, None, "d"),
    ("nowhere", FilterOperator.IS_EMPTY, None, "abcd"),
]


def test_every_operator(retriever):
    assert {operator for _, operator, _, _ in OPERATORS} == set(FilterOperator)
    for key, operator, value, expected in OPERATORS:
        condition = one(key, operator, value)
        assert found(retriever, condition) == expected, condition
        assert found(retriever, MetadataFilters(filters=[condition])) == expected, condition


EN = one("lang", FilterOperator.EQ, "en")
RECENT = one("year", FilterOperator.GTE, 2022)
BLUE = one("tags", FilterOperator.ANY, ["blue"])


@pytest.mark.parametrize(
    ("condition", "parts", "expected"),
    [
        (FilterCondition.AND, [EN, BLUE], "a"),
        (None, [EN, RECENT], ""),
        (FilterCondition.OR, [EN, RECENT], "acd"),
        (FilterCondition.NOT, [EN, RECENT], "b"),
        (FilterCondition.NOT, [EN], "bcd"),
        (FilterCondition.NOT, [], "abcd"),
        (FilterCondition.AND, [BLUE, MetadataFilters(filters=[EN], condition="not")], "b"),
        (FilterCondition.OR, [MetadataFilters(filters=[EN, BLUE]), MetadataFilters(filters=[RECENT])], "acd"),
        (FilterCondition.NOT, [MetadataFilters(filters=[EN, RECENT], condition="or")], "b"),
        (FilterCondition.AND, [MetadataFilters(filters=[], condition="or"), EN], "a"),
    ],
)
def test_conditions_nest(retriever, condition, parts, expected):
    assert found(retriever, MetadataFilters(filters=parts, condition=condition)) == expected


def test_palmette_filters_pass_through_and_bad_ones_are_named(retriever):
    assert found(retriever, {"$or": [{"lang": "en"}, {"year": {"$gt": 2022}}]}) == "ad"
    for nothing in (None, {}, MetadataFilters(filters=[])):
        assert palmette_filter(nothing) is None
    bad = {"langauge": {"langauge": "en"}, "mapping, got list": [EN], "list": one("lang", FilterOperator.IN, "en")}
    for told, filters in bad.items():
        with pytest.raises(FilterError, match=told):
            found(retriever, filters)


def test_filters_limit_every_way_of_reading(retriever):
    limited = TreeRetriever.from_index(retriever.index, filters=one("year", FilterOperator.GTE, 2022))
    assert [node.node_id for node in limited.get_nodes(["a", "b", "c", "d", "x"])] == ["c", "d"]
    assert list(limited.ref_doc_info) == ["c", "d"]
    assert found(limited, None) == "cd"
    with pytest.raises(NotFoundError):
        limited.explain("text", "a")
    assert list(retriever.ref_doc_info) == ["a", "b", "c", "d"]
