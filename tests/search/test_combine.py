"""Words and structure together, against mixing the scores of every document by hand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from palmette import Document, Index
from palmette.lexical.weight import LexicalWeight
from palmette.search import combine
from support.tiny import documents, tree

WORDS = ("the", "the", "the", "a", "a", "red", "owl", "by", "night", "dv7", "x-1", "fox", "fox", "of", "rare")
QUERIES = (
    "the",
    "a red owl by night",
    "rare x-1 of the fox",
    "the the fox",
    "nothing known",
    "fox of the night a",
)


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """600 documents in four segments, a seventh of them deleted, a third the same as another."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 7))) for _ in range(400)]
    texts += [texts[at] for at in draw.integers(0, 400, 200)]
    with Index.build(documents(), tree()) as made:
        for start in (0, 330, 530, 590):
            part = range(start, min(600, {0: 330, 330: 530, 530: 590, 590: 600}[start]))
            made.add(Document(id=f"n{i}", text=texts[i], metadata={"part": i % 5}) for i in part)
        made.delete([f"n{i}" for i in range(0, 600, 7)])
        yield made


def by_hand(index: Index, query: str, mix: LexicalWeight, filter: Any) -> list[tuple[str, float]]:
    pure = index.rank([query], 1000, lexical=0, filter=filter)
    with index.backend.read() as view:
        keys = [view.key_of(id) for id in pure.ids[0]]
        scores = mix.score(
            np.array(pure.scores[0], np.float32), view.words(query, 0, only=np.array(keys)).scores
        )
    order = np.lexsort((keys, -np.array(pure.scores[0]), -scores))
    return [(pure.ids[0][at], float(np.float32(scores[at]))) for at in order]


@pytest.mark.parametrize("filter", [None, {"part": {"$ne": 1}}, {"part": 2}])
@pytest.mark.parametrize("lexical", [0.02, 0.4, 0.8, 1.0])
def test_the_best_are_those_of_all(
    index: Index, lexical: float, filter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = index.model.lexical_weight(index.model.search_options({}), lexical)
    for wider in (1, 8):  # words that show few documents at first, and many
        monkeypatch.setattr(combine, "WORDS_MORE", wider)
        for query in QUERIES:
            expected = by_hand(index, query, mix, filter)
            for k in (1, 10, 60):
                found = index.rank([query], k, lexical=lexical, filter=filter)
                assert list(zip(found.ids[0], found.scores[0], strict=True)) == expected[:k], (
                    query,
                    k,
                    wider,
                )
