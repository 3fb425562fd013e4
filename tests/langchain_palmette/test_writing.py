"""Documents in, out, changed and deleted; LangChain's ``index``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index

from langchain_palmette import TreeRetriever
from palmette.errors import ConfigError, InputError

METADATA: dict[str, Any] = {"text": "ünïcode \u0000 \U0001f680", "int": 7, "big": 2**53 + 1, "float": 0.1, "none": None}
METADATA |= {"bool": True, "list": [1, "a", None, [2]], "nested": {"deep": {"er": [{"x": 1}]}, "empty": {}}}
METADATA |= {"": "an empty key", "score": "mine", "_id": 5, "lc": 1}


@pytest.mark.parametrize("id", ["a", "a/b ü", "7f0c", None])
def test_a_document_comes_back_as_it_went(empty: TreeRetriever, id: str | None) -> None:
    given = Document(id=id, page_content=" text\nwith\t blanks ", metadata=METADATA)
    [stored] = empty.add_documents([given])
    assert id in (None, stored)
    [found] = empty.get([stored])
    assert found == Document(id=stored, page_content=given.page_content, metadata=METADATA)
    assert [*map(type, found.metadata.values())] == [*map(type, METADATA.values())]
    assert given == Document(id=id, page_content=" text\nwith\t blanks ", metadata=METADATA)


def test_delete(empty: TreeRetriever) -> None:
    empty.upsert([Document(id=str(i), page_content=f"owl {i}", metadata={"even": i % 2 == 0}) for i in range(6)])
    assert empty.delete(["1", "nowhere", "1"])["succeeded"] == ["1"]
    assert empty.delete(["1"]) == {"num_deleted": 0, "succeeded": [], "num_failed": 0, "failed": []}
    assert sorted(empty.delete(filter={"even": True})["succeeded"]) == ["0", "2", "4"]
    assert {one.id for one in empty.invoke("owl", k=9)} == {"3", "5"}
    for wrong in ({}, {"ids": ["3"], "filter": {"even": False}}):
        with pytest.raises(InputError, match="ids or a filter"):
            empty.delete(**wrong)
    with pytest.raises(ConfigError, match="wait"):
        empty.delete(["3"], wait=True)
    one: Any = "3"
    with pytest.raises(InputError, match="must be a list"):
        empty.delete(one)
    assert len(empty.index) == 2


def test_the_filter_of_a_retriever_keeps_tenants_apart(empty: TreeRetriever) -> None:
    a = TreeRetriever.from_index(empty.index, filter={"tenant": "a"})
    mine, theirs = (Document(id=n, page_content="an owl", metadata={"tenant": t}) for n, t in ("1a", "2b"))
    empty.upsert([mine, theirs])
    with pytest.raises(InputError, match="'3'"):
        a.upsert([Document(id="3", page_content="x", metadata=theirs.metadata)])
    for twin in (a, a.model_copy(), copy.copy(a), copy.deepcopy(a)):
        assert [one.id for one in twin.invoke("an owl", k=9)] == ["1"]
        assert twin.get(["1", "2"]) == [mine]
        assert twin.invoke("an owl", filter={"tenant": "b"}) == []
        assert twin.delete(["2"])["num_deleted"] == 0
    assert a.delete(filter={"$id": ["1", "2"]})["succeeded"] == ["1"]
    assert empty.get(["1", "2", "3"]) == [theirs]


def sources(*named: tuple[str, str]) -> list[Document]:
    return [Document(page_content=text, metadata={"source": source}) for source, text in named]


def held(retriever: TreeRetriever) -> set[str]:
    return {document.text for document in retriever.index.documents()}


async def test_langchains_index(empty: TreeRetriever) -> None:
    manager = InMemoryRecordManager("palmette")
    how: dict[str, Any] = {"source_id_key": "source", "key_encoder": "sha256"}
    first = sources(("a", "red cat"), ("a", "blue dog"), ("b", "green owl"), ("b", "green owl"))
    told = index(first, manager, empty, cleanup="full", **how)
    assert told == {"num_added": 3, "num_updated": 0, "num_skipped": 1, "num_deleted": 0}
    assert held(empty) == {"red cat", "blue dog", "green owl"}
    assert index(first, manager, empty, cleanup="full", **how)["num_skipped"] == 4

    more: dict[str, Any] = {"cleanup": "incremental", "upsert_kwargs": {"progress": False}}
    told = index(sources(("a", "red cat, older")), manager, empty, **more, **how)
    assert told == {"num_added": 1, "num_updated": 0, "num_skipped": 0, "num_deleted": 2}
    assert held(empty) == {"red cat, older", "green owl"}
    assert index(sources(("b", "green owl")), manager, empty, force_update=True, **more, **how)["num_updated"] == 1

    told = await aindex(sources(("b", "green owl"), ("c", "white fox")), manager, empty, cleanup="full", **how)
    assert told == {"num_added": 1, "num_updated": 0, "num_skipped": 1, "num_deleted": 1}
    assert {one.page_content for one in empty.invoke("fox", k=9)} == held(empty) == {"green owl", "white fox"}
