"""The second stage: a reranker's judgement as evidence of a search."""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.documents.compressor import BaseDocumentCompressor
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import ConfigError, InputError
from palmette.learning.reranking import weigh_reranker
from palmette.ranking.second_stage import HITS, MOST_LATE, Reranker, as_reranker, noting

QUESTION = "when are cherries pruned?"
COUNT = 30


def number_of(text: str) -> int:
    return int(text.rsplit(" ", 1)[1].rstrip("."))


def prefers_12(question: str, texts: Sequence[str]) -> list[float]:
    return [-abs(number_of(text) - 12.0) for text in texts]


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    texts = [f"Cherries are pruned in the summer of year {number}." for number in range(COUNT)]
    documents = [Document(str(number), text, {"odd": number % 2}) for number, text in enumerate(texts)]
    with Index.build(documents, SpaceModel.untrained(FakeEncoder(64)), progress=False) as built:
        yield built


def ids(hits: Sequence[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_a_judgement_is_evidence_that_adds_up_and_leaves_the_best_its_probability(index: Index) -> None:
    plain = index.search(QUESTION, COUNT)
    hits = index.search(QUESTION, COUNT, rerank=Reranker(prefers_12, weight=3, within=99), explain=True)
    judged = [hit for hit in hits if "rerank_score" in hit.evidence]
    assert {hit.id for hit in judged} == {*ids(plain[:HITS])}, "only the first hits are judged"
    assert number_of(hits[0].text) == min((number_of(hit.text) for hit in judged), key=lambda n: abs(n - 12))
    assert hits[0].score == pytest.approx(plain[0].score, rel=1e-4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        explanation = hit.explain()
        assert 1 / (1 + np.exp(-sum(part.value for part in explanation.parts))) == pytest.approx(hit.score, rel=1e-3)
        [part] = [part for part in explanation.parts if part.name == "reranker"]
        assert part.value == pytest.approx(hit.evidence["rerank"], abs=1e-5)
        assert part.detail["model"] == "prefers_12"
    assert "reranker +" in hits[0].explain().text
    shown = index.search(QUESTION, COUNT, rerank=Reranker(prefers_12, weight=3, within=99), threshold=hits[4].score)
    assert ids(shown) == ids(hits[:5])


@pytest.mark.parametrize("how", [{}, {"lexical": 0}, {"lexical": 0, "sentences": False}, {"boost": {"odd": {1: 0.5}}}])
def test_every_way_to_search_counts_it_alike(index: Index, how: dict[str, Any]) -> None:
    reranker = Reranker(prefers_12, weight=3, within=99)
    hits = index.search(QUESTION, 8, rerank=reranker, **how)
    assert ids(index.search(QUESTION, 3, rerank=reranker, **how)) == ids(hits[:3])
    assert index.rank([QUESTION], 8, rerank=reranker, **how).ids[0] == ids(hits)
    assert ids(index.search(QUESTION, 8, rerank=reranker, group_by="document", **how)) == ids(hits)
    assert ids(index.search(QUESTION, 8, rerank=reranker, distinct=True, **how)) == ids(hits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_reranker", reranker)
        assert ids(index.search(QUESTION, 8, **how)) == ids(hits)
        assert ids(index.filtered({"odd": {"$gte": 0}}).search(QUESTION, 1, **how)) == ids(hits[:1])
        assert ids(index.search(QUESTION, 8, rerank=False, **how)) == ids(
            index.search(QUESTION, 8, rerank=False, **how)
        )
    assert ids(index.search(QUESTION, 8, rerank=Reranker(prefers_12, weight=0), **how)) == ids(
        index.search(QUESTION, 8, **how)
    )


@pytest.mark.parametrize("how", [{}, {"filter": {"odd": 1}}, {"lexical": 0}, {"boost": {"odd": {1: 0.5}}}])
def test_an_explanation_has_the_sum_of_the_search(index: Index, how: dict[str, Any]) -> None:
    reranker = Reranker(prefers_12, weight=3, hits=6, within=99)
    hits = index.search(QUESTION, 12, rerank=reranker, explain=True, **how)
    for rerank in (
        reranker,
        Reranker(lambda question, texts: prefers_12(question, texts), weight=3, hits=6, within=99),
    ):
        for hit in hits:  # the second reranker has judged nothing yet
            found = index.explain(QUESTION, hit.id, rerank=rerank, **how)
            assert found.score == pytest.approx(hit.score, rel=1e-5)
            for ours, of_search in zip(found.parts, hit.explain().parts, strict=True):
                assert (ours.name, ours.value) == (of_search.name, pytest.approx(of_search.value, abs=1e-5))
    plain = {hit.id: hit.score for hit in index.search(QUESTION, COUNT, **how)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_reranker", reranker)
        assert index.explain(QUESTION, hits[0].id, **how).parts[-1].name == "reranker"
        assert index.explain(QUESTION, hits[0].id, rerank=False, **how).score == pytest.approx(plain[hits[0].id])
    with noting() as notes, pytest.warns(UserWarning, match="the cable is cut"):
        found = index.explain(QUESTION, hits[0].id, rerank=fails, **how)
    assert found.score == pytest.approx(plain[hits[0].id])
    assert notes.keys() == {QUESTION}


def test_passages_of_a_group_keep_the_judgement_and_contexts_follow_it() -> None:
    text = "\n\n".join(f"# Part {n}\n\nCherries are pruned. {'Filler. ' * 60}Number {n}" for n in range(6))
    documents = [Document("long", text), Document("short", "Plums are pruned. Number 99")]
    encoder = FakeEncoder(64)
    with Index.build(documents, SpaceModel.untrained(encoder), passages={"tokens": 80}, progress=False) as index:
        reranker = Reranker(lambda question, texts: [float("Number 4" in text) for text in texts], weight=5, within=99)
        [first, *_] = index.search("cherries pruned", 2, group_by="document", rerank=reranker)
        assert "Number 4" in first.text
        assert first.evidence["rerank"] > 0 > first.others[0].evidence["rerank"]
        plain, reranked = (index.context("cherries pruned", 60, k=1, rerank=how) for how in (False, reranker))
        assert "Number 4" in str(reranked)
        assert str(plain) != str(reranked)


def test_nothing_is_asked_where_the_order_is_decided_and_nothing_twice(index: Index) -> None:
    calls: list[tuple[str, int]] = []

    def counts(question: str, texts: Sequence[str]) -> list[float]:
        calls.append((question, len(texts)))
        return prefers_12(question, texts)

    index.search(QUESTION, 5, rerank=Reranker(counts, within=0))
    assert all(size < HITS for _, size in calls)
    calls.clear()
    reranker = Reranker(counts, hits=6, within=99)
    for k in (1, 5, 20):
        index.search(QUESTION, k, rerank=reranker, group_by="document")
    assert calls == [(QUESTION, 6)]
    index.search(QUESTION, 5, rerank=reranker.replace(hits=8))
    index.search(QUESTION, 5, rerank={"model": counts, "within": 99, "hits": 10})
    assert [size for _, size in calls] == [6, 2, 2], "scores are kept for as long as the model lives"
    calls.clear()
    index.search("zebra", 5, filter={"odd": 1}, rerank=reranker, threshold=0.99)
    assert len(calls) <= 1


def fails(question: str, texts: Sequence[str]) -> list[float]:
    raise OSError("the cable is cut")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (fails, "OSError: the cable is cut"),
        (lambda question, texts: [float("nan")] * len(texts), "finite number"),
        (lambda question, texts: [1.0], "number for each"),
        (lambda question, texts: None, "number for each"),
        (lambda question, texts: ["a"] * len(texts), "number for each"),
        (lambda question, texts: [float("inf")] * len(texts), "finite number"),
        (lambda question, texts: [1e300 * (-1) ** row for row in range(len(texts))], "finite number"),
    ],
)
def test_without_usable_scores_the_first_stage_answers_and_says_so(index: Index, model: Any, told: str) -> None:
    with noting() as notes, pytest.warns(UserWarning, match=told):
        hits = index.search([QUESTION, "plums"], 5, rerank=model)
    assert [ids(one) for one in hits] == [ids(one) for one in index.search([QUESTION, "plums"], 5)]
    assert [hit.score for hit in hits[0]] == [hit.score for hit in index.search(QUESTION, 5)]
    assert notes.keys() == {QUESTION, "plums"}
    assert all("first stage" in note for note in notes.values())
    assert "rerank" not in hits[0][0].evidence


def test_a_late_judgement_is_left_and_kept_for_the_next_time(index: Index) -> None:
    free, asked = threading.Event(), []

    def slow(question: str, texts: Sequence[str]) -> list[float]:
        asked.append(question)
        free.wait(20)
        return prefers_12(question, texts)

    reranker = Reranker(slow, seconds=0.05, weight=3, within=99)
    with pytest.warns(UserWarning, match=r"no scores within 0\.05 s"):
        assert ids(index.search(QUESTION, 5, rerank=reranker)) == ids(index.search(QUESTION, 5))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        index.search([f"question {number}" for number in range(MOST_LATE + 3)], 5, rerank=reranker)
    assert any("still busy with 4 earlier" in str(one.message) for one in told), "further ones are not begun"
    free.set()
    end = time.monotonic() + 20
    while len(asked) < MOST_LATE and time.monotonic() < end:
        time.sleep(0.01)
    expected = ids(index.search(QUESTION, 5, rerank=Reranker(prefers_12, weight=3, within=99)))
    while time.monotonic() < end:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if ids(index.search(QUESTION, 5, rerank=reranker)) == expected:
                break
    assert ids(index.search(QUESTION, 5, rerank=reranker)) == expected
    assert asked.count(QUESTION) == 1


class Compressor(BaseDocumentCompressor):
    """A reranker of LangChain that tells its order only."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return sorted(documents, key=lambda one: -prefers_12(query, [one.page_content])[0])


class Postprocessor(BaseNodePostprocessor):
    """A reranker of LlamaIndex."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        for node in nodes:
            [node.score] = prefers_12(query_bundle.query_str, [node.node.text])
        return nodes


class LangChainCrossEncoder:
    """LangChain's interface of cross-encoders."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [prefers_12(question, [text])[0] for question, text in pairs]


@pytest.mark.parametrize("model", [Compressor(), Postprocessor(), LangChainCrossEncoder(), prefers_12])
def test_rerankers_of_the_frameworks_and_functions(index: Index, model: Any) -> None:
    first = [index.search(QUESTION, 1, rerank=Reranker(one, weight=9, within=99))[0].id for one in (model, prefers_12)]
    assert first[0] == first[1]
    copy = pickle.loads(pickle.dumps(Reranker(model, hits=7)))
    assert (copy.hits, copy.name) == (7, Reranker(model).name)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("some-model", "cross-encoder:FOLDER_OR_NAME"),
        (7, "a reranker is"),
        (dict, "a reranker is"),
        ({"weight": 1}, "needs a model"),
        ({"model": prefers_12, "wait": 1}, "no option 'wait'"),
        ({"model": prefers_12, "weight": -1}, "weight must be"),
        ({"model": prefers_12, "hits": 1}, "hits must be"),
        ({"model": prefers_12, "within": "near"}, "within must be"),
        ({"model": prefers_12, "hits": None}, "must be numbers"),
        ({"model": prefers_12, "seconds": 0}, "seconds must be"),
        (True, "needs a reranker of the index"),
    ],
)
def test_what_is_no_reranker_is_refused_by_name(index: Index, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        index.search(QUESTION, rerank=value)


def test_a_search_without_a_text_or_by_more_than_a_score_has_no_second_stage(index: Index) -> None:
    vector = index.model.encoder.encode_queries([QUESTION])
    for queries in (vector, [(QUESTION, "plums")]):
        with pytest.raises(ConfigError, match="has no text"):
            index.search(queries, lexical=0, rerank=prefers_12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            index, "_reranker", as_reranker(prefers_12)
        )  # the index's own waits for a question that it can judge
        assert len(index.search(vector, 3, lexical=0)[0]) == 3


def test_a_weight_is_learned_from_judgements() -> None:
    rng = np.random.default_rng(0)
    topics = [f"topic{number}" for number in range(40)]
    texts = [
        f"{topic} {' '.join(rng.choice(['oak', 'elm', 'ash', 'fir'], 3))} copy {n}" for topic in topics for n in (1, 2)
    ]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    judged = {f"{topic} oak fir": {str(2 * number + 1): 1} for number, topic in enumerate(topics)}
    with Index.build(documents, SpaceModel.untrained(FakeEncoder(64)), progress=False) as index:
        noise = np.random.default_rng(1)
        knows = Reranker(lambda q, texts: [float(q.split()[0] == t.split()[0] and t.endswith("2")) for t in texts])
        guesses = Reranker(lambda q, texts: noise.normal(size=len(texts)).tolist(), within=99)
        good, bad = (weigh_reranker(index, one, judged) for one in (knows, guesses))
        assert good.weight > 0.5 > 0.2 > bad.weight
        ranked = [index.rank(list(judged), 1, rerank=how).ids for how in (good, False)]
        right = [sum(found in grades for [found], grades in zip(one, judged.values(), strict=True)) for one in ranked]
        assert right[0] > 30 > right[1]
        with pytest.raises(InputError, match="questions have relevant hits"):
            weigh_reranker(index, knows, dict(list(judged.items())[:3]))


def test_what_is_added_depends_on_no_scale_of_the_scores() -> None:
    logits = np.linspace(1, -1, 20, dtype=np.float32)
    scores = np.cos(np.arange(20)).astype(np.float32)
    [added, elsewhere], [alike, _] = (
        Reranker(prefers_12, weight=1.0).added(logits, one) for one in (scores, 100 * scores - 7)
    )
    np.testing.assert_allclose(added, alike, atol=1e-4)
    assert (logits + added).max() == pytest.approx(1)
    assert added.max() > elsewhere > added.min()
    even, nothing = Reranker(prefers_12, weight=1.0).added(logits, np.ones(20, np.float32))
    assert not even.any()
    assert nothing == 0
