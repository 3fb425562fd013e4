"""A second stage through either framework is that of the index."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from palmette.errors import ConfigError
from palmette.ranking.second_stage import Reranker
from support import tiny

QUESTION = "The green owl lives in house 10 and sings at night."


def reds(question: str, texts: Sequence[str]) -> list[float]:
    return [float("red" in text) for text in texts]


def test_a_reranker_of_any_kind_is_the_indexs(framework: Any) -> None:
    retriever = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), k=4)
    reranker = Reranker(reds, weight=9, within=99)
    expected = [hit.id for hit in retriever.index.search(QUESTION, 4, rerank=reranker)]
    assert any(id.startswith("red") for id in expected)
    assert expected != [one.id for one in framework.ask(retriever, QUESTION)]
    over = framework.over("TreeRetriever", retriever.index, k=4, rerank=reranker)
    for one in (over, copy.deepcopy(over)):
        assert [found.id for found in framework.ask(one, QUESTION)] == expected
    plain = framework.over("TreeRetriever", retriever.index, k=4, rerank=reds)
    found = [(one.id, one.score) for one in framework.ask(plain, QUESTION, explain=True)]
    assert found == [(hit.id, hit.score) for hit in retriever.index.search(QUESTION, 4, rerank=reds)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        broken = Reranker(lambda question, texts: [], within=99)
        cut = framework.over("TreeRetriever", retriever.index, k=4, rerank=broken)
        assert len(framework.ask(cut, QUESTION)) == 4
    assert "first stage" in str(told[-1].message)
    with pytest.raises(ConfigError, match="cross-encoder:FOLDER"):
        framework.ask(framework.over("TreeRetriever", retriever.index, rerank="a-model"), QUESTION)


def test_an_explanation_of_a_node_has_the_score_of_its_search() -> None:
    from llama_index.retrievers.palmette import PalmetteRetriever
    from palmette import Index

    with Index.build(tiny.documents(), tiny.space(), progress=False) as index:
        retriever = PalmetteRetriever(index, rerank=Reranker(reds, weight=9, within=99), similarity_top_k=4)
        for node in retriever.retrieve(QUESTION):
            explanation = retriever.explain(QUESTION, node.node_id)
            assert explanation.score == pytest.approx(node.score, rel=1e-4)
            assert "reranker" in [part.name for part in explanation.parts]


def test_an_embedding_is_searched_by_the_first_stage() -> None:
    from llama_index.core.schema import QueryBundle

    from llama_index.retrievers.palmette import PalmetteRetriever
    from palmette import Index

    with Index.build(tiny.documents(), tiny.space(), progress=False) as index:
        vector = index.model.encoder.encode_queries([QUESTION])[0].tolist()
        asked = QueryBundle(QUESTION, embedding=vector)
        found = [
            [one.node_id for one in PalmetteRetriever(index, rerank=how).retrieve(asked)]
            for how in (Reranker(reds, weight=9, within=99), None)
        ]
        assert found[0] == found[1]
