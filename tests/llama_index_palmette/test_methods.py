"""Nodes with fields (tests/adapters has what both frameworks do)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.schema import QueryBundle, TextNode

from llama_index.retrievers.palmette import MultiFieldRetriever, PalmetteRerank
from palmette import Index
from support import shop

NODES = [TextNode(id_=d.key, text=d.text, metadata={**d.metadata, **d.fields}) for d in shop.shop()]


def found(nodes: Any) -> list[tuple[str, float]]:
    return [(scored.node_id, scored.score) for scored in nodes]


def test_metadata_are_read_once() -> None:
    """A node's text without the metadata that LlamaIndex puts before it: those are fields of their own."""
    model = shop.model()
    plain = [replace(d, metadata={**d.metadata, **d.fields}, fields={}) for d in shop.shop()]
    retriever = MultiFieldRetriever.from_documents(NODES, model, similarity_top_k=5)
    (seventh,) = retriever.index.get(["7"])
    texts = ["blue", "fox 7", shop.shop()[7].text]
    assert model.extractor.read(seventh) == model.extractor.read(plain[7]) == texts
    expected = [(hit.id, hit.score) for hit in Index.build(plain, model).search("golden owl 22", k=5)]
    results = retriever.retrieve("golden owl 22")
    assert found(results) == [(id, pytest.approx(score, abs=1e-6)) for id, score in expected]
    assert results[0].node == next(node for node in NODES if node.node_id == results[0].node_id)
    ranked = PalmetteRerank(model, top_n=5, lexical=0).postprocess_nodes(results, query_str="golden owl 22")
    scores = model.score("golden owl 22", [plain[int(n.node_id)] for n in ranked], lexical=0)
    assert [n.score for n in ranked] == pytest.approx(scores, abs=1e-6)


def test_several_texts_of_a_query_are_one_question() -> None:
    """As LlamaIndex's HyDE asks: with the texts that an answer might have, and the question."""
    retriever = MultiFieldRetriever.from_documents(
        NODES, shop.model(), similarity_top_k=3, by="best", lexical=0
    )
    texts = ["a golden owl of brass", "golden owl 22"]
    bundle = QueryBundle("golden owl 22", custom_embedding_strs=texts)
    nodes = retriever.retrieve(bundle)
    [expected] = retriever.index.search([tuple(texts)], 3, by="best", lexical=0)
    assert found(nodes) == [(hit.id, pytest.approx(hit.score)) for hit in expected]
    assert retriever.explain(bundle, nodes[0].node_id).score == pytest.approx(nodes[0].score, abs=1e-6)
    first, _, last = retriever.retrieve_batch([bundle, "golden owl 22", bundle])
    assert [n.node_id for n in first] == [n.node_id for n in last] == [hit.id for hit in expected]
