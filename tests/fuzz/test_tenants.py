"""A tenant's view: whatever is asked through it, it shows, counts and changes nothing of another tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import PalmetteError
from support import tiny
from support.odd import LIMITS, options

MINE, THEIRS = "mine", "theirs"
ANIMALS = ["cat", "dog", "owl", "fox"]
SECRET = "zanzibar"
"""A word, and the name of a key, that the other tenant's documents alone have."""


def corpus() -> list[Document]:
    """Documents of two tenants, the other one's nearer to every question."""
    return [
        Document(
            f"{tenant}-{animal}",
            f"The {animal} lives here." if tenant == MINE else f"The red {animal}, {SECRET}, sings {animal} {animal}.",
            {"tenant": tenant, "animal": animal} | ({SECRET: 1, "tags": [SECRET]} if tenant == THEIRS else {}),
        )
        for tenant in (THEIRS, MINE)
        for animal in ANIMALS
    ]


@pytest.fixture(scope="module", params=["space", "paths"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Index, Index]]:
    """A tenant's view of an index of both, and an index of its documents alone."""
    model = SpaceModel.untrained(FakeEncoder(16)) if request.param == "space" else tiny.paths()
    mine = [document for document in corpus() if document.metadata["tenant"] == MINE]
    with Index.build(corpus(), model, progress=False) as whole, Index.build(mine, model, progress=False) as alone:
        yield whole.filtered({"tenant": MINE}), alone


NAMES = st.sampled_from(["tenant", "animal", "tags", SECRET, "nothing"])
OPERAND = st.sampled_from([MINE, THEIRS, SECRET, "cat", 1])
ONE = st.one_of(
    st.dictionaries(NAMES, OPERAND, min_size=1, max_size=2),
    st.builds(lambda name, value: {name: {"$ne": value}}, NAMES, OPERAND),
    st.builds(lambda name, value: {name: {"$in": [value, None]}}, NAMES, OPERAND),
    st.builds(lambda name, given: {name: {"$exists": given}}, NAMES, st.booleans()),
    st.builds(lambda ids: {"$id": ids}, st.lists(st.sampled_from([d.key for d in corpus()]), max_size=3)),
)
FILTERS = st.none() | st.recursive(
    ONE,
    lambda inner: (
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=2)}) | st.fixed_dictionaries({"$not": inner})
    ),
    max_leaves=3,
)
QUESTIONS = st.sampled_from([f"{SECRET} cat", "red owl sings", "the fox", SECRET, "The dog lives here."])
LEXICAL, THRESHOLD = st.sampled_from([0, 0.5, 1, "auto"]), st.sampled_from([0.0, 0.5])
OPTIONS = options({"lexical": LEXICAL, "sentences": st.booleans(), "threshold": THRESHOLD})
IDS = st.lists(st.sampled_from([document.key for document in corpus()]), max_size=4)
ASKED = st.tuples(QUESTIONS, st.integers(1, 9), FILTERS, IDS, OPTIONS)
Seen = list[Any]


def engine(view: Index, question: str, k: int, filter: Any, ids: list[str], how: dict[str, Any]) -> Seen:
    hits = view.search(question, k, filter=filter, **how)
    told = [[hit.document.text, hit.document.metadata, hit.score, hit.explain().to_dict()] for hit in hits]
    ranked = view.rank([question], k, filter=filter, lexical=how.get("lexical", 0))
    held = [document.key for document in view.documents(filter)]
    return [told, ranked.ids, held, view.get(ids), len(view), view.stats().documents]


def langchain(view: Index, question: str, k: int, filter: Any, ids: list[str], how: dict[str, Any]) -> Seen:
    words = {"lexical": how["lexical"]} if "lexical" in how else {}
    store = langchain_palmette.PalmetteVectorStore.from_index(view)
    found = store.similarity_search_with_score(question, k, filter=filter, explain=True, **words)
    diverse = store.max_marginal_relevance_search(question, k, filter=filter, **words)
    several = store.retriever.batch([question, "cat"], filter=filter)
    return [*found, *diverse, *store.get_by_ids(ids), *several]


def llama_index(view: Index, question: str, k: int, filter: Any, ids: list[str], how: dict[str, Any]) -> Seen:
    retriever = llama_palmette.PalmetteRetriever.from_index(view, explain=True)
    asked = llama_palmette.PalmetteQuery(question, top_k=k, filters=filter, lexical=how.get("lexical"))
    store = llama_palmette.PalmetteVectorStore.from_index(view)
    query = VectorStoreQuery(query_str=question, similarity_top_k=k, mode=VectorStoreQueryMode.MMR)
    nodes = [*retriever.retrieve(asked), *(store.query(query).nodes or ())]
    nodes += [*retriever.get_nodes(ids), *store.get_nodes(ids)]
    return [*map(str, nodes), *(node.to_dict() for node in nodes), retriever.ref_doc_info]


@pytest.mark.parametrize("way", [engine, langchain, llama_index])
@settings(LIMITS, max_examples=12)
@given(asked=ASKED)
def test_nothing_of_another_tenant_is_seen(pair: tuple[Index, Index], way: Any, asked: tuple[Any, ...]) -> None:
    question, _, filter, *_ = asked
    outcomes: list[Any] = []
    for index in pair:  # what others have must not even change the text of an error
        try:
            outcomes.append(way(index, *asked))
        except PalmetteError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    seen = repr(outcomes[0]).replace(question, "").replace(repr(filter), "")
    assert f"{THEIRS}-" not in seen
    assert "sings" not in seen
    assert isinstance(outcomes[0], str) == isinstance(outcomes[1], str), outcomes
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
    elif way is engine:
        assert outcomes[0][2:] == outcomes[1][2:]
