"""Embedding and reranker."""

import asyncio

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index.retrievers.palmette import PalmetteEmbedding, PalmetteRerank
from palmette import Model, TreeModel
from palmette.errors import ConfigError, InputError

TEXTS = ["the owl in the forest", "the fox by the river", "a hen"]
QUESTION = "where does the owl live in the forest"


def test_encoder_vectors(model):
    embedding = PalmetteEmbedding(model)
    assert isinstance(embedding, BaseEmbedding)
    vectors = embedding.get_text_embedding_batch(TEXTS)
    np.testing.assert_allclose(vectors, model.encoder.plain.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        embedding.get_query_embedding(QUESTION), model.encoder.plain.encode_queries([QUESTION])[0]
    )
    assert type(vectors) is list
    assert {type(value) for vector in vectors for value in vector} == {float}


@pytest.mark.parametrize("level", [1, 2, 4])
def test_level_probabilities(model, retriever, level):
    embedding = PalmetteEmbedding(model, representation="probabilities", level=level)
    query, *documents = np.array(
        [embedding.get_query_embedding(QUESTION), *embedding.get_text_embedding_batch(TEXTS)]
    )
    assert query.shape == (2**level,)
    np.testing.assert_allclose([query.sum(), *(d.sum() for d in documents)], 1, atol=1e-5)
    hits = retriever.index.search(QUESTION, lexical=0, level=level)
    for text, score in ((hit.document.text, hit.evidence["own"]) for hit in hits):
        assert np.minimum(query, embedding.get_text_embedding(text)).sum() == pytest.approx(score, abs=1e-5)


def test_roots_are_the_models_own(model):
    roots = PalmetteEmbedding(model, representation="sqrt_probabilities").get_text_embedding_batch(TEXTS)
    np.testing.assert_allclose(roots, model.embed(TEXTS, kind="document", sqrt=True), atol=1e-6)


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


def test_bad_embedding_options(model):
    with pytest.raises(ConfigError, match="level"):
        PalmetteEmbedding(model, representation="probabilities", level=9)
    with pytest.raises(ConfigError, match="needs representation"):
        PalmetteEmbedding(model, level=2)
    with pytest.raises(ConfigError, match="'leaves'"):
        PalmetteEmbedding(model, representation="leaves")
    with pytest.raises(ConfigError, match="lvel"):
        PalmetteEmbedding(model, lvel=2)


def test_a_model_without_levels_is_refused(model):
    class Plain(TreeModel):
        embed = Model.embed

    plain = Plain(model.config, model.encoder, model.module)
    assert PalmetteEmbedding(plain).get_query_embedding(QUESTION)
    for representation in ("probabilities", "sqrt_probabilities"):
        with pytest.raises(ConfigError, match="no option 'level'"):
            PalmetteEmbedding(plain, representation=representation)


@pytest.fixture
def candidates(nodes):
    return [NodeWithScore(node=node, score=0.5) for node in reversed(nodes)]


async def test_rerank_is_the_retrievers_order(model, shared_index, candidates):
    rerank = PalmetteRerank(model, top_n=4, lexical=0)
    assert isinstance(rerank, BaseNodePostprocessor)
    kept = rerank.postprocess_nodes(candidates, QueryBundle(QUESTION))
    hits = shared_index.search(QUESTION, k=4, lexical=0)
    assert [result.node_id for result in kept] == [hit.id for hit in hits]
    assert [result.score for result in kept] == pytest.approx([hit.score for hit in hits], abs=1e-6)
    assert {type(result.score) for result in kept} == {float}
    assert await rerank.apostprocess_nodes(candidates, query_str=QUESTION) == kept


def test_rerank_counts_words_too(model, candidates):
    part = NodeWithScore(node=TextNode(text="Spare part dv7-1211ea."))
    kept = PalmetteRerank(model, top_n=1, lexical=1).postprocess_nodes(
        [*candidates, part], query_str="DV7-1211ea"
    )
    assert [result.node for result in kept] == [part.node]
    words = model.calibration(model.search_options({}), "auto").words
    learned, fixed = (
        PalmetteRerank(model, top_n=9, **how).postprocess_nodes(candidates, query_str=QUESTION)
        for how in ({}, {"lexical": words})
    )
    assert learned == fixed
    with pytest.raises(ConfigError, match="lexical"):
        PalmetteRerank(model, lexical=3)
    with pytest.raises(ConfigError, match="klingon"):
        PalmetteRerank(model, language="klingon")


def test_rerank_leaves_what_it_was_given(model, candidates):
    kept = PalmetteRerank(model, top_n=3, level=2).postprocess_nodes(candidates, query_str=QUESTION)
    assert {candidate.score for candidate in candidates} == {0.5}
    for result in kept:
        [given] = [candidate for candidate in candidates if candidate.node_id == result.node_id]
        assert result is not given
        assert result.node is given.node


def test_rerank_takes_nodes_that_are_alike(model):
    twins = [NodeWithScore(node=TextNode(text="an owl")), NodeWithScore(node=TextNode(text="an owl"))]
    assert len(PalmetteRerank(model, top_n=5).postprocess_nodes(twins, query_str="owl")) == 2
    assert PalmetteRerank(model).postprocess_nodes([], query_str="owl") == []


def test_rerank_puts_blank_nodes_last(model):
    given = [
        NodeWithScore(node=TextNode(id_=str(n), text=t)) for n, t in enumerate(["", TEXTS[0], " ", "a hen"])
    ]
    kept = PalmetteRerank(model, top_n=9).postprocess_nodes(given, query_str=QUESTION)
    whole = PalmetteRerank(model, top_n=9).postprocess_nodes([given[1], given[3]], query_str=QUESTION)
    assert kept[:2] == whole
    assert [result.node_id for result in kept[2:]] == ["0", "2"]
    assert all(result.score <= whole[-1].score for result in kept[2:])
    blank = PalmetteRerank(model, top_n=1).postprocess_nodes(given[::2], query_str=QUESTION)
    assert [result.node_id for result in blank] == ["0"]


def test_rerank_calls_back(model, candidates):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    rerank = PalmetteRerank(model, callback_manager=CallbackManager([debug]))
    kept = rerank.postprocess_nodes(candidates, query_str=QUESTION)
    [(start, end)] = debug.get_event_pairs(CBEventType.RERANKING)
    assert start.payload["top_k"] == 2
    assert end.payload["nodes"] == kept


def test_bad_rerank_options(model, candidates):
    with pytest.raises(ConfigError, match="top_n"):
        PalmetteRerank(model, top_n=0)
    with pytest.raises(ConfigError, match="leevl"):
        PalmetteRerank(model, leevl=2)
    with pytest.raises(InputError, match="query"):
        PalmetteRerank(model).postprocess_nodes(candidates)
