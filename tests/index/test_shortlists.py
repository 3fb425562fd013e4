"""Searches that rank a shortlist anew, with words: one definition, whatever is asked for."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from palmette import Document, FusionModel, Index, Model
from palmette.lexical.weight import LexicalWeight
from support.tiny import fields, tree

WORDS = [f"w{i}" for i in range(300)]
STAGED: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "tree": [({"rerank": True, "level": 2}, {"level": 2}), ({"rerank": True}, {})],
    "fields": [({"by": "two_stage"}, {"by": "aggregate"}), ({"blend": 0.0}, {"by": "aggregate"})],
}
"""Options by method, and those that rank as their first stage does."""


def texts(count: int) -> list[str]:
    """Some words are frequent, most are rare."""
    draw, chances = np.random.default_rng(0), 1 / np.arange(1, len(WORDS) + 1)
    return [" ".join(draw.choice(WORDS, 12, p=chances / chances.sum())) for _ in range(count)]


@pytest.fixture(scope="module", params=["tree", "fields"])
def index(request: pytest.FixtureRequest) -> Iterator[Index]:
    """Documents that words and the method rank in quite different ways."""
    model: Model = {"tree": tree, "fields": fields}[request.param]()
    with Index.build([Document(str(i), text) for i, text in enumerate(texts(300))], model) as made:
        yield made


def asked() -> list[str]:
    return [" ".join(text.split()[:5]) for text in texts(16)[::2]]


@pytest.mark.parametrize("lexical", ["auto", 0.1, 0.5])
def test_fewer_are_the_first_of_more(index: Index, lexical: float | str) -> None:
    for options, _ in STAGED[index.model.method]:
        for shortlist in (50, 60):
            how = {**options, "lexical": lexical, "shortlist": shortlist}
            every = index.rank(asked(), 50, **how)
            for k in (1, 5):
                few = index.rank(asked(), k, **how)
                assert few.ids == [row[:k] for row in every.ids]
                assert few.scores == [row[:k] for row in every.scores]


def test_candidates_are_the_shortlist_and_as_many_by_words(index: Index) -> None:
    """Each with the score that it would have among all."""
    for options, first in STAGED[index.model.method]:
        mix, every = index.model.lexical_weight(index.model.search_options(options), 0.4), len(index)
        own = index.rank(asked(), every, lexical=0, **options)  # a shortlist of all
        for shortlist, k in ((20, 5), (8, 8), (3, 10)):
            how, many = {**options, "shortlist": shortlist, "lexical": 0.4}, max(k, shortlist)
            fetched = index.rank(asked(), many, lexical=0, **first).ids
            found = index.rank(asked(), k, **how)
            for row, query in enumerate(asked()):
                scores = dict(zip(own.ids[row], own.scores[row], strict=True))
                with index.backend.read() as view:
                    worded = view.ids(view.words(query, many).keys.tolist())
                    both = sorted({*fetched[row], *worded})
                    words = view.words(query, 0, only=np.array([view.key_of(id) for id in both])).scores
                mixed = mix.score(np.array([scores[id] for id in both]), words)
                assert set(found.ids[row]) <= set(both)
                assert found.scores[row] == pytest.approx(np.sort(mixed)[::-1][:k], abs=1e-5)
            best, told = found.ids[-1][0], found.scores[-1][0]
            assert index.explain(asked()[-1], best, **how).score == pytest.approx(told, abs=1e-5)


def test_a_shortlist_is_as_long_as_it_says(index: Index) -> None:
    """One document is fetched by the method, and one by words."""
    for options, _ in STAGED[index.model.method]:
        for query in asked():
            found = index.search(query, 1, **options, shortlist=1, lexical=0.3)
            alone = {index.search(query, 1, **options, shortlist=1, lexical=0)[0].id}
            with index.backend.read() as view:
                alone |= set(view.ids(view.words(query, 1).keys.tolist()))
            assert found[0].id in alone


def test_a_fusion_with_a_member_of_two_stages() -> None:
    fused = FusionModel.of([fields(), tree()], weights=[1, 1])
    fused.lexical_weights = {"": LexicalWeight(weight=0.3, scale=1.0)}
    with Index.build([Document(str(i), text) for i, text in enumerate(texts(900))], fused) as index:
        for lexical in (0, "auto"):
            every = index.rank(asked(), 50, lexical=lexical)
            few = index.rank(asked(), 5, lexical=lexical)
            assert few.ids == [row[:5] for row in every.ids]
