"""Serialization, pickling, copies: all by fields, all finding what is open."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumpd, dumps, load
from langchain_core.runnables import ConfigurableField

from langchain_palmette import PalmetteEmbeddings, PalmetteReranker, PalmetteRetriever, TreeRetriever
from palmette import Index, TreeModel
from palmette.errors import NotFoundError

pytestmark = pytest.mark.filterwarnings("ignore:.*is in beta:langchain_core._api.LangChainBetaWarning")

QUESTION = "The green owl lives in house 10 and sings at night."
FIELDS: dict[str, Any] = {"k": 2, "level": 3, "lexical": 0.5, "score_threshold": 0.0}
FIELDS |= {"filter": {"$not": {"colour": "red"}}, "score_key": "score", "explain": True, "search_options": {}}
FIELDS |= {"device": "cpu", "tags": ["t"], "metadata": {"team": "x"}, "name": "mine"}
FIELDS |= {"boost": {"colour": {"red": 0.5}, "date": {"half_life": "90d", "weight": 1.0}}}


def revive(data: Any, cls: Any) -> Any:
    return load(data, allowed_objects=[cls], valid_namespaces=["langchain_palmette"])


def test_a_round_trip_through_json(folder: Path) -> None:
    retriever = TreeRetriever(index_path=folder, **FIELDS)
    data = json.loads(dumps(retriever))
    assert "not_implemented" not in json.dumps(data)
    moved = folder.rename(folder.with_name("moved"))
    again = revive(data, TreeRetriever)
    assert again == retriever
    moved.rename(folder)  # opening waits until it is needed
    assert again.score_key == "score"
    found = retriever.invoke(QUESTION)
    assert again.invoke(QUESTION) == found
    assert "not_implemented" not in dumps(found)
    assert set(dumpd(retriever)["kwargs"]) <= {"index_path", "engine", *FIELDS}, "no secret, no object"
    generic = PalmetteRetriever(index_path=folder, search_options={"level": 2})
    assert revive(dumpd(generic), PalmetteRetriever).invoke(QUESTION) == generic.invoke(QUESTION)


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: one.model_copy(),
        lambda one: one.model_copy(deep=True),
    ],
)
def test_copies_in_this_process_find_an_index_in_memory(retriever: TreeRetriever, duplicate: Any) -> None:
    again = duplicate(retriever)
    assert again.invoke(QUESTION) == retriever.invoke(QUESTION)
    assert again.index.backend is retriever.index.backend
    assert duplicate(retriever.bind(k=1)).invoke(QUESTION) == retriever.invoke(QUESTION, k=1)


def test_an_index_in_memory_ends_with_its_retrievers(model: TreeModel) -> None:
    retriever = TreeRetriever.from_documents([], model)
    data = dumpd(retriever)
    assert revive(data, TreeRetriever).invoke(QUESTION) == []
    again = revive(data, TreeRetriever)
    del retriever
    assert again.invoke(QUESTION) == []
    del again
    with pytest.raises(NotFoundError, match=r"memory.*index_path="):
        revive(data, TreeRetriever).invoke(QUESTION)


def test_copies_of_a_narrowed_index_are_narrowed(folder: Path) -> None:
    with Index.open(folder) as index:
        red = TreeRetriever.from_index(index.filtered({"colour": "red"}), k=48)
        data = pickle.dumps(red)
        for again in (pickle.loads(data), revive(dumpd(red), TreeRetriever)):
            assert len(again.invoke(QUESTION)) == 8
        del red, again
        with pytest.raises(NotFoundError, match="memory"):  # rather than open all of the folder
            pickle.loads(data).invoke(QUESTION)


def test_configurable_fields_share_the_index(
    retriever: TreeRetriever, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (retriever, TreeRetriever(index_path=folder)):
        fields = {name: ConfigurableField(id=name) for name in ("k", "filter")}
        configurable = one.configurable_fields(**fields)
        with monkeypatch.context() as patched:
            patched.setattr(Index, "open", None)  # nothing may be opened again
            found = configurable.with_config(configurable={"k": 1}).invoke(QUESTION)
            assert [document.id for document in found] == ["green-owl"]
            found = configurable.invoke(QUESTION, {"configurable": {"filter": {"animal": "owl"}, "k": 48}})
        assert len(found) == 6


def test_embeddings_and_rerankers(checkpoint: Path, model: TreeModel) -> None:
    embeddings = PalmetteEmbeddings(model=checkpoint)
    for again in (pickle.loads(pickle.dumps(embeddings)), copy.deepcopy(embeddings)):
        assert again.model_dump() == embeddings.model_dump()
        assert again.embed_query(QUESTION) == embeddings.embed_query(QUESTION)
    reranker = PalmetteReranker(model=model, top_n=3)
    assert pickle.loads(pickle.dumps(reranker)).loaded("model") is model
    assert reranker.model_dump()["model"].startswith("memory:")
