"""One document has one score for a query: by search, rank, explain, score and both rerankers, with any options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from scipy.special import expit, logit

from langchain_palmette import PalmetteReranker
from llama_index.retrievers.palmette import PalmetteRerank
from palmette import Document, FakeEncoder, Index, Model, SpaceModel, TreeModel
from palmette.methods import model_class, names
from support import taxonomies, tiny
from support.options import search_options

NEAR = 1e-4
"""Log-odds by which scores of one document may differ: a pass of other texts rounds otherwise."""
MODELS: dict[str, Callable[[], Model]] = tiny.METHODS | {
    "zoo": taxonomies.zoo_model,
    "untrained space": cache(lambda: SpaceModel.untrained(FakeEncoder(48))),
    "trained tree": cache(lambda: tiny.train_tree(start="random", depth=3)),
    "tree of documents": cache(
        lambda: TreeModel.fit(tiny.documents(), encoder=FakeEncoder(48), **tiny.settings(depth=4))
    ),
}
QUERIES = {"zoo": ["owl 3", "a dog of the zoo", "animal", "bee or cat 7", '"owl 3"']}
USUAL = ["where does the red owl live?", "white hen", "golden bee sings", "nothing of this kind", '"green fox"']


@cache
def documents(name: str) -> list[Document]:
    if name == "zoo":
        return taxonomies.zoo()
    named = [replace(d, metadata={**d.metadata, **d.fields}, fields={}) for d in tiny.with_fields()]
    return named if name == "fields" else tiny.documents()


@cache
def index_of(name: str) -> Index:
    return Index.build(documents(name), MODELS[name]())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_all_ways_to_a_score_agree(name: str) -> None:
    index_of(name)  # trained before anything is drawn

    @settings(max_examples=12)
    @given(searches(name))
    def agree(search: tuple[str, int, dict[str, Any]]) -> None:
        check_search(name, *search)

    agree()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("taxonomy", {"cut": 0.3}),
        ("taxonomy", {"order": "specific"}),
        ("layers", {"order": "layer"}),
        ("layers", {"order": "layer", "layers": [1, 3]}),
        ("zoo", {"cut": 0.3, "order": "specific", "within": "owl"}),
        ("zoo", {"within": "cat"}),
        ("paths", {"beam": 1, "lexical": 0.8}),
    ],
    ids=str,
)
def test_options_that_leave_documents_out_or_order_them_change_no_score(name: str, options: dict[str, Any]) -> None:
    query, model, some = QUERIES.get(name, USUAL)[0], MODELS[name](), documents(name)[5:15]
    check_search(name, query, 10, options)
    alone = options | {"lexical": 0}  # a word is rare among some of the documents, and frequent among others
    scores = dict(zip([d.key for d in some], model.score(query, some, **alone), strict=True))
    assert_alike(scores, {id: index_of(name).explain(query, id, **alone).score for id in scores})


def searches(name: str) -> st.SearchStrategy[tuple[str, int, dict[str, Any]]]:
    """A query, a number of hits, and options of a search."""
    model = MODELS[name]()

    def with_words(options: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        words: Any = st.sampled_from(["auto", 0])
        if model.lexical_key(model.search_options(options)) is not None:
            words = st.one_of(words, st.floats(0, 1).map(lambda weight: round(weight, 2)))
        return st.fixed_dictionaries({**{key: st.just(value) for key, value in options.items()}, "lexical": words})

    queries = st.sampled_from(QUERIES.get(name, USUAL))
    return st.tuples(queries, st.integers(1, 50), search_options(model).flatmap(with_words))


def check_search(name: str, query: str, k: int, options: dict[str, Any]) -> None:
    index, model, every = index_of(name), MODELS[name](), documents(name)
    hits = index.search(query, k, **options)
    found = {hit.id: float(hit.score) for hit in hits}
    assert len(found) == len(hits) <= k

    ranking = index.rank([query], k, **options)
    assert (ranking.ids, ranking.scores) == ([[*found]], [[*found.values()]])

    for hit in hits[:: max(1, len(hits) // 3)]:
        for explanation in (hit.explain(), index.explain(query, hit.id, **options)):
            assert_near(expit(sum(part.value for part in explanation.parts)), hit.score, "parts")
            assert_near(explanation.score, hit.score, "explanation")
            own = explanation.method
            assert own is not None
            assert sum(part.value for part in own.parts) == pytest.approx(own.score, abs=1e-5)
            assert own.score == pytest.approx(hit.evidence["method_score"], abs=1e-5)

    scores = dict(zip([d.key for d in every], model.score(query, every, **options), strict=True))
    left_out = [d.key for d in every if d.key not in found and scores[d.key] > 0]
    known = found | {id: index.explain(query, id, **options).score for id in left_out[:3]}
    assert_alike(scores, known)
    for ranked in rerankings(model, query, every, options):
        assert_alike(dict(ranked), known)
        whole = index.search(query, len(every), **options)
        assert_same_order([id for id, _ in ranked], [hit.id for hit in whole], scores, model)


def rerankings(
    model: Model, query: str, every: Sequence[Document], options: dict[str, Any]
) -> list[list[tuple[str, float]]]:
    """Ids and scores by both frameworks' rerankers."""
    own = {name: value for name, value in options.items() if name != "lexical"}
    words = {"lexical": options.get("lexical", "auto")}
    texts = [LangChainDocument(id=d.key, page_content=d.text, metadata=d.metadata) for d in every]
    reranker = PalmetteReranker(model=model, search_options=own, **words)
    first = [(str(one.id), one.metadata["relevance_score"]) for one in reranker.compress_documents(texts, query)]
    nodes = []
    for d in every:
        hidden = {"metadata": dict(d.metadata), "excluded_embed_metadata_keys": [*d.metadata]}
        nodes.append(NodeWithScore(node=TextNode(id_=d.key, text=d.text, **hidden)))
    reranked = PalmetteRerank(model, top_n=len(every), **words, **own).postprocess_nodes(nodes, QueryBundle(query))
    return [first, [(one.node_id, float(one.score or 0)) for one in reranked]]


def assert_near(score: float, expected: float, what: str) -> None:
    assert abs(logit(np.clip(score, 1e-9, 1 - 1e-9)) - logit(np.clip(expected, 1e-9, 1 - 1e-9))) < NEAR, what


def assert_alike(scores: dict[str, float], known: dict[str, float]) -> None:
    """Assert that log-odds differ by one small number for all documents: an index knows how many there are."""
    pairs = [(scores[id], score) for id, score in known.items() if id in scores and 1e-5 < score < 1 - 1e-5]
    if pairs:
        apart = logit([score for score, _ in pairs]) - logit([score for _, score in pairs])
        assert np.ptp(apart) < 0.01
        assert abs(apart[0]) < 1


def assert_same_order(ranked: list[str], searched: list[str], scores: dict[str, float], model: Model) -> None:
    """Assert that a reranker returns what a search does, in its order; a search by paths may visit fewer documents."""
    if model.method == "paths":
        ranked = [id for id in ranked if id in set(searched)]
    assert sorted(ranked) == sorted(searched)
    for one, other in zip(ranked, searched, strict=True):
        assert one == other or scores[one] == pytest.approx(scores[other], abs=1e-5)


@pytest.mark.parametrize("method", names())
def test_every_search_option_is_drawn(method: str) -> None:
    """A new option joins ``support/options.py``, or this fails."""
    drawn, models = set[str](), [model for model in (make() for make in MODELS.values()) if model.method == method]

    @settings(max_examples=200)
    @given(st.sampled_from(models).flatmap(search_options))
    def collect(options: dict[str, Any]) -> None:
        drawn.update(options)

    collect()
    assert drawn == set(model_class(method).search_class.names())
