"""Embedding and reranker."""

import asyncio

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.schema import NodeWithScore

from llama_index.retrievers.palmette import PalmetteEmbedding, PalmetteRerank
from palmette.errors import InputError

TEXTS = ["the owl in the forest", "the fox by the river", "a hen"]
QUESTION = "where does the owl live in the forest"


def test_an_embedding_of_the_framework_gives_lists_of_floats(model):
    embedding = PalmetteEmbedding(model)
    assert isinstance(embedding, BaseEmbedding)
    vectors = embedding.get_text_embedding_batch(TEXTS)
    assert type(vectors) is list
    assert {type(value) for vector in vectors for value in vector} == {float}


async def test_async_embedding(model):
    embedding = PalmetteEmbedding(model, representation="probabilities", level=3, embed_batch_size=2)
    assert await embedding.aget_query_embedding(QUESTION) == embedding.get_query_embedding(QUESTION)
    assert await embedding.aget_text_embedding(TEXTS[0]) == embedding.get_text_embedding(TEXTS[0])
    batch, again = await asyncio.gather(*(embedding.aget_text_embedding_batch(TEXTS) for _ in range(2)))
    np.testing.assert_allclose(batch, embedding.get_text_embedding_batch(TEXTS), atol=1e-6)
    assert batch == again


def test_embedding_describes_itself_for_caches(model):
    described = PalmetteEmbedding(model, representation="probabilities", level=3).to_dict()
    assert (described["level"], described["fingerprint"]) == (3, model.fingerprint)
    assert described["class_name"] == "PalmetteEmbedding"
    assert described != PalmetteEmbedding(model).to_dict()


def test_embedding_in_a_vector_index(model, nodes):
    index = VectorStoreIndex([node.model_copy() for node in nodes], embed_model=PalmetteEmbedding(model))
    [result] = index.as_retriever(similarity_top_k=1).retrieve("the owl lives in the forest")
    assert result.node_id == "owl-forest"


@pytest.fixture
def candidates(nodes):
    return [NodeWithScore(node=node, score=0.5) for node in reversed(nodes)]


async def test_rerank_leaves_what_it_was_given(model, candidates):
    rerank = PalmetteRerank(model, top_n=3, level=2)
    kept = rerank.postprocess_nodes(candidates, query_str=QUESTION)
    assert await rerank.apostprocess_nodes(candidates, query_str=QUESTION) == kept
    with pytest.raises(InputError, match="query"):
        rerank.postprocess_nodes(candidates)
    assert {candidate.score for candidate in candidates} == {0.5}
    for result in kept:
        [given] = [candidate for candidate in candidates if candidate.node_id == result.node_id]
        assert result is not given
        assert result.node is given.node


def test_rerank_calls_back(model, candidates):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    rerank = PalmetteRerank(model, callback_manager=CallbackManager([debug]))
    kept = rerank.postprocess_nodes(candidates, query_str=QUESTION)
    [(start, end)] = debug.get_event_pairs(CBEventType.RERANKING)
    assert start.payload["top_k"] == 2
    assert end.payload["nodes"] == kept


def test_events_show_no_local_path(model, candidates, tmp_path):
    folder, debug = model.save_pretrained(tmp_path / "ckpt"), LlamaDebugHandler(print_trace_on_end=False)
    embedding = PalmetteEmbedding(folder, callback_manager=CallbackManager([debug]))
    assert embedding.to_payload()["model_name"] == "ckpt"
    embedding.get_text_embedding_batch(TEXTS)
    embedding.get_query_embedding(QUESTION)
    rerank = PalmetteRerank(folder, callback_manager=CallbackManager([debug]))
    rerank.postprocess_nodes(candidates, query_str=QUESTION)
    shown = [event.payload for pair in debug.get_event_pairs() for event in pair if event.payload]
    assert len(shown) >= 6
    assert str(tmp_path) not in str(shown)
    for saved in (embedding, rerank):
        assert type(saved).from_dict(saved.to_dict())._model is saved._model
