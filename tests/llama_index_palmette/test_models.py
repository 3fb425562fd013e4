"""Embedding, reranker and nodes with fields (tests/adapters has what both frameworks do)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index.retrievers.palmette import MultiFieldRetriever, PalmetteEmbedding, PalmetteRerank
from palmette import Index
from palmette.errors import InputError
from support import shop

TEXTS = ["the owl in the forest", "the fox by the river", "a hen"]
QUESTION = "where does the owl live in the forest"


@pytest.fixture
def candidates(nodes):
    return [NodeWithScore(node=node, score=0.5) for node in reversed(nodes)]


async def test_rerank_leaves_what_it_was_given(model, candidates):
    rerank = PalmetteRerank(model, top_n=3, level=2)
    kept = rerank.postprocess_nodes(candidates, query_str=QUESTION)
    assert await rerank.apostprocess_nodes(candidates, query_str=QUESTION) == kept
    with pytest.raises(InputError, match="query"):
        rerank.postprocess_nodes(candidates)
    long = NodeWithScore(node=TextNode(id_="long", text="owl", metadata={"n": 10**5000}))
    with pytest.raises(InputError, match="'long' cannot be written as text"):
        rerank.postprocess_nodes([long], query_str=QUESTION)
    assert {candidate.score for candidate in candidates} == {0.5}
    for result in kept:
        [given] = [candidate for candidate in candidates if candidate.node_id == result.node_id]
        assert result is not given
        assert result.node is given.node


def test_events_tell_what_is_done_and_show_no_local_path(model, candidates, tmp_path):
    folder, debug = model.save_pretrained(tmp_path / "ckpt"), LlamaDebugHandler(print_trace_on_end=False)
    embedding = PalmetteEmbedding(folder, callback_manager=CallbackManager([debug]))
    assert embedding.to_payload()["model_name"] == "ckpt"
    embedding.get_text_embedding_batch(TEXTS)
    embedding.get_query_embedding(QUESTION)
    rerank = PalmetteRerank(folder, callback_manager=CallbackManager([debug]))
    kept = rerank.postprocess_nodes(candidates, query_str=QUESTION)
    [(start, end)] = debug.get_event_pairs(CBEventType.RERANKING)
    assert (start.payload["top_k"], end.payload["nodes"]) == (2, kept)
    shown = [event.payload for pair in debug.get_event_pairs() for event in pair if event.payload]
    assert len(shown) >= 6
    assert str(tmp_path) not in str(shown)


NODES = [TextNode(id_=d.key, text=d.text, metadata={**d.metadata, **d.fields}) for d in shop.shop()]


def found(nodes: Any) -> list[tuple[str, float]]:
    return [(scored.node_id, scored.score) for scored in nodes]


def test_metadata_are_read_once() -> None:
    """A node's text without the metadata that LlamaIndex puts before it: those are fields of their own."""
    model = shop.quick()
    plain = [replace(d, metadata={**d.metadata, **d.fields}, fields={}) for d in shop.shop()]
    retriever = MultiFieldRetriever.from_documents(NODES, model, similarity_top_k=5)
    (seventh,) = retriever.index.get(["7"])
    texts = ["blue", "fox 7", shop.shop()[7].text]
    assert model.extractor.read(seventh) == model.extractor.read(plain[7]) == texts
    expected = [(hit.id, hit.score) for hit in Index.build(plain, model).search("golden owl 22", k=5)]
    results = retriever.retrieve("golden owl 22")
    assert found(results) == [(id, pytest.approx(score, abs=1e-6)) for id, score in expected]
    given = next(node for node in NODES if node.node_id == results[0].node_id)
    assert results[0].node.metadata.items() > given.metadata.items()
    assert results[0].node.metadata["citation"] == given.node_id
    ranked = PalmetteRerank(model, top_n=5, lexical=0).postprocess_nodes(results, query_str="golden owl 22")
    scores = model.score("golden owl 22", [plain[int(n.node_id)] for n in ranked], lexical=0)
    assert [n.score for n in ranked] == pytest.approx(scores, abs=1e-6)


def test_several_texts_of_a_query_are_one_question() -> None:
    """As LlamaIndex's HyDE asks: with the texts that an answer might have, and the question."""
    how: Any = {"similarity_top_k": 3, "by": "best", "lexical": 0}
    retriever = MultiFieldRetriever.from_documents(NODES, shop.quick(), **how)
    texts = ["a golden owl of brass", "golden owl 22"]
    bundle = QueryBundle("golden owl 22", custom_embedding_strs=texts)
    nodes = retriever.retrieve(bundle)
    [expected] = retriever.index.search([tuple(texts)], 3, by="best", lexical=0)
    assert found(nodes) == [(hit.id, pytest.approx(hit.score)) for hit in expected]
    assert retriever.explain(bundle, nodes[0].node_id).score == pytest.approx(nodes[0].score, abs=1e-6)
    first, _, last = retriever.retrieve_batch([bundle, "golden owl 22", bundle])
    assert [n.node_id for n in first] == [n.node_id for n in last] == [hit.id for hit in expected]
