"""The retriever inside LlamaIndex's own machines, and engines that answer with no LLM."""

from __future__ import annotations

import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import ExplainedNode, PalmetteQuery, PalmetteSynthesizer, TreeRetriever
from palmette.errors import ConfigError
from palmette.reader import Reader
from support import readers, tiny

QUESTION = "where does the owl live in the forest"


@pytest.fixture
def llm():
    return MockLLM()


async def test_as_query_engine(retriever, llm):
    engine = retriever.as_query_engine(llm)
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert "the owl lives in the forest" in str(response)
        assert response.source_nodes == retriever.retrieve(QUESTION)
    alone = retriever.as_query_engine(response_synthesizer=get_response_synthesizer(llm=llm))
    assert str(alone.query(QUESTION)) == str(response), "no LLM is looked for"


def test_as_chat_engine(retriever, llm):
    for mode in ("best", "context", "condense_plus_context", "condense_question"):
        engine = retriever.as_chat_engine(mode, llm, memory=ChatMemoryBuffer.from_defaults(llm=llm))
        assert engine.chat(QUESTION).source_nodes == retriever.retrieve(QUESTION)
    with pytest.raises(ConfigError, match="chat mode 'simple'"):
        retriever.as_chat_engine("simple", llm)


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"])
async def test_fusion(shared_index, llm, mode):
    both = [TreeRetriever(shared_index, level=level, similarity_top_k=8, explain=True) for level in (1, None)]
    before = [one.retrieve(QUESTION) for one in both]
    fusion = QueryFusionRetriever(both, llm=llm, num_queries=1, mode=mode, use_async=False, similarity_top_k=100)
    for fused in (fusion.retrieve(QUESTION), await fusion.aretrieve(QUESTION)):
        ids = [result.node_id for result in fused]
        assert sorted(ids) == sorted({r.node_id for some in before for r in some}), "none twice, none lost"
        assert len(ids) < 16
        assert all(isinstance(result, ExplainedNode) for result in fused)
    assert [one.retrieve(QUESTION) for one in both] == before
    results = await fusion.aretrieve(PalmetteQuery(QUESTION, filters={"animal": "hen"}))
    assert {result.node.metadata["animal"] for result in results} == {"hen"}


ASKED = "where does the green owl live?"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return readers.sentence_reader()


@pytest.fixture(scope="module")
def animals() -> TreeRetriever:
    nodes = [TextNode(id_=f"n{n}", text=text, metadata={"n": n}) for n, text in enumerate(readers.texts())]
    return TreeRetriever.from_documents(nodes, tiny.tree(), similarity_top_k=4)


@pytest.fixture(autouse=True)
def no_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for an LLM fails."""

    def refuse(settings: object) -> None:
        raise AssertionError("the settings were asked for an LLM")

    monkeypatch.setattr(type(Settings), "llm", property(refuse))


async def test_an_engine_answers_and_keeps_its_sources(reader: Reader, animals: TreeRetriever) -> None:
    engine = RetrieverQueryEngine(animals, response_synthesizer=PalmetteSynthesizer(reader, threshold=0))
    response = engine.query(ASKED)
    assert response.source_nodes == animals.retrieve(ASKED)
    expected = reader.answer(ASKED, [scored.node.get_content() for scored in response.source_nodes], threshold=0)
    assert expected
    assert str(response) == expected.text
    told = response.metadata["answer"]
    assert told["confidence"] == pytest.approx(expected.confidence)
    source = response.source_nodes[told["supports"][0]["passage"]]
    assert told["supports"][0]["id"] == source.node_id
    assert response.metadata[source.node_id] == source.metadata
    later = await engine.aquery(ASKED)
    assert (str(later), later.metadata) == (str(response), response.metadata)


async def test_no_answer_is_said(reader: Reader, animals: TreeRetriever) -> None:
    synthesizer = PalmetteSynthesizer(reader, no_answer="Ask me something else.")
    response = RetrieverQueryEngine(animals, response_synthesizer=synthesizer).query("who invented the telephone?")
    assert str(response) == "Ask me something else."
    assert response.metadata["answer"]["supports"] == []
    assert len(response.source_nodes) == 4
    assert synthesizer.get_response(ASKED, []) == await synthesizer.aget_response(ASKED, []) == str(response)
    always = PalmetteSynthesizer(reader, threshold=0)
    assert always.get_response(ASKED, readers.texts()) in readers.texts()[10]


def test_from_a_checkpoint_with_callbacks(reader: Reader, animals: TreeRetriever, tmp_path) -> None:
    handler, folder = LlamaDebugHandler(print_trace_on_end=False), reader.save_pretrained(tmp_path / "reader")
    synthesizer = PalmetteSynthesizer(folder, callback_manager=CallbackManager([handler]))
    nodes = animals.retrieve(ASKED)
    response = synthesizer.synthesize(ASKED, nodes, additional_source_nodes=nodes[:1])
    assert len(response.source_nodes) == 5
    [(start, end)] = handler.get_event_pairs(CBEventType.SYNTHESIZE)
    assert start.payload["query_str"] == ASKED
    assert end.payload["response"] is response
    assert synthesizer.get_prompts() == {}
