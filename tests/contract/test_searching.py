"""What every search does, whatever the method."""

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from palmette import Document, Index, Model
from palmette.errors import ConfigError, FilterError, InputError, NotFoundError
from palmette.machine.devices import has_torch
from support.logistic import expit, logit
from support.tiny import ANIMALS, documents

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


def test_hits_are_ranked_documents(shared: Index) -> None:
    hits = shared.search(QUERIES[0], k=7)
    assert len(hits) == 7
    assert [type(hit.score) for hit in hits] == [float] * 7
    assert all(a.score >= b.score for a, b in zip(hits, hits[1:], strict=False))
    assert len({hit.id for hit in hits}) == 7
    original = {document.id: document for document in documents()}
    assert all(hit.document == original[hit.id] for hit in hits)
    assert "red-owl" in [hit.id for hit in hits]


def test_a_batch_is_the_single_searches(shared: Index) -> None:
    batched = shared.search(QUERIES, k=5)
    for query, hits in zip(QUERIES, batched, strict=True):
        alone = shared.search(query, k=5)
        assert hits[0].explain().text == alone[0].explain().text
        assert [hit.id for hit in alone] == [hit.id for hit in hits]
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert shared.search([], k=5) == []


def test_ranking_is_the_search_without_documents(shared: Index) -> None:
    ranking = shared.rank(QUERIES, k=5, filter={"house": {"$lt": 24}})
    hits = shared.search(QUERIES, k=5, filter={"house": {"$lt": 24}})
    assert ranking.ids == [[hit.id for hit in found] for found in hits]
    assert ranking.scores == [[hit.score for hit in found] for found in hits]
    assert 0 < ranking.visited <= 1
    assert shared.rank([]).ids == []


def test_the_parts_of_an_explanation_add_up_to_the_score(shared: Index) -> None:
    for hit in [hit for hits in shared.search(QUERIES, k=48) for hit in hits]:
        explanation = hit.explain()
        assert expit(sum(part.value for part in explanation.parts)) == pytest.approx(hit.score, abs=1e-5)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
        assert explanation.text
        own = explanation.method
        assert sum(part.value for part in own.parts) == pytest.approx(hit.evidence["method_score"], abs=1e-5)
    explained = shared.explain(QUERIES[0], "red-owl")
    assert explained.score == pytest.approx(
        {h.id: h.score for h in shared.search(QUERIES[0], k=48)}["red-owl"], abs=1e-5
    )


def test_hits_bring_the_stored_vectors_of_their_sentences(shared: Index) -> None:
    encoder = shared.model.encoder
    for hit in shared.search(QUERIES[0], k=5):
        if not shared.model.sentences:
            assert hit.vectors is None
            continue
        whole, sentences = encoder.encode_sentences([hit.document.content])
        assert hit.vectors is not None
        assert hit.vectors.encoder == encoder.fingerprint
        assert hit.vectors.spans.tolist() == sentences.spans.tolist()
        np.testing.assert_allclose(hit.vectors.vectors.astype(int), sentences.vectors.astype(int), atol=1)
        if hit.vectors.whole is not None:
            np.testing.assert_allclose(hit.vectors.whole.astype(np.float32), whole[0], atol=1e-2)


def test_boosts_are_parts_of_the_sum(shared: Index) -> None:
    boost = {"colour": {"blue": 3}, "tags": {"owl": 0.5, "blue": 0.25}}
    plain = {hit.id: logit(hit.score) for hit in shared.search(QUERIES[0], k=48)}
    hits = shared.search(QUERIES[0], k=48, boost=boost)
    assert len(hits) == 48
    for hit in hits:
        added = 3.25 * (hit.document.metadata["colour"] == "blue") + 0.5 * (hit.document.metadata["animal"] == "owl")
        assert hit.evidence["boost"] == added
        assert logit(hit.score) == pytest.approx(plain[hit.id] + added, abs=1e-3)
        assert expit(sum(part.value for part in hit.explain().parts)) == pytest.approx(hit.score, abs=1e-5)
    assert shared.explain(QUERIES[0], "blue-owl", boost=boost).score == pytest.approx(
        {hit.id: hit.score for hit in hits}["blue-owl"], abs=1e-5
    )


def test_k_is_honoured(shared: Index) -> None:
    assert len(shared.search("owl", k=1)) == 1
    assert len(shared.search("owl", k=10_000)) == 48
    for k in (0, -3, 2.5, True, "5"):
        with pytest.raises(InputError, match="k must be a whole number"):
            shared.search("owl", k=k)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"house": {"$gte": 40}}, lambda m: m["house"] >= 40),
        ({"tags": {"$all": ["black", "fox"]}}, lambda m: set(m["tags"]) >= {"black", "fox"}),
        ({"$or": [{"animal": "ant"}, {"house": 3}]}, lambda m: m["animal"] == "ant" or m["house"] == 3),
    ],
)
def test_filters_are_applied_before_ranking(shared: Index, condition: dict, expected: Callable[[dict], bool]) -> None:
    wanted = {d.id for d in documents() if expected(d.metadata)}
    found = shared.search("a golden owl", k=48, filter=condition)
    assert {hit.id for hit in found} == wanted
    unfiltered = [hit.id for hit in shared.search("a golden owl", k=48) if hit.id in wanted]
    assert [hit.id for hit in found] == unfiltered
    few = shared.search("a golden owl", k=2, filter=condition)
    assert [hit.id for hit in few] == unfiltered[:2]


def test_a_filter_that_nothing_passes_finds_nothing_and_an_unknown_key_says_so(shared: Index) -> None:
    assert shared.search("owl", filter={"house": 999}) == []
    with pytest.raises(FilterError, match=r"color.*colour"):
        shared.search("owl", filter={"color": "red"})
    with pytest.raises(FilterError, match=r"\$bigger"):
        shared.search("owl", filter={"house": {"$bigger": 3}})


def test_a_narrowed_index_finds_what_a_filter_does(shared: Index) -> None:
    """By the method alone: words and units are counted on its own documents."""
    condition, alone = {"house": {"$lt": 24}}, {"lexical": 0, "sentences": False}
    narrowed = shared.filtered(condition)
    for inner in (None, {"colour": "red"}):
        hits = narrowed.search(QUERIES, 48, filter=inner, **alone)
        both = condition if inner is None else {"$and": [condition, inner]}
        expected = shared.search(QUERIES, 48, filter=both, **alone)
        found, wanted = (
            [[(hit.id, hit.evidence["method_score"]) for hit in some] for some in each] for each in (hits, expected)
        )
        assert found == wanted
    explained = narrowed.explain(QUERIES[0], "red-owl")
    [score] = [hit.score for hit in narrowed.search(QUERIES[0], 48) if hit.id == "red-owl"]
    assert explained.score == pytest.approx(score, abs=1e-5)


def test_a_narrowed_index_cannot_be_widened(stored: Index) -> None:
    red = stored.filtered({"colour": "red"})
    assert len(red) == len(ANIMALS)
    assert {hit.document.metadata["colour"] for hit in red.search("blue owl", k=48)} == {"red"}
    assert red.search("blue owl", k=48, filter={"colour": "blue"}) == []
    assert [d.id for d in red.documents({"animal": "owl"})] == ["red-owl"]
    assert red.get(["blue-owl"]) == [None]
    assert "blue-owl" not in red
    with pytest.raises(NotFoundError):
        red.explain("owl", "blue-owl")
    assert red.delete(["blue-owl"]) == []
    assert len(stored) == 48
    with pytest.raises(InputError, match="does not pass"):
        red.add([Document(id="x", text="x", metadata={"colour": "blue"})])
    assert red.delete(filter={"animal": "owl"}) == ["red-owl"]
    assert len(stored) == 47


def test_threshold_leaves_weak_hits_out(shared: Index) -> None:
    hits = shared.search("red owl", k=48)
    cut = hits[9].score
    assert [h.id for h in shared.search("red owl", k=48, threshold=cut)] == [h.id for h in hits if h.score >= cut]
    assert shared.search("red owl", threshold=1) == []


def test_explanations_made_at_once_outlive_the_document(index: Index) -> None:
    hits = index.search("red owl", k=3, explain=True)
    index.delete([hit.id for hit in hits])
    for hit in hits:
        assert expit(sum(part.value for part in hit.explain().parts)) == pytest.approx(hit.score, abs=1e-5)


def test_documents_of_one_content_score_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: they are encoded once, not in several places of a batch."""
    encoded, encode = [], type(model).encode_documents
    monkeypatch.setattr(
        type(model), "encode_documents", lambda self, some, *more: encoded.extend(some) or encode(self, some, *more)
    )
    alike = [Document(id=str(i), text="an owl", metadata={"page": i}) for i in range(6)]
    first, *same, last = model.score("white owl", [documents()[0], *alike, documents()[0]])
    assert len(encoded) == 2
    assert first == last
    assert len({*same}) == 1
    assert first != same[0]


def test_unusable_queries_are_refused(shared: Index) -> None:
    for query, words in [
        ("", "empty"),
        (" \n\t", "empty"),
        (3, "got int"),
        (["ok", ""], "empty"),
        (["ok", None], "must be a str, got NoneType"),
    ]:
        with pytest.raises(InputError, match=words):
            shared.search(query)


def test_embeddings_can_be_searched_with(shared: Index, model: Model) -> None:
    vectors = model.encoder.plain.encode_queries(QUERIES)
    try:
        found = shared.search(vectors, k=3)
    except ConfigError:
        pytest.skip(f"{model.method} needs the text itself")
    assert [[h.id for h in hits] for hits in found] == [
        [h.id for h in hits] for hits in shared.search(QUERIES, k=3, lexical=0)
    ]
    with pytest.raises(InputError, match=r"\[Q, 48\]"):
        shared.search(vectors[:, :7])
    with pytest.raises(InputError, match="finite"):
        shared.search(np.full((1, 48), np.nan))


def test_readers_in_threads_see_whole_states(stored: Index) -> None:
    """Documents come and go in groups of eight; no search may see part of a group."""
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            seen = len(stored.search("extra", k=100, filter={"batch": {"$exists": True}}))
            if seen not in (0, 8):
                torn.append(seen)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    group = [Document(id=f"extra-{i}", text=f"extra {i}", metadata={"batch": 1}) for i in range(8)]
    for _ in range(6):
        stored.add(group)
        stored.delete([d.id for d in group])
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


async def test_async_searches_run_side_by_side(shared: Index) -> None:
    expected = [shared.search(query, k=3) for query in QUERIES]
    found = await asyncio.gather(*(shared.asearch(query, 3) for query in QUERIES * 8))
    if shared.model.method not in ("fields", "layers"):
        assert found == expected * 8
        return
    for hits, alone in zip(found, expected * 8, strict=True):  # a transformer of theirs: a shared pass rounds otherwise
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=1e-5)


@pytest.mark.skipif(not has_torch(), reason="an untrained model measures its scales on the documents it is given")
def test_reranking_without_an_index_scores_the_same(shared: Index, model: Model) -> None:
    given = documents()[5:15]
    by_id = {hit.id: hit.score for hit in shared.search("white owl", k=48, lexical=0)}
    alone, found = model.score("white owl", given, lexical=0), [by_id[d.id] for d in given]
    apart = logit(alone) - logit(found)  # a reranker does not know how many documents there are
    assert apart == pytest.approx(apart[0], abs=1e-3)
    assert abs(apart[0]) < 1
    assert all(0 < score < 1 for score in model.score("white owl", given))
    assert model.score("white owl", []) == []
