"""The retriever inside LlamaIndex's own machines."""

import pytest
from llama_index.core import get_response_synthesizer
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.tools import RetrieverTool

from llama_index.retrievers.palmette import ExplainedNode, PalmetteQuery, PalmetteRerank, TreeRetriever
from palmette.errors import ConfigError

QUESTION = "where does the owl live in the forest"


@pytest.fixture
def llm():
    return MockLLM()


def query_engine(retriever, llm, **options):
    return RetrieverQueryEngine.from_args(
        retriever, response_synthesizer=get_response_synthesizer(llm=llm), llm=llm, **options
    )


async def test_query_engine(retriever, llm):
    engine = query_engine(retriever, llm)
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert "the owl lives in the forest" in str(response)
        assert response.source_nodes == retriever.retrieve(QUESTION)


def test_query_engine_passes_settings_and_explanations_through(shared_index, model, llm):
    engine = query_engine(
        TreeRetriever(shared_index, explain=True, lexical=0),
        llm,
        node_postprocessors=[
            SimilarityPostprocessor(similarity_cutoff=0.0),
            PalmetteRerank(model, top_n=3, lexical=0),
        ],
    )
    nodes = engine.query(PalmetteQuery(QUESTION, top_k=5, filters={"animal": "fox"})).source_nodes
    assert len(nodes) == 3
    for node in nodes:
        assert node.metadata["animal"] == "fox"
        assert isinstance(node, ExplainedNode)
        assert node.explanation.score == pytest.approx(node.score, abs=1e-6)


def test_as_query_engine(retriever, llm):
    response = retriever.as_query_engine(llm).query(QUESTION)
    assert response.source_nodes == retriever.retrieve(QUESTION)
    alone = retriever.as_query_engine(response_synthesizer=get_response_synthesizer(llm=llm))
    assert str(alone.query(QUESTION)) == str(response), "no LLM is looked for"


@pytest.mark.parametrize("mode", ["best", "context", "condense_plus_context", "condense_question"])
def test_as_chat_engine(retriever, llm, mode):
    memory = ChatMemoryBuffer.from_defaults(llm=llm)
    engine = retriever.as_chat_engine(mode, llm, memory=memory)
    assert engine.chat(QUESTION).source_nodes == retriever.retrieve(QUESTION)


def test_chat_modes_without_a_retriever_are_refused(retriever, llm):
    with pytest.raises(ConfigError, match="chat mode 'simple'"):
        retriever.as_chat_engine("simple", llm)


async def test_retriever_tool(retriever):
    tool = RetrieverTool.from_defaults(retriever, name="animals", description="Where animals live")
    for output in (tool.call(QUESTION), await tool.acall(QUESTION)):
        assert "the owl lives in the forest" in output.content
        assert "tags" not in output.content  # excluded for the LLM
        assert len(output.raw_output) == 3


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"])
@pytest.mark.parametrize("use_async", [True, False])
def test_fusion(shared_index, llm, mode, use_async):
    coarse = TreeRetriever(shared_index, level=1, similarity_top_k=8, explain=True)
    fine = TreeRetriever(shared_index, similarity_top_k=8, explain=True)
    before = [coarse.retrieve(QUESTION), fine.retrieve(QUESTION)]
    fusion = QueryFusionRetriever(
        [coarse, fine], llm=llm, num_queries=1, mode=mode, use_async=use_async, similarity_top_k=100
    )
    for _ in range(2):
        fused = fusion.retrieve(QUESTION)
        ids = [result.node_id for result in fused]
        assert sorted(ids) == sorted(
            {r.node_id for results in before for r in results}
        )  # none twice, none lost
        assert len(ids) < 16
        assert all(isinstance(result, ExplainedNode) for result in fused)
    assert [coarse.retrieve(QUESTION), fine.retrieve(QUESTION)] == before


async def test_fusion_passes_a_querys_settings_on(retriever, shared_index, llm):
    fusion = QueryFusionRetriever([retriever, TreeRetriever(shared_index, level=2)], llm=llm, num_queries=1)
    results = await fusion.aretrieve(PalmetteQuery(QUESTION, filters={"animal": "hen"}))
    assert {result.node.metadata["animal"] for result in results} == {"hen"}
