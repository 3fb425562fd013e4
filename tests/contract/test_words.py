"""Words and structure together, whatever the method."""

import numpy as np
import pytest

from palmette import Document, Index, Model
from palmette.errors import (
    ConfigError,
)
from support.tiny import ANIMALS, COLOURS

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


def test_a_hybrid_search_is_exact(index: Index, model: Model) -> None:
    """The same as mixing both scores of every document: 900 documents, so that neither side shows all at first."""
    index.add(
        Document(id=f"more-{i}", text=f"{COLOURS[i % 6]} thing {i % 50} of {ANIMALS[i % 7]} {i % 3}")
        for i in range(852)
    )
    index.delete([f"more-{i}" for i in range(0, 852, 9)])
    how = {"by": "best"} if model.method == "fields" else {}  # its default ranks a shortlist alone
    for lexical in (0.3, 0.9, 1):
        found = index.search(QUERIES, k=5, lexical=lexical, **how)
        for query, hits in zip(QUERIES, found, strict=True):
            expected = mixed_by_hand(index, model, query, lexical, **how)
            assert [hit.id for hit in hits] == [id for id, _ in expected[:5]]
            assert [hit.score for hit in hits] == pytest.approx(
                [score for _, score in expected[:5]], rel=2**-22
            )
            alone = index.search(query, k=5, lexical=lexical, **how)
            assert [hit.id for hit in alone] == [hit.id for hit in hits]


def mixed_by_hand(
    index: Index, model: Model, query: str, lexical: float, **how: str
) -> list[tuple[str, float]]:
    pure = index.rank([query], k=10_000, lexical=0, **how)
    scale = model.lexical_weight(model.search_options(how), lexical).scale
    with index.backend.read() as view:
        keys = [view.key_of(id) for id in pure.ids[0]]
        words = view.words(query, 0, only=np.array(keys)).scores
    rows = [
        (-((1 - lexical) * own + lexical * scale * float(word) ** 1.5), -own, key, id)
        for own, word, key, id in zip(pure.scores[0], words, keys, pure.ids[0], strict=True)
    ]
    return [(id, -score) for score, _, _, id in sorted(rows)]


def test_without_words_a_search_is_the_pure_method(shared: Index, model: Model) -> None:
    pure = shared.search(QUERIES, k=48, lexical=0)
    with shared.backend.read() as view:
        options = model.search_options({})
        found = model.search(view, model.encode_queries(QUERIES, options), 48, options)
        assert [[hit.id for hit in hits] for hits in pure] == [view.ids(row.tolist()) for row in found.keys]
    assert [[hit.score for hit in hits] for hits in pure] == found.scores.tolist()


def test_words_find_what_only_words_can(index: Index) -> None:
    index.add([Document(id="part", text="Order code dv7-1211ea, nothing else."), "An order without a code."])
    for query in ("dv7-1211ea", "DV7 1211EA", "code of dv7-1211ea?"):
        assert index.search(query, k=1, lexical=0.9)[0].id == "part"
    assert index.search("dv7-1211ea", k=48, lexical=1, threshold=1e-6)[0].id == "part"
    assert len(index.search("dv7-1211ea", k=48, lexical=1, threshold=1e-6)) == 1


def test_the_parts_of_a_hybrid_explanation_add_up_and_name_the_words(index: Index) -> None:
    found = index.search(QUERIES, k=48, lexical=0.5)
    index.add(["another red owl that makes the words less rare", "and one more owl"])
    for hit in [hit for hits in found for hit in hits]:
        explanation = hit.explain()
        assert sum(part.value for part in explanation.parts) == pytest.approx(hit.score, abs=1e-5)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
    explained = index.explain(QUERIES[0], "red-owl", lexical=0.5)
    assert {"word 'red'", "word 'owl'"} <= {part.name for part in explained.parts}
    assert "red" in explained.text
    assert set(explained.detail["lexical"]["words"]) >= {"red", "owl"}
    again = index.search(QUERIES[0], k=48, lexical=0.5)
    assert explained.score == pytest.approx({h.id: h.score for h in again}["red-owl"], abs=1e-5)


def test_hybrid_searches_are_filtered_and_ranked_alike(shared: Index) -> None:
    condition = {"house": {"$lt": 24}}
    hits = shared.search(QUERIES, k=7, filter=condition, lexical=0.6)
    everything = shared.search(QUERIES, k=48, lexical=0.6)
    for some, every in zip(hits, everything, strict=True):
        within = [(h.id, h.score) for h in every if h.document.metadata["house"] < 24]
        assert [(h.id, h.score) for h in some] == within[:7]
    ranking = shared.rank(QUERIES, k=7, filter=condition, lexical=0.6)
    assert ranking.ids == [[hit.id for hit in found] for found in hits]
    red = shared.filtered({"colour": "red"})
    assert {h.document.metadata["colour"] for h in red.search("blue owl", k=48, lexical=1)} == {"red"}


def test_words_follow_every_change(index: Index, tmp_path) -> None:
    def best(query: str) -> list[str]:
        return [hit.id for hit in index.search(query, k=48, lexical=1, threshold=1e-6)]

    assert best("submarine") == []
    index.upsert([Document(id="red-owl", text="A submarine dives.", metadata={"colour": "red"})])
    assert best("submarines") == ["red-owl"]
    assert "red-owl" not in best("owl")
    index.delete(["red-owl"])
    assert best("submarine") == []
    kept = index.search(QUERIES, k=48, lexical=0.5)
    index.compact()
    assert index.search(QUERIES, k=48, lexical=0.5) == kept
    copy = index.copy_to(tmp_path / "copy")
    assert copy.search(QUERIES, k=48, lexical=0.5) == kept


def test_a_weight_that_cannot_be_is_refused(shared: Index, model: Model) -> None:
    for lexical in (-0.1, 1.5, "much", True, None, float("nan")):
        with pytest.raises(ConfigError, match="lexical must be a number from 0"):
            shared.search("owl", lexical=lexical)
    vectors = model.encoder.plain.encode_queries(["red owl"])
    with pytest.raises(ConfigError, match="needs the words of a query"):
        shared.search(vectors, lexical=0.5)


def test_the_language_of_words_is_kept(model: Model, tmp_path) -> None:
    texts = ["Das Haus steht.", "Viele Häuser stehen.", "Ein Boot."]
    index = Index.build(texts, model, tmp_path / "i", language="german")
    assert len(index.search("haus", k=3, lexical=1, threshold=1e-6)) == 2
    index.close()
    for opened in (Index.open(tmp_path / "i"), Index.open_or_create(tmp_path / "i", model)):
        assert opened.backend.language == "german"
    plain = Index.build(["one house", "two houses"], model, language=None)
    assert len(plain.search("house", k=3, lexical=1, threshold=1e-6)) == 1
    with pytest.raises(ConfigError, match="no stemmer for language='klingon'"):
        Index.create(tmp_path / "k", model, language="klingon")
