"""With an agent, and merged with others; a reader, which answers with no language model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import create_retriever_tool

from langchain_palmette import PalmetteEmbeddings, PalmetteReader, PalmetteReranker, TreeRetriever
from palmette import FakeEncoder, TreeModel
from palmette.errors import ConfigError, InputError
from palmette.index.frameworks import public_name
from palmette.reader import Reader
from support import readers
from support.recorder import Recorder

QUESTION = "The green owl lives in house 10 and sings at night."


class Caller(GenericFakeChatModel):
    """Says what it is told, tool calls included."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        return self


async def test_an_agent_with_a_tool(retriever: TreeRetriever, recorder: Recorder) -> None:
    tool = create_retriever_tool(retriever, "search", "Search the zoo.", response_format="content_and_artifact")
    for asynchronous in (False, True):
        call = {"name": "search", "args": {"query": QUESTION}, "id": "1"}
        said = iter([AIMessage("", tool_calls=[call]), AIMessage("In house 10.")])
        agent = create_agent(Caller(messages=said), [tool])
        asked: Any = {"messages": [("user", QUESTION)]}
        told: Any = {"callbacks": [recorder]}
        done = await agent.ainvoke(asked, told) if asynchronous else agent.invoke(asked, told)
        [result] = [one for one in done["messages"] if isinstance(one, ToolMessage)]
        assert "house 10" in str(result.content)
        assert result.artifact == retriever.invoke(QUESTION)
        assert done["messages"][-1].content == "In house 10."
    assert recorder.events == [("start", QUESTION), ("end", QUESTION)] * 2


def test_classic_retrievers(retriever: TreeRetriever, model: TreeModel) -> None:
    classic = pytest.importorskip("langchain_classic.retrievers")
    plain, coarse = (TreeRetriever.from_index(retriever.index, level=level) for level in (None, 1))

    merged = classic.EnsembleRetriever(retrievers=[plain, coarse], weights=[0.5, 0.5]).invoke(QUESTION)
    assert len({document.id for document in merged}) == len(merged) >= 4

    asked = RunnableLambda(lambda _: [QUESTION, "green owl"])  # results are merged by equality
    several = classic.MultiQueryRetriever(retriever=plain, llm_chain=asked).invoke(QUESTION)
    assert len({document.id for document in several}) == len(several) < 8

    reranker = PalmetteReranker(model=model, top_n=2, lexical=0)
    parts = {"base_compressor": reranker, "base_retriever": coarse.bind(k=48)}
    found = classic.ContextualCompressionRetriever(**parts).invoke(QUESTION)
    expected = retriever.index.search(QUESTION, 2, lexical=0)  # equal scores may stand in either order
    assert [one.metadata["relevance_score"] for one in found] == [hit.score for hit in expected]


def test_traces_have_no_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sentence-transformers/all-MiniLM-L6-v2", "fake:48:3"):
        assert public_name(name) == name
    (tmp_path / "private/minilm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    local = ["/home/someone/models/minilm", "./minilm", "~/minilm", r"C:\models\minilm", "a/b/minilm", "private/minilm"]
    assert {public_name(name) for name in local} == {"minilm"}


ASKED = "where does the green owl live?"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return readers.sentence_reader()


@pytest.fixture
def found() -> list[Document]:
    return [Document(page_content=text, metadata={"when": object()}) for text in readers.texts()[8:12]]


async def test_sync_async_and_batch_agree(reader: Reader, found: list[Document]) -> None:
    answering = PalmetteReader(reader=reader)
    asked = [{"question": ASKED, "documents": found}, {"question": "the red cat?", "documents": []}]
    one = [answering.invoke(each) for each in asked]
    assert await answering.ainvoke(asked[0]) == one[0]
    assert answering.batch(asked) == await answering.abatch(asked) == one
    assert one[1]["answer"] is None
    broken = answering.batch([asked[0], {"question": ASKED}], return_exceptions=True)
    assert broken[0] == one[0]
    assert isinstance(broken[1], InputError)
    with pytest.raises(InputError, match="'documents'"):
        await answering.abatch([asked[0], {"question": ASKED}])


def test_copies_and_other_keys(reader: Reader, found: list[Document], tmp_path: Path) -> None:
    path = reader.save_pretrained(tmp_path / "reader")
    answering = PalmetteReader(reader=path, question_key="input", documents_key="context", output="text")
    asked = {"input": ASKED, "context": found}
    again = PalmetteReader(**answering.model_dump())
    for other in (copy.deepcopy(answering), again, answering.with_config(tags=["x"])):
        assert other.invoke(asked) == answering.invoke(asked) != "I found no answer."
    assert str(path) in dumps(answering)
    unknown = {"input": "who invented the telephone?", "context": found}
    assert answering.invoke(unknown) == "I found no answer."
    assert PalmetteReader(**answering.model_dump() | {"no_answer": "?"}).invoke(unknown) == "?"


TEXTS = ["a green owl", "the red cat at night", "white fox"]


def test_an_encoder_or_a_model_by_name_or_object(model: TreeModel, checkpoint: Path) -> None:
    expected = model.encoder.plain.encode(TEXTS).tolist()
    checkpointed: dict[str, Any] = {"model": checkpoint, "device": "cpu", "batch_size": 2}
    for given in ({"encoder": "fake:48"}, {"encoder": FakeEncoder(48)}, checkpointed, {"model": model}):
        embeddings = PalmetteEmbeddings(**given)
        assert embeddings.embed_documents(TEXTS) == expected
        assert embeddings.embed_query(TEXTS[0]) == pytest.approx(expected[0])
        assert embeddings.embed_documents([]) == []


async def test_reranked_documents_are_copies(model: TreeModel, checkpoint: Path) -> None:
    same = [Document(id=str(i), page_content="a green owl", metadata={"when": object()}) for i in range(5)]
    found = PalmetteReranker(model=checkpoint, top_n=3, score_key=None).compress_documents(same, QUESTION)
    assert found == same[:3]
    assert all(one is not other for one in found for other in same)
    reranker = PalmetteReranker(model=model, top_n=9)
    assert len(reranker.compress_documents(same, QUESTION)) == 5
    assert await reranker.acompress_documents(same, QUESTION) == reranker.compress_documents(same, QUESTION)
    with pytest.raises(ConfigError, match="levle"):
        PalmetteReranker(model=model, search_options={"levle": 1}).compress_documents(same, QUESTION)
    with pytest.raises(InputError, match="query"):
        reranker.compress_documents(same, "")
