"""Inside a running loop: nothing blocks it, nothing starts another."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_palmette import PalmetteEmbeddings, PalmetteReranker, TreeRetriever
from palmette import FakeEncoder, Index, TreeModel
from palmette.errors import ConfigError, InputError
from support.recorder import Recorder

QUESTION = "The green owl lives in house 10 and sings at night."


async def test_the_same_as_sync(retriever: TreeRetriever) -> None:
    how: dict[str, Any] = {
        "k": 3,
        "filter": {"animal": "owl"},
        "level": 4,
        "score_threshold": 0.1,
        "explain": True,
    }
    assert await retriever.ainvoke(QUESTION, **how) == retriever.invoke(QUESTION, **how)
    del how["explain"]
    scored = await retriever.asimilarity_search_with_score(QUESTION, **how)
    assert scored == retriever.similarity_search_with_score(QUESTION, **how)


async def test_writes(empty: TreeRetriever) -> None:
    one = Document(id="1", page_content="green owl")
    assert await empty.aadd_documents([one]) == ["1"]
    assert (await empty.aupsert([one, Document(id="2", page_content="red cat")]))["succeeded"] == ["1", "2"]
    assert await empty.aget(["1"]) == [one]
    assert (await empty.adelete(filter={"$id": ["1"]}))["succeeded"] == ["1"]
    assert await empty.aget(["1", "2"]) == [Document(id="2", page_content="red cat")]


async def test_errors_reach_the_caller_and_the_callbacks(
    retriever: TreeRetriever, recorder: Recorder
) -> None:
    with pytest.raises(InputError, match="empty"):
        await retriever.ainvoke("", {"callbacks": [recorder]})
    with pytest.raises(ConfigError, match="kk"):
        await retriever.ainvoke(QUESTION, kk=1)
    assert recorder.events == [("start", ""), ("error", "")]


async def test_the_loop_stays_free(
    retriever: TreeRetriever, model: TreeModel, documents: list[Document]
) -> None:
    """Work that only goes on once the loop has run would wait for ever if it were done on the loop."""
    loop, free = asyncio.get_running_loop(), threading.Event()

    class Patient(FakeEncoder):
        def forward(self, *args: Any) -> Any:
            loop.call_soon_threadsafe(free.set)
            assert free.wait(10), "the event loop was blocked"
            free.clear()
            return super().forward(*args)

    patient = TreeModel(model.config, Patient(48), model.module)
    waiting = TreeRetriever.from_index(Index(patient, retriever.index.backend))
    assert len(await waiting.ainvoke(QUESTION)) == 4
    assert len(await waiting.abatch([QUESTION, QUESTION])) == 2
    assert len(await waiting.asimilarity_search_with_score(QUESTION)) == 4
    assert len(await PalmetteEmbeddings(encoder=patient.encoder).aembed_query(QUESTION)) == 48
    assert len(await PalmetteEmbeddings(model=patient).aembed_documents([QUESTION])) == 1
    ranked = await PalmetteReranker(model=patient).acompress_documents(documents[:3], QUESTION)
    assert len(ranked) == 3


async def test_first_uses_share_one_opening(folder: Any) -> None:
    lazy = TreeRetriever(index_path=folder, k=1)
    found = await asyncio.gather(*(lazy.ainvoke(QUESTION) for _ in range(16)))
    assert {one[0].id for one in found} == {"green-owl"}


async def test_sync_calls_work_in_a_running_loop(retriever: TreeRetriever, empty: TreeRetriever) -> None:
    assert retriever.invoke(QUESTION)[0].id == "green-owl"
    assert retriever.batch([QUESTION])[0][0].id == "green-owl"
    assert empty.upsert([Document(id="1", page_content="owl")])["succeeded"] == ["1"]
