"""A query engine that answers with no LLM."""

from __future__ import annotations

import pytest
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import PalmetteSynthesizer, TreeRetriever
from palmette.reader import Reader
from support import readers, tiny

QUESTION = "where does the green owl live?"


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
    response = engine.query(QUESTION)
    expected = reader.answer(
        QUESTION, [scored.node.get_content() for scored in response.source_nodes], threshold=0
    )
    assert expected
    assert str(response) == expected.text
    assert [scored.node_id for scored in response.source_nodes] == [
        s.node_id for s in animals.retrieve(QUESTION)
    ]
    told = response.metadata["answer"]
    assert told["confidence"] == pytest.approx(expected.confidence)
    best = told["supports"][0]
    assert response.source_nodes[best["passage"]].node_id == best["id"]
    assert response.metadata[best["id"]] == response.source_nodes[best["passage"]].metadata
    later = await engine.aquery(QUESTION)
    assert (str(later), later.metadata) == (str(response), response.metadata)


async def test_no_answer_is_said(reader: Reader, animals: TreeRetriever) -> None:
    synthesizer = PalmetteSynthesizer(reader, no_answer="Ask me something else.")
    response = RetrieverQueryEngine(animals, response_synthesizer=synthesizer).query(
        "who invented the telephone?"
    )
    assert str(response) == "Ask me something else."
    assert response.metadata["answer"]["supports"] == []
    assert len(response.source_nodes) == 4
    assert (
        synthesizer.get_response(QUESTION, [])
        == await synthesizer.aget_response(QUESTION, [])
        == str(response)
    )
    assert (
        PalmetteSynthesizer(reader, threshold=0).get_response(QUESTION, readers.texts())
        in readers.texts()[10]
    )


def test_from_a_checkpoint_with_callbacks(reader: Reader, animals: TreeRetriever, tmp_path) -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    synthesizer = PalmetteSynthesizer(
        reader.save_pretrained(tmp_path / "reader"), callback_manager=CallbackManager([handler])
    )
    nodes = animals.retrieve(QUESTION)
    response = synthesizer.synthesize(QUESTION, nodes, additional_source_nodes=nodes[:1])
    assert len(response.source_nodes) == 5
    ((start, end),) = handler.get_event_pairs(CBEventType.SYNTHESIZE)
    assert start.payload["query_str"] == QUESTION
    assert end.payload["response"] is response
    assert synthesizer.get_prompts() == {}
