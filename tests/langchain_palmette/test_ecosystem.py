"""In chains, as a tool, with an agent, merged with others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from langchain_palmette import PalmetteReranker, TreeRetriever
from palmette import TreeModel
from palmette.frameworks import public_name
from support.recorder import Recorder

QUESTION = "The green owl lives in house 10 and sings at night."


class Caller(GenericFakeChatModel):
    """Says what it is told, tool calls included."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        return self


def joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


async def test_a_chain(retriever: TreeRetriever, recorder: Recorder) -> None:
    prompts: list[str] = []

    def answer(prompt: Any) -> AIMessage:
        prompts.append(prompt.to_string())
        return AIMessage("in house 10")

    chain = (
        {"context": retriever.bind(k=1) | RunnableLambda(joined), "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{context}\n{question}")
        | RunnableLambda(answer)
        | StrOutputParser()
    )
    assert chain.invoke(QUESTION, {"callbacks": [recorder]}) == "in house 10"
    assert await chain.ainvoke(QUESTION) == "in house 10"
    assert chain.batch([QUESTION, QUESTION]) == ["in house 10"] * 2
    assert "green owl lives in house 10" in prompts[0]
    assert len(set(prompts)) == 1
    assert recorder.events == [("start", QUESTION), ("end", QUESTION)]
    parallel = RunnableParallel(near=retriever.bind(k=1), red=retriever.bind(filter={"colour": "red"}, k=2))
    assert [len(found) for found in (await parallel.ainvoke(QUESTION)).values()] == [1, 2]


async def test_a_tool_with_its_documents(retriever: TreeRetriever) -> None:
    tool = create_retriever_tool(
        retriever, "search", "Search the zoo.", response_format="content_and_artifact"
    )
    call: Any = {"name": "search", "args": {"query": QUESTION}, "id": "1", "type": "tool_call"}
    for message in (tool.invoke(call), await tool.ainvoke(call)):
        assert "green owl" in message.content
        assert [one.id for one in message.artifact] == [one.id for one in retriever.invoke(QUESTION)]
        assert message.artifact[0].metadata["score"] > 0


async def test_an_agent(retriever: TreeRetriever, recorder: Recorder) -> None:
    tool = create_retriever_tool(
        retriever, "search", "Search the zoo.", response_format="content_and_artifact"
    )
    for asynchronous in (False, True):
        call = {"name": "search", "args": {"query": QUESTION}, "id": "1"}
        said = iter([AIMessage("", tool_calls=[call]), AIMessage("In house 10.")])
        agent = create_agent(Caller(messages=said), [tool])
        asked: Any = {"messages": [("user", QUESTION)]}
        told: Any = {"callbacks": [recorder]}
        done = await agent.ainvoke(asked, told) if asynchronous else agent.invoke(asked, told)
        [result] = [one for one in done["messages"] if isinstance(one, ToolMessage)]
        assert "house 10" in str(result.content)
        assert result.artifact[0].id == "green-owl"
        assert done["messages"][-1].content == "In house 10."
    assert recorder.events == [("start", QUESTION), ("end", QUESTION)] * 2


def test_documents_are_equal_whatever_was_asked(retriever: TreeRetriever) -> None:
    """Results of several queries are merged by equality, as MultiQueryRetriever does."""
    asked = ["green owl", QUESTION]
    plain = TreeRetriever.from_index(retriever.index)
    found = [document for documents in plain.batch(asked) for document in documents]
    unique = [document for place, document in enumerate(found) if document not in found[:place]]
    assert len(unique) == len({document.id for document in found}) < len(found)


def test_classic_retrievers(retriever: TreeRetriever, model: TreeModel) -> None:
    classic = pytest.importorskip("langchain_classic.retrievers")
    plain, coarse = (TreeRetriever.from_index(retriever.index, level=level) for level in (None, 1))

    merged = classic.EnsembleRetriever(retrievers=[plain, coarse], weights=[0.5, 0.5]).invoke(QUESTION)
    assert len({document.id for document in merged}) == len(merged) >= 4

    asked = RunnableLambda(lambda _: [QUESTION, "green owl"])
    several = classic.MultiQueryRetriever(retriever=plain, llm_chain=asked).invoke(QUESTION)
    assert len({document.id for document in several}) == len(several) < 8

    reranker = PalmetteReranker(model=model, top_n=2, lexical=0)
    pipeline = classic.ContextualCompressionRetriever(
        base_compressor=reranker, base_retriever=coarse.bind(k=48)
    )
    expected = retriever.index.search(QUESTION, 2, lexical=0)  # equal scores may stand in either order
    assert [one.metadata["relevance_score"] for one in pipeline.invoke(QUESTION)] == [
        hit.score for hit in expected
    ]


def test_tracing_names(retriever: TreeRetriever, folder: Any, recorder: Recorder) -> None:
    retriever.invoke(QUESTION, {"callbacks": [recorder]})
    told = recorder.told[0]["metadata"]
    assert told["ls_retriever_name"] == "palmette_tree"
    assert told["ls_vector_store_provider"] == "palmette"
    assert told["ls_embedding_model"] == "fake:48:3"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("fake:48:3", "fake:48:3"),
        ("/home/someone/models/minilm", "minilm"),
        ("./minilm", "minilm"),
        ("~/minilm", "minilm"),
        (r"C:\models\minilm", "minilm"),
        ("a/b/minilm", "minilm"),
    ],
)
def test_traces_have_no_local_paths(name: str, shown: str) -> None:
    assert public_name(name) == shown


def test_traces_have_no_existing_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private/minilm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert public_name("private/minilm") == "minilm"
